"""What holds for every trace format alike; the samples are in samples/."""

from __future__ import annotations

import gzip
import importlib
import io
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from kvscope.core.errors import InputError, UsageError
from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import ReadOptions, Request, common_keys
from kvscope.ingest.source import HEAD_BYTES, Source


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


COMPRESSIONS = [pytest.param(gzip.compress, id="gz"), pytest.param(_zstd, id="zst")]


def test_the_sample_is_detected(sample: Any) -> None:
    """The first format of the registry that recognizes a sample is its own."""
    assert registry.detect(sample.data, "").name == sample.format


def test_any_head_of_the_sample_is_claimed_by_no_other_format(sample: Any) -> None:
    """However early the head breaks off, no format claims another's trace."""
    for end in range(len(sample.data)):
        known = registry.recognized(sample.data[:end])
        assert known is None or known.name == sample.format


def test_a_broken_first_line_does_not_prevent_detection(sample: Any) -> None:
    """Whole lines after a broken one decide."""
    if sample.headers or not sample.text:
        pytest.skip("its beginning is all that tells the format")
    head = b'{"chat_id": 1, "requests": [}\n\n' + sample.data
    assert registry.detect(head, "").name == sample.format


def test_how_editors_write_text_changes_nothing(sample: Any, read: Any) -> None:
    """A byte order mark, lines that end as on Windows, and none at the end of the last one."""
    if not sample.text:
        pytest.skip("no text")
    for data in (b"\xef\xbb\xbf%b" % sample.data, sample.data.replace(b"\n", b"\r\n")):
        assert tuple(read(data).records) == tuple(read(data.rstrip()).records) == sample.records


def test_the_sample_reads_as_its_canonical_requests(sample: Any, read: Any) -> None:
    """Names, types and units are canonical; ties and disorder in time pass through."""
    result = read(sample.data)
    assert tuple(result.records) == sample.records
    assert result.rejects.count == 0
    arrivals = [request.arrival_s for request in result.requests]
    assert arrivals != sorted(arrivals)
    assert len(set(arrivals)) < len(arrivals)
    for request in result.requests:  # whatever the trace writes
        assert type(request) is Request
        assert type(request.arrival_s) is float
        assert type(request.input_tokens) is type(request.output_tokens) is int


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_compression_changes_nothing(sample: Any, read: Any, compress: Any) -> None:
    """A compressed trace is recognized and read as the plain one, in one frame or in several."""
    half = len(sample.data) // 2
    for data in (
        compress(sample.data),
        compress(sample.data[:half]) + compress(sample.data[half:]),
    ):
        assert tuple(read(data).records) == sample.records


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_of_cut_compressed_data_whole_lines_are_read(sample: Any, read: Any, compress: Any) -> None:
    """Wherever compressed data is cut, the lines before that are read and the cut is reported."""
    whole = compress(sample.data)
    for end in range(4, len(whole), 3):
        try:
            result = read(whole[:end], sample.format)
        except InputError as error:
            assert "the compressed data is cut" in str(error)  # noqa: PT017  (or none is raised)
        else:
            assert sample.text
            assert tuple(result.records) == sample.records[: len(result.records)]
            assert not result.rejects.count
            assert result.reader.cut.startswith("the compressed data is cut: ")


def test_standard_input_reads_as_a_file(
    sample: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-` reads the same requests from standard input."""
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(sample.data)))
    monkeypatch.setattr("sys.stdin", stdin)
    source = Source("-")
    reader = registry.detect(source.head, "-")(ReadOptions())
    records = [one for part in reader.records(source) for one in read.with_ids(part)]
    assert tuple(tuple(requests) for _, requests in records) == sample.records


def test_the_content_is_hashed_whole(sample: Any, read: Any) -> None:
    """The content hash covers all bytes, whichever way a format reads them."""
    read(sample.data)
    source = Source(str(read.path))
    for _ in registry.by_name(sample.format)(ReadOptions()).records(source):
        pass
    assert source.drain() == blake2b(sample.data, digest_size=16).hexdigest()
    source.close()


def test_a_bad_record_is_reported_with_its_line_and_reason(sample: Any, read: Any) -> None:
    """One unusable record is skipped and told; the others are read."""
    result = read(sample.broken)
    assert result.rejects.lines == [(sample.bad_line, sample.reason)]
    assert sum(result.rejects.reasons.values()) == result.rejects.count == 1
    assert all(record in sample.records for record in result.records)
    assert result.records


def test_strict_reading_ends_at_the_first_bad_record(sample: Any, read: Any) -> None:
    """Strict mode raises `path:line: reason`."""
    with pytest.raises(InputError) as caught:
        read(sample.broken, strict=True)
    assert str(caught.value) == f"{read.path}:{sample.bad_line}: {sample.reason}"


def test_an_empty_trace_is_an_error(read: Any) -> None:
    """Nothing, or nothing but blank lines, is no trace."""
    for data in (b"", b"\n \n\r\n", gzip.compress(b""), _zstd(b"")):
        with pytest.raises(InputError, match="the trace is empty"):
            read(data)


def test_an_empty_trace_of_a_forced_format_has_no_requests(sample: Any, read: Any) -> None:
    """With the format forced an empty text holds no requests; a binary file is damaged."""
    if sample.text:
        assert read(b"\n\n", sample.format).records == []
    else:
        with pytest.raises(InputError, match="is damaged"):
            read(b"", sample.format)


def test_a_truncated_trace_loses_only_its_last_record(sample: Any, read: Any) -> None:
    """A text that breaks off in a record yields those before it, and reports the cut one."""
    if not sample.text:
        with pytest.raises(InputError, match="is damaged"):
            read(sample.data[:-20])
        return
    data = sample.data.rstrip()
    last = data.rindex(b"\n") + 1
    result = read(data[: (last + len(data)) // 2])
    assert tuple(result.records) == sample.records[:-1]
    line = len(sample.records) + sample.headers
    assert result.reader.cut == f"the last line is cut: line {line} is left out"
    assert not result.rejects.count


def test_strings_as_hash_ids_stay_as_they_are(sample: Any, read: Any) -> None:
    """Hash ids may be strings, decimal or not."""
    if not registry.by_name(sample.format).has_hashes:
        assert all(request.hash_ids is None for request in read(sample.data).requests)
    elif sample.string_ids is not None:  # else the reader numbers blocks itself
        assert read(sample.string_ids).requests[0].hash_ids == ["17", "a0ff", "-3"]


def test_something_else_is_no_trace(read: Any) -> None:
    """What no format recognizes is refused with the formats that may be forced."""
    others = (
        b"hello\n",
        b"{}\n",
        b"[1,2]\n",
        b'{"prompt": 1}\n',
        b"a,b,c\n1,2,3\n",
        b"\xff\xfe\x00",
    )
    for data in others:
        with pytest.raises(InputError, match="no trace format that kvscope knows"):
            read(data)
    with pytest.raises(UsageError, match="unknown trace format 'csv'"):
        read(b"", "csv")


def test_every_format_describes_itself() -> None:
    """Names are unique and summaries fit a line of help."""
    names = [known.name for known in registry.FORMATS]
    assert len(set(names)) == len(names)
    for known in registry.FORMATS:
        assert 0 < len(known.summary) <= 80
        assert known.default_block_size >= 1


def test_keys_are_voted_on() -> None:
    """Neither a stray line nor a broken one decides which keys a trace has."""
    lines = [b'{"a": 1}', b'{"a": {"x": 1}, "b": 2}', b'{"a"', b'{"c": 1, "a": 2}', b"[1]"]
    assert common_keys(b"\n".join(lines)) == {"a"}


def test_keys_of_a_line_longer_than_the_head() -> None:
    """The beginning of one very long line shows its outermost keys, and only those."""
    session = {"id": 'a"b{', "deep": [{"chat_id": 1}], "block_size": 64, "requests": [{"t": 0}]}
    line = json.dumps(session | {"more": ["x" * HEAD_BYTES]}).encode()
    head = line[:HEAD_BYTES]
    assert common_keys(head) == {"id", "deep", "block_size", "requests", "more"}
    assert registry.detect(head, "").name == "weka"


RECIPE = Path(__file__).parents[3] / "docs" / "extend.md"


def test_the_recipe_of_the_documentation_suffices(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and a registry line as docs/extend.md has them make a format."""
    blocks = RECIPE.read_text(encoding="utf-8").split("```python\n")[1:]
    code = next(block.split("```")[0] for block in blocks if "class Toy(" in block)
    (tmp_path / "toy.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    toy = importlib.import_module("toy").Toy
    monkeypatch.setattr(registry, "FORMATS", (*registry.FORMATS, toy))

    data = b"#toy\n12>3\n\nx>1\n5>0"
    result = read(gzip.compress(data))
    assert registry.by_name("toy") is toy
    assert [known.name for known in registry.FORMATS if known.recognizes(data)] == ["toy"]
    assert result.requests == [
        Request(input_tokens=12, output_tokens=3),
        Request(input_tokens=5, output_tokens=0),
    ]
    assert result.rejects.lines == [(4, "expected prompt>answer: 'x>1'")]
    assert result.rejects.reasons == {"expected prompt>answer": 1}


def test_records_that_are_no_requests_are_left_out(read: Any) -> None:
    """Events of tools, payloads, writes, failures and other spans are no bad lines, but counted."""
    event = b'{"schema":"dynamo.request.trace.v1","event_time_unix_ms":1,"event_type":"%b"}'
    result = read(b"\n".join([event % b"tool_end", event % b"request_payload"]))
    assert (result.records, result.rejects.count) == ([], 0)
    assert [*result.reader.left_out.values()] == [1, 1]
    result = read(b'{"timestamp_us":1,"keys":[1]}\n{"timestamp_us":2,"keys":[1],"query_type":"x"}')
    assert ([request.input_tokens for request in result.requests], result.rejects.count) == (
        [16],
        0,
    )
    failed = b'{"startTime":1,"prompt_tokens":5,"completion_tokens":0,"status":"failure"}'
    result = read(b"\n".join([failed, failed.replace(b"failure", b"success"), failed]))
    assert ([each.input_tokens for each in result.requests], result.rejects.count) == ([5], 0)
    assert result.reader.all_notes() == ["left out: 2 calls that failed"]
    span = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":"1"}]}]}]}'
    result = read(span)
    assert (result.records, result.rejects.count) == ([], 0)
    assert result.reader.all_notes() == ["left out: 1 spans without a number of input tokens"]


def test_a_request_that_two_instrumentations_record_is_one(read: Any) -> None:
    """Anthropic's own SDK writes spans, too, within the time of an instrumentation's or around it.

    Other requests stay: later ones, of another length or trace, and parallel ones that one
    instrumentation has recorded.
    """
    spans = [
        ("anthropic", "t", 1, 3, 8), ("llmetry", "t", 0, 4, 8),
        ("llmetry", "t", 5, 9, 8), ("anthropic", "t", 6, 9, 8),
        ("anthropic", "t", 20, 21, 8), ("llmetry", "t", 22, 23, 8), ("llmetry", "t", 22, 24, 8),
        ("anthropic", "u", 22, 23, 8), ("anthropic", "t", 22, 23, 7),
    ]  # fmt: skip

    def line(scope: str, trace: str, start: int, end: int, tokens: int) -> bytes:
        attribute = {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(tokens)}}
        times = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}
        span = {"traceId": trace, **times, "attributes": [attribute]}
        scopes = [{"scope": {"name": scope}, "spans": [span]}]
        return msgspec.json.encode({"resourceSpans": [{"scopeSpans": scopes}]})

    result = read(b"\n".join(line(*span) for span in spans))
    arrivals = [round((each.arrival_s or 0.0) * 1e9) for each in result.requests]
    assert arrivals == [1, 5, 20, 22, 22, 22, 22]
    assert [*result.reader.left_out.items()] == [
        ("second spans of a request, by another instrumentation", 2)
    ]


def test_a_prompt_that_is_logged_names_the_command_that_hashes_it(read: Any) -> None:
    """A gateway's log with prompts is read for its lengths, and a note names `kvscope hash`."""
    call = b'{"startTime":1,"prompt_tokens":5,"completion_tokens":0,"messages":[{"role":"user"}]}'
    result = read(call)
    assert [request.input_tokens for request in result.requests] == [5]
    assert "`kvscope hash`" in result.reader.notes[0]

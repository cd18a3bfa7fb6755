"""What gateways write of their calls: LiteLLM's logs, spans, tables of lengths, logs of engines."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import Any

import pytest

from kvscope.core.errors import InputError
from kvscope.ingest.formats import registry
from tests.ingest.formats.conftest import SAMPLES

_Row = dict[str, Any]

SPEND: _Row = {
    "request_id": "r0", "session_id": "s", "call_type": "acompletion", "status": "success",
    "cache_hit": "None", "model": "m", "model_id": "d", "prompt_tokens": 900,
    "completion_tokens": 40, "total_tokens": 940, "startTime": "2026-05-01T10:00:00.5Z",
    "endTime": "2026-05-01T10:00:02.5Z", "completionStartTime": "2026-05-01T10:00:01.0Z",
    "metadata": json.dumps({"usage_object": {"prompt_tokens_details": {"cached_tokens": 512}}}),
    "request_tags": "[]", "user": "u",
}  # fmt: skip
"""A row of LiteLLM_SpendLogs as litellm 1.110.2 types it: flags and objects in strings."""


def as_lines(*rows: _Row) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_csv(*rows: _Row) -> bytes:
    table = io.StringIO()
    writer = csv.DictWriter(table, [*SPEND], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue().encode()


def test_dynamos_files_hold_each_event_beside_the_time_since_they_were_opened(read: Any) -> None:
    """Its sinks write these, gzip in a member each batch; the times are those of the events."""
    lines = SAMPLES["dynamo"].data.splitlines()
    wrapped = [b'{"timestamp":%d,"event":%b}\n' % (7 * k, line) for k, line in enumerate(lines)]
    plain = read(SAMPLES["dynamo"].data)
    for text in (b"".join(wrapped), b"".join(map(gzip.compress, wrapped))):
        result = read(text)
        assert result.reader.name == "dynamo"
        assert result.requests == plain.requests
        assert (result.rejects.count, result.reader.unread(b"".join(wrapped))) == (0, [])
    other = b'{"timestamp":1,"event":{"type":"x"}}\n'
    assert registry.recognized(other) is None
    (refused,) = read(wrapped[0] + other).rejects.lines
    assert refused == (2, "Object missing required field `event_type`")


@pytest.mark.parametrize("written", [as_lines, as_csv])
def test_spend_logs_are_read_as_lines_and_as_a_table(read: Any, written: Any) -> None:
    cached = SPEND | {"cache_hit": "True"}
    result = read(written(SPEND, cached, SPEND | {"cache_hit": "", "status": ""}))
    first, second = result.requests
    assert (first.input_tokens, first.output_tokens, first.cached_tokens) == (900, 40, 512)
    assert (first.session_id, first.chat_id, first.worker) == ("s", "r0", "d")
    assert (first.ttft_s, first.duration_s, first.user_id) == (0.5, 2.0, "u")
    assert second.arrival_s == first.arrival_s == 1777629600.5
    assert result.rejects.count == 0
    assert result.reader.all_notes() == ["left out: 1 calls answered by LiteLLM's own cache"]


@pytest.mark.parametrize(
    "kind",
    [
        "", "completion", "acompletion", "text_completion", "atext_completion", "responses",
        "aresponses", "anthropic_messages", "aanthropic_messages", "agenerate_content",
        "generate_content_stream", "pass_through_endpoint", "_aresponses_websocket",
    ],
)  # fmt: skip
def test_calls_with_a_prompt_are_requests(read: Any, kind: str) -> None:
    assert len(read(as_lines(SPEND | {"call_type": kind})).requests) == 1


@pytest.mark.parametrize("kind", ["aembedding", "rerank", "atranscription", "call_mcp_tool"])
def test_other_calls_are_left_out_and_counted_by_kind(read: Any, kind: str) -> None:
    result = read(as_lines(*[SPEND | {"call_type": kind}] * 2, SPEND))
    assert len(result.requests) == 1
    assert result.reader.all_notes() == [f"left out: 2 calls of the kind {kind}"]


def spans(*attributes: _Row) -> bytes:
    """Return a line for each span, with the attributes as OTLP has them."""

    def value(plain: object) -> _Row:
        return {"intValue": str(plain)} if isinstance(plain, int) else {"stringValue": plain}

    return as_lines(
        *(
            {
                "spanId": f"{at}", "startTimeUnixNano": f"{at + 1}000000000",
                "attributes": [{"key": k, "value": value(v)} for k, v in each.items()],
            }
            for at, each in enumerate(attributes)
        )
    )  # fmt: skip


def genai(provider: str, inputs: int, read: int, written: int) -> _Row:
    usage = "gen_ai.usage."
    return {
        "gen_ai.provider.name": provider, f"{usage}input_tokens": inputs,
        f"{usage}cache_read.input_tokens": read,
        f"{usage}cache_creation.input_tokens": written,
    }  # fmt: skip


def test_cached_tokens_beside_the_input_are_added_to_it(read: Any) -> None:
    """More of them than of the input show it, for all spans of that provider, also earlier ones."""
    result = read(
        spans(
            genai("anthropic", 900, 100, 0), genai("anthropic", 12, 20_000, 900),
            genai("openai", 2_000, 1_500, 0),
        )
    )  # fmt: skip
    assert [each.input_tokens for each in result.requests] == [1_000, 20_912, 2_000]
    assert [each.cached_tokens for each in result.requests] == [100, 20_000, 1_500]
    (note,) = result.reader.all_notes()
    assert note.startswith("input tokens do not count what was read from the cache")


def test_cached_tokens_within_the_input_are_not_added(read: Any) -> None:
    result = read(spans(genai("anthropic", 900, 100, 0), genai("anthropic", 900, 500, 400)))
    assert [each.input_tokens for each in result.requests] == [900, 900]
    assert result.reader.all_notes() == []


def test_openinference_spans_have_lengths_model_and_session(read: Any) -> None:
    count = "llm.token_count."
    attributes = {
        f"{count}prompt": 700, f"{count}completion": 30, "session.id": "s", "llm.model_name": "m",
        f"{count}prompt_details.cache_read": 512, "user.id": "u",
    }  # fmt: skip
    (request,) = read(spans(attributes, {"openinference.span.kind": "CHAIN"})).requests
    assert (request.input_tokens, request.output_tokens) == (700, 30)
    assert (request.cached_tokens, request.session_id, request.model) == (512, "s", "m")


@pytest.mark.parametrize(
    "header",
    [
        "arrived_at,prefill_tokens,decode_tokens", "timestamp,input_length,output_length",
        "Arrival Time,Prompt Tokens,Completion Tokens", "time,prompt_len,output_len",
    ],
)  # fmt: skip
def test_tables_of_lengths_are_read_whatever_their_columns_are_called(
    read: Any, header: str
) -> None:
    result = read(f"{header},colour\n0.0,4800,500,red\n0.5,4801,501,red\n".encode())
    assert [(x.arrival_s, x.input_tokens, x.output_tokens) for x in result.requests] == [
        (0.0, 4800, 500),
        (0.5, 4801, 501),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[2026-05-01 10:00:00 TP0] Prefill batch. #new-seq: 1, #new-token: 5, #cached-token: 0",
            ("SGLang's log of batches", "--export-metrics-to-file"),
        ),
        (
            "INFO 05-01 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 51.2 tokens/s",
            ("vLLM's log of averages", "KVSCOPE_RECORD"),
        ),
        ("[1,\n2]", ("text that begins with", "kvscope formats")),
        ("when,prompt_tokens,words\n1,2,3", ("the nearest is lengths", "completion_tokens")),
        ('{"request": {"messages": []}, "model": "m"}', ("JSON lines with", "kvscope hash")),
        ('{"timestamp": 1, "input": "hi"}', ("JSON lines with", "kvscope hash")),
        ('{"rid": "r", "request_parameters": "{}"}', ("JSON lines with", "kvscope hash")),
        ('{"context": {}, "span_kind": "LLM"}', ("JSON lines with", "kvscope hash")),
    ],
)
def test_what_is_no_trace_is_told_what_to_do(text: str, words: tuple[str, ...]) -> None:
    """Logs of engines by name; a table's nearest format is a table; chats go to `kvscope hash`."""
    with pytest.raises(InputError) as caught:
        registry.detect(text.encode(), "file")
    message = f"{caught.value}; {caught.value.remedy}"
    assert all(word in message for word in words), message
    assert not message.rstrip().endswith(("also needs", ",", ":"))

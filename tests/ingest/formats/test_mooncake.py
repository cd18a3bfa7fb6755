"""What is special to Bailian's and Mooncake's traces."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import ReadOptions, Request
from kvscope.ingest.source import Source


def test_dynamo_names_are_aliases(read: Any) -> None:
    """input_tokens, output_tokens, created_time and delay_ms mean the usual fields."""
    line = (
        b'{"session_id":"s","input_tokens":9,"output_tokens":2,"created_time":1500,"delay_ms":250}'
    )
    assert read(line).requests == [
        Request(input_tokens=9, output_tokens=2, arrival_s=1.5, delay_s=0.25, session_id="s")
    ]


def test_rows_of_a_session_may_tell_a_delay_in_place_of_a_time(read: Any) -> None:
    """Rows without timestamp or hash_ids are valid; delays are milliseconds."""
    data = (
        b'{"session_id":1,"timestamp":0,"input_length":9,"output_length":2,"hash_ids":[1]}\n'
        b'{"session_id":1,"delay":500,"input_length":20,"output_length":2}\n'
    )
    first, second = read(data).requests
    assert (first.arrival_s, first.delay_s, first.session_id) == (0.0, None, 1)
    assert (second.arrival_s, second.delay_s, second.hash_ids) == (None, 0.5, None)


def test_optional_fields_are_taken(read: Any) -> None:
    """Type, user, turn and block size of a record are kept."""
    line = b'{"input_length":9,"output_length":2,"type":"t","user_id":4,"turn":3,"block_size":64}'
    (request,) = read(line).requests
    assert (request.type, request.user_id, request.turn, request.block_size) == ("t", 4, 3, 64)


def test_missing_outputs_count_as_none_and_are_noted_once(read: Any) -> None:
    """kvcache-simulator's schema has no output lengths."""
    result = read(b'{"input_length":9,"hash_ids":["a"],"block_size":16}\n' * 3)
    assert [request.output_tokens for request in result.requests] == [0, 0, 0]
    assert result.reader.notes == ["output_length is missing in some rows: taken as 0 tokens"]


def test_alias_and_name_must_agree(read: Any) -> None:
    """Two different values for one field are no request."""
    data = (
        b'{"input_length":9,"input_tokens":9,"output_length":1}\n'
        b'{"input_length":9,"input_tokens":8,"output_length":1}\n'
    )
    assert read(data).rejects.lines == [(2, "input_length and input_tokens disagree: 9 and 8")]


@pytest.mark.parametrize("field", [b'"messages":[{"role":"user"}]', b'"text_input":"Hello"'])
def test_prompts_as_text_are_refused_with_the_reason(read: Any, field: bytes) -> None:
    """A trace with prompts in place of lengths is told what kvscope reads."""
    result = read(b'{"timestamp":0,"output_length":1,' + field + b"}")
    reason = "prompts as text, without input_length: kvscope reads hashed traces only"
    assert result.rejects.lines == [(1, reason)]


def test_lines_of_bailian_among_others_are_refused(read: Any) -> None:
    """Their times are in seconds: read as milliseconds, the load would be 1,000 times as high."""
    own = b'{"timestamp":5,"input_length":9,"output_length":1}\n'
    result = read(own + b'{"chat_id":1,"timestamp":6,"input_length":9,"output_length":1}\n' + own)
    reason = "a line with chat_id among others: Qwen-Bailian's, whose times are in s"
    assert result.rejects.lines == [(2, reason)]
    assert [each.arrival_s for each in result.requests] == [0.005, 0.005]


def test_text_beside_lengths_is_ignored(read: Any) -> None:
    """A row with lengths is read, whatever else it carries."""
    line = b'{"input_length":9,"output_length":1,"text_input":"Hello"}'
    assert read(line).requests == [Request(input_tokens=9, output_tokens=1)]


@pytest.mark.parametrize("tokens", [[512, 512, 76], [512], [512, 512], []])
def test_block_tokens_of_full_blocks_are_accepted(read: Any, tokens: list[int]) -> None:
    """Full blocks, the prompt's last one possibly shorter, say nothing new."""
    result = read(_with_block_tokens(tokens))
    assert result.rejects.count == 0
    assert result.requests[0].hash_ids == list(range(len(tokens)))


@pytest.mark.parametrize(
    ("tokens", "block", "expected"),
    [
        ([512, 512, 77], 2, 76),
        ([512, 100], 1, 512),
        ([100, 512], 0, 512),
        ([512, 512, 76, 1], 3, -436),
    ],
)
def test_other_block_tokens_are_refused(
    read: Any, tokens: list[int], block: int, expected: int
) -> None:
    """Blocks of varying length are not what kvscope models; the reason names the block."""
    reason = (
        f"block_tokens must be full blocks but for the prompt's last: block {block} has"
        f" {tokens[block]} tokens, expected {expected} (block_size 512, input_length 1100)"
    )
    if expected < 0:
        reason = "more block_tokens than the prompt has blocks: 4, but 1100 tokens are 3 of 512"
    assert read(_with_block_tokens(tokens)).rejects.lines == [(1, reason)]


def test_block_tokens_follow_the_block_size_in_force(read: Any) -> None:
    """The record's block size counts before the option's, that before 512."""
    options = ReadOptions(block_size=600)
    assert read(_with_block_tokens([600, 500]), options=options).rejects.count == 0
    assert read(_with_block_tokens([600, 500])).rejects.count == 1
    own = _with_block_tokens([1000, 100]).replace(b"{", b'{"block_size":1000,', 1)
    assert read(own, options=options).rejects.count == 0


def test_block_tokens_go_with_hash_ids(read: Any) -> None:
    """As many of the one as of the other."""
    line = b'{"input_length":9,"output_length":1,"hash_ids":[1,2],"block_tokens":[9]}'
    reason = "block_tokens and hash_ids differ in length: 1 and 2"
    assert read(line).rejects.lines == [(1, reason)]


def _with_block_tokens(tokens: list[int]) -> bytes:
    row = {
        "input_length": 1100,
        "output_length": 1,
        "hash_ids": list(range(len(tokens))),
        "block_tokens": tokens,
    }
    return json.dumps(row).encode()


def test_ids_by_parts_and_times_as_strings(read: Any) -> None:
    """Ids that are listed by parts of the prompt follow each other; a string may hold the time."""
    line = (
        b'{"timestamp":"1500","input_length":1600,"output_length":1,'
        b'"hash_ids":{"system":[7,8],"tools":[],"user":["x"]},"delay":2,"tool_wait_ms":3}'
    )
    (request,) = read(line).requests
    assert (request.hash_ids, request.arrival_s, request.delay_s) == ([7, 8, "x"], 1.5, 0.005)
    bad = line.replace(b'"1500"', b'"noon"')
    assert read(bad).rejects.lines == [(1, "expected ms in timestamp: 'noon'")]


ROW = b'{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"input_length":9,"output_length":2}'


@pytest.mark.parametrize(("told", "parent"), [(b"-1", -1), (b'"-1"', -1), (b"null", None)])
def test_a_root_is_told_from_silence(read: Any, told: bytes, parent: int | None) -> None:
    """-1 says that there is no parent, as a number or as a string; null says nothing."""
    line = ROW.replace(b'"parent_chat_id":-1', b'"parent_chat_id":' + told)
    assert read(line).requests[0].parent_chat_id == parent


def test_only_the_chat_id_and_the_lengths_are_mandatory(read: Any) -> None:
    """Time, type, turn and hashes may be missing; unknown fields are ignored."""
    result = read(b'{"chat_id":"a","input_length":9,"output_length":2,"more":[{}]}')
    assert result.rejects.count == 0
    assert result.requests[0].arrival_s is None
    assert result.requests[0].hash_ids is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (ROW.replace(b"chat_id", b"chat", 1), "Object missing required field `chat_id`"),
        (ROW.replace(b":9", b":9.5"), "Expected `int`, got `float` - at `$.input_length`"),
        (ROW.replace(b":2}", b":null}"), "Expected `int`, got `null` - at `$.output_length`"),
        (
            ROW.replace(b"}", b',"hash_ids":[1,2.5]}'),
            "Expected `int | str`, got `float` - at `$.hash_ids[1]`",
        ),
        (ROW.replace(b"0.5", b"1e400"), "Number out of range - at `$.timestamp`"),
        (ROW.replace(b"}", b',"type":"\xff"}'), "text that is not UTF-8"),
    ],
)
def test_reasons_name_the_field_and_what_was_expected(read: Any, line: bytes, reason: str) -> None:
    """A reason is enough to find the defect."""
    assert read(line, "bailian").rejects.lines == [(1, reason)]


def test_hash_ids_of_64_bits_and_more_are_exact(read: Any) -> None:
    """No hash id goes through a float."""
    ids = [2**53 + 1, 2**63, 2**64 - 1, -(2**63)]
    line = ROW.replace(b"}", b',"hash_ids":' + str(ids).encode() + b"}")
    assert read(line).requests[0].hash_ids == ids


def test_bad_lines_keep_their_numbers_in_every_chunk(read: Any) -> None:
    """Of eight megabytes of good lines, and three bad ones."""
    line = b'{"chat_id":1,"input_length":9,"output_length":2,"hash_ids":[1],"pad":"%b"}' % (
        b"x" * 900
    )
    lines = [line] * 8000
    for bad in (0, 4000, 7999):
        lines[bad] = b"{}"
    result = read(b"\n".join(lines) + b"\n", "bailian")
    assert [number for number, _ in result.rejects.lines] == [1, 4001, 8000]
    assert {reason for _, reason in result.rejects.lines} == {
        "Object missing required field `chat_id`"
    }
    assert len(result.requests) == 7997


# Name, format, records, requests, hash ids.
PUBLISHED = [
    ("mooncake_conversation.jsonl.gz", "mooncake", 12_031, 12_031, 288_500),
    ("azure_2023_conv.csv.gz", "lengths", 19_366, 19_366, 0),
    ("weka_agent_sessions.jsonl.gz", "weka", 49, 2_757, 6_400_488),
]


@pytest.mark.parametrize(("name", "known", "records", "requests", "ids"), PUBLISHED)
def test_a_published_trace_reads_without_a_reject(
    read: Any, name: str, known: str, records: int, requests: int, ids: int
) -> None:
    """Every line of a published trace is of its format and usable."""
    path = Path(os.environ.get("KVSCOPE_TRACES", "")) / name
    if not (os.environ.get("KVSCOPE_TRACES") and path.is_file()):
        pytest.skip("KVSCOPE_TRACES names no folder with this trace")
    found = read(path.read_bytes())
    assert registry.detect(Source(str(read.path)).head, str(path)).name == known
    assert found.rejects.count == 0
    assert len(found.records) == records
    assert len(found.requests) == requests
    assert sum(len(request.hash_ids or ()) for request in found.requests) == ids

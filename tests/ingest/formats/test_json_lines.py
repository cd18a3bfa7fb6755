"""JSON lines, one by one and many at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.ingest.formats.bailian import Bailian
from kvscope.ingest.formats.base import LineFormat, ReadOptions
from kvscope.ingest.formats.mooncake import Mooncake

GOOD = (
    b'{"chat_id":1,"input_length":40,"output_length":2,"hash_ids":[1, 2,3]}',
    b'{"chat_id":2,"input_length":40,"output_length":2,"hash_ids":[{"no": "id"}],"timestamp":1.5}',
    b'{"chat_id":"\xc3\xa4","input_length":1,"output_length":0,"more":{"deep":[{},{}]}}',
)
ODD = (
    b"",
    b" \t",
    b"{}",
    b"}",
    b"{",
    b'"}',
    b'{"',
    b"[{}]",
    b"null",
    b"x",
    b"\xff",
    GOOD[0] + GOOD[1],
    GOOD[0] + b",",
    GOOD[0] + b"\r",
    b" " + GOOD[0],
    GOOD[0][:30],
    GOOD[0][30:],
    GOOD[0][:-1],
    GOOD[2].replace(b"{},{}", b"{}"),
    GOOD[2][:-5] + b"{}",
    b'{"chat_id":1,"output_length":2}',
    b'{"chat_id":1,"input_length":"40","output_length":2}',
    b'{"chat_id":1,"input_length":40,"output_length":2,"input_tokens":41}',
    b'{"chat_id":1,"input_length":40,"output_length":2,"more":"}',
)


@pytest.mark.parametrize("chosen", [Bailian, Mooncake])
@given(lines=st.lists(st.sampled_from(GOOD + ODD), max_size=6))
def test_at_once_as_one_by_one(chosen: Any, lines: list[bytes]) -> None:
    """Where lines are taken at once, each by itself is one request, and the same one."""
    if chosen is Mooncake:
        lines = [line.replace(b"chat_id", b"request_id") for line in lines]
    reader = chosen(ReadOptions())
    assert isinstance(reader, LineFormat)
    text = b"\n".join(lines)
    at_once = reader.parse_at_once(text)
    one_by_one = reader._line_by_line(1, text.split(b"\n"))
    if at_once is not None:
        assert not one_by_one.refused
        assert one_by_one.lines == list(range(1, len(at_once) + 1))
        assert [_told(one) for one in one_by_one.requests] == [_told(one) for one in at_once]


@pytest.mark.parametrize("chosen", [Bailian, Mooncake])
def test_plain_lines_are_taken_at_once(chosen: Any) -> None:
    """Those that any program writes, up to a whole chunk of them."""
    reader = chosen(ReadOptions())
    lines = GOOD if chosen is Bailian else [x.replace(b"chat_id", b"request_id") for x in GOOD]
    assert len(reader.parse_at_once(b"\n".join([*lines] * 100))) == 300


def _told(request: Any) -> dict[str, Any]:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return fields | {"hash_ids": bytes(request.hash_ids)}


def test_bad_lines_keep_their_numbers_in_every_chunk(read: Any) -> None:
    """Of eight megabytes of good lines, whose chunks are decoded at once, and three bad ones."""
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

"""JSON lines, one by one and as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.ingest.formats.bailian import Bailian
from kvscope.ingest.formats.base import LineFormat, ReadOptions, Records, RequestColumns
from kvscope.ingest.formats.mooncake import Mooncake
from kvscope.ingest.hash_ids import NO_ID, decoded, keys

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


INTEGERS = ("0", "7", "-1", "123456789012345678", "999999999999999999")
ODD_INTEGERS = ("null", "01", "-", "-0", "1.0", "1e3", '"1"', "9" * 19, "9" * 40, "true", "", "[]")
NUMBERS = (
    "0",
    "0.5",
    "12",
    "-3.25",
    "1719878400.123456",
    "0.1",
    "61.000001",
    "0.30000000000000004",
)
LONG = (  # a division of 16 or more digits would be off by a bit
    "12345678901234567890",
    "37360228.749681994",
    "235265923.78607917",
    "92248777.53978183",
    "0." + "0" * 40 + "1",
)
ODD_NUMBERS = ("1.", ".5", "-0.0", "1e3", "1E-2", "00.5", "null", '"2.5"', "NaN", "+1", "1.5.5")
NAMES = ('"text"', '"search"', '""', '"with space"', '"texts"', '"text"')
ODD_NAMES = ("null", '"\\n"', '"\u00e4"', '"\\u0041"', '"open', "5", '"tab\t"')
HASH_IDS = ("[]", "[1]", "[1,2,3]", "[ 1 , -2 ]", "null", "[18446744073709551615]")
ODD_HASH_IDS = ("[1,]", "[,1]", "[1 2]", "[[1]]", '["a"]', "[1.5]", "[1", "1]", "{}", "[1]]")

BAILIAN = {
    "chat_id": (INTEGERS, ODD_INTEGERS),
    "parent_chat_id": ((*INTEGERS, "null"), ODD_INTEGERS),
    "timestamp": (NUMBERS + LONG, ODD_NUMBERS),
    "input_length": (INTEGERS, ODD_INTEGERS),
    "output_length": (INTEGERS, ODD_INTEGERS),
    "type": (NAMES, ODD_NAMES),
    "turn": ((*INTEGERS, "null"), ODD_INTEGERS),
    "user_id": ((*INTEGERS, "null"), ODD_INTEGERS),
    "hash_ids": (HASH_IDS, ODD_HASH_IDS),
}
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "type", "turn", "hash_ids")
FORMATS: dict[Any, dict[str, Any]] = {
    Bailian: BAILIAN,
    Mooncake: {key: BAILIAN[key] for key in MOONCAKE_KEYS},
}
SPACES = st.sampled_from(["", "", "", " ", "\t ", "\r"])
TIMED = ("input_tokens", "output_tokens", "arrival_s")


@st.composite
def texts(draw: st.DrawFn, chosen: Any, *, odd: bool) -> bytes:
    """Draw lines with the same keys in the same order; `odd` ones may hold anything somewhere."""
    values = FORMATS[chosen]
    always = sorted(chosen.always)
    others = sorted(values.keys() - chosen.always)
    keys = draw(st.permutations(always + draw(st.lists(st.sampled_from(others), unique=True))))
    count = draw(st.integers(1, 4))
    odd_row, odd_key = draw(st.integers(0, count - 1)), draw(st.sampled_from(keys))
    lines = []
    for row in range(count):
        members = []
        for key in keys:
            is_odd = odd and row == odd_row and key == odd_key
            value = draw(st.sampled_from(values[key][is_odd]))
            spaces = [draw(SPACES) for _ in range(4)]
            members.append('{}"{}"{}:{}{}{}'.format(spaces[0], key, *spaces[1:3], value, spaces[3]))
        lines.append(f"{{{','.join(members)}}}{draw(SPACES)}")
    if odd and draw(st.integers(0, 9)) == 0:
        lines[odd_row] = draw(
            st.sampled_from(["", " {}", "{}", lines[0][1:], lines[0][:-1], lines[0] + "x", "[]"])
        )
    return "\n".join(lines).encode()


def same(columns: RequestColumns, records: Records) -> None:
    """Assert that all fields of the requests are those in the columns, and others are missing."""
    requests = records.requests
    assert not records.refused
    assert len(columns) == len(requests)
    known = columns.integers | columns.numbers
    for name in requests[0].__struct_fields__:
        values = [getattr(each, name) for each in requests]
        if name == "hash_ids":
            paths = np.split(columns.ids, columns.starts[1:-1])
            wanted = [keys(decoded(ids) or ()).tolist() for ids in values]
            assert [path.tolist() for path in paths] == wanted
        elif name in columns.names:
            distinct, number = columns.names[name]
            assert [distinct[k] for k in number] == values
            assert distinct == list(dict.fromkeys(values))
        elif name in known:
            assert known[name].tolist() == [NO_ID if each is None else each for each in values]
        else:
            assert values == [None] * len(values)


@pytest.mark.parametrize("chosen", FORMATS)
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_plain_lines_are_read_as_columns(chosen: Any, data: st.DataObject) -> None:
    """Whatever the order of the keys, the spaces between them, and the digits of numbers."""
    text = data.draw(texts(chosen, odd=False))
    reader = chosen(ReadOptions())
    columns = reader.columns_at_once(text, text.count(b"\n") + 1)
    assert columns is not None
    same(columns, reader._line_by_line(1, text.split(b"\n")))


@pytest.mark.parametrize("chosen", FORMATS)
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_odd_lines_are_left_to_msgspec(chosen: Any, data: st.DataObject) -> None:
    """Where one value or line may be anything, the columns are none, or right."""
    text = data.draw(texts(chosen, odd=True))
    reader = chosen(ReadOptions())
    if (columns := reader.columns_at_once(text, text.count(b"\n") + 1)) is not None:
        same(columns, reader._line_by_line(1, text.split(b"\n")))


@pytest.mark.parametrize(
    "text",
    [
        b'{"chat_id":1,"timestamp":1,"input_length":9}',
        b'{"chat_id":1,"timestamp":1,"input_length":9,"output_length":1,"more":1}',
        b'{"chat_id":1,"timestamp":1,"input_length":9,"output_length":1,"turn":1,"turn":2}',
        b'{"chat_id":1,"timestamp":1,"input_length":9,"output_\\u006cength":1}',
        b"[1]",
        b"",
    ],
    ids=["a key is missing", "unknown key", "a key twice", "escaped key", "no object", "nothing"],
)
def test_other_shapes_are_left_to_msgspec(text: bytes) -> None:
    """Each line for itself, so that its defect is named."""
    assert Bailian(ReadOptions()).columns_at_once(text, text.count(b"\n") + 1) is None


def test_many_names_are_left_to_msgspec() -> None:
    """A column of strings is one of few names."""
    line = b'{"chat_id":1,"timestamp":1,"input_length":9,"output_length":1,"type":"%d"}'
    reader = Bailian(ReadOptions())
    few, many = (b"\n".join(line % k for k in range(count)) for count in (64, 65))
    assert reader.columns_at_once(few, few.count(b"\n") + 1) is not None
    assert reader.columns_at_once(many, many.count(b"\n") + 1) is None

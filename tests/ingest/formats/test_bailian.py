"""What the bailian format alone does."""

from __future__ import annotations

from typing import Any

import pytest

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

"""Canonical requests as columns: identifiers as numbers, and records taken whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.ingest.base import BadLine, ReadOptions, Request
from kvscope.ingest.columns import Columns, key
from tests import small_traces


def request(**fields: object) -> Request:
    """A request of 40 and 4 tokens with these fields besides."""
    return Request(**({"input_tokens": 40, "output_tokens": 4} | fields))  # type: ignore[arg-type]


@given(st.integers(-(2**63), 2**64 - 1))
def test_64_bit_integers_keep_apart(number: int) -> None:
    """Signed and unsigned 64-bit ids are themselves, modulo 2^64, as int and as decimal string."""
    assert -(2**63) <= key(number) < 2**63
    assert (key(number) - number) % 2**64 == 0
    if number >= 0:
        assert key(str(number)) == key(number)


@given(st.one_of(st.text(), st.integers(), st.sampled_from(["007", "+7", " 7", "7.0", "٧", ""])))
def test_any_identifier_has_a_key(identifier: int | str) -> None:
    """Whatever stands for an id becomes one signed 64-bit number, always the same."""
    assert -(2**63) <= key(identifier) < 2**63
    assert key(identifier) == key(identifier)


def test_strings_are_told_apart() -> None:
    """Hex ids and spellings of one number are different ids; so are integers beyond 64 bits."""
    told: list[int | str] = [
        "ff",
        "FF",
        "0xff",
        "007",
        "7",
        "٧",
        "",
        str(2**64 + 7),
        2**65,
        -(2**64),
        "9" * 5000,
    ]
    assert len({key(one) for one in told}) == len(told)
    assert key("9f86d081884c7d65") == key("9f86d081884c7d65")
    assert key(2**70) == key(str(2**70))


def test_strings_and_integers_mix_in_one_prompt() -> None:
    """A string among the hash ids changes nothing about the integers beside it."""
    plain = request(hash_ids=[5, 6, 7])
    mixed = request(hash_ids=[5, "6", "abc"])
    huge = request(hash_ids=[2**64 - 1, 5])
    made = small_traces.built([plain, mixed, huge], 16)
    leaves = made.requests["leaf"]
    assert small_traces.path(made, int(leaves[1])) == [5, 6, key("abc")]
    assert small_traces.path(made, int(leaves[2])) == [-1, 5]
    assert made.trie.parent[leaves[0]] == made.trie.parent[leaves[1]]


def test_scoped_ids_mean_something_in_their_session_only() -> None:
    """The same local ids in two sessions are different blocks, in one session the same."""
    trace = [request(hash_ids=[1, 2], scope=name) for name in ("a", "b", "a")]
    leaves = small_traces.built(trace, 16).requests["leaf"]
    assert leaves[0] == leaves[2] != leaves[1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_tokens": 0}, "input tokens must be 1 or more: 0"),
        ({"input_tokens": 2**31}, "input tokens"),
        ({"output_tokens": -1}, "output tokens must be 0 or more: -1"),
        ({"output_tokens": 2**31 - 40}, "output tokens"),
        ({"arrival_s": float("nan")}, "arrival time must be finite"),
        ({"arrival_s": float("inf")}, "arrival time must be finite"),
        ({"turn": 2**31}, "turn must be below"),
        ({"block_size": 0}, "block size must be 1 or more: 0"),
        ({"block_size": 32}, "block size differs within the trace: 32 after 16"),
        ({"hash_ids": [1, 2, 3, 4]}, "4 ids, but 40 tokens are 3 blocks of 16"),
    ],
)
def test_a_bad_request_spoils_its_record_only(fields: dict[str, object], reason: str) -> None:
    """The record is refused with the reason, and none of its requests is added."""
    columns = Columns(512, ReadOptions())
    columns.add((request(block_size=16, chat_id=1),))
    with pytest.raises(BadLine, match=reason):
        columns.add((request(chat_id=2), request(**fields)))
    columns.add((request(chat_id=3),))
    assert len(columns) == 2
    assert columns.arrays()["chat_id"].tolist() == [1, 3]


def test_the_first_record_settles_the_block_size() -> None:
    """What a record says wins over the option, the option over the format's default."""
    for said, option, settled in [(32, 64, 32), (None, 64, 64), (None, None, 512)]:
        columns = Columns(512, ReadOptions(block_size=option))
        columns.add((request(block_size=said),))
        assert columns.block_size == settled


def test_requests_without_a_time_follow_their_predecessor() -> None:
    """A delay counts from the session's last request, no time at all from the line before."""
    trace = [
        request(arrival_s=10.0, session_id="a"),
        request(arrival_s=11.0, session_id="b"),
        request(delay_s=5.0, session_id="a"),
        request(session_id="c"),
    ]
    columns = Columns(16, ReadOptions())
    for one in trace:
        columns.add((one,))
    arrays = columns.arrays()
    assert arrays["arrival_s"].tolist() == [10.0, 11.0, 15.0, 15.0]
    assert list(columns.session_parent) == [-1, -1, 0, -1]
    assert columns.untimed == 2


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 600))
def test_batches_do_not_show(seed: int, count: int) -> None:
    """However many requests gather before they become columns, the columns are the same."""
    rng = np.random.default_rng(seed)
    told = [
        request(
            input_tokens=int(rng.integers(32, 100)),
            hash_ids=rng.integers(0, 3, int(rng.integers(0, 3))).tolist(),
            chat_id=at if rng.random() < 0.9 else f"chat-{at}",
            user_id=None if rng.random() < 0.5 else at % 7,
            type=str(rng.choice(["a", "b"])),
            arrival_s=None if rng.random() < 0.01 else float(at),
        )
        for at in range(count)
    ]
    columns = Columns(16, ReadOptions())
    for one in told:
        columns.add((one,))
    whole = Columns(16, ReadOptions())
    whole.add(told)
    for name, values in columns.arrays().items():
        assert np.array_equal(values, whole.arrays()[name])
    assert columns.chat_id.tolist() == [key(one.chat_id) for one in told]  # type: ignore[arg-type]
    assert columns.blocks.tolist() == [len(one.hash_ids or ()) for one in told]
    assert (columns.unhashed, columns.short) == (whole.unhashed, whole.short)

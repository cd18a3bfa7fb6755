"""Turns of conversations, and places of reuse in the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope.characterize.spatial as space
from kvscope.characterize import history
from kvscope.characterize.distributions import Windows
from kvscope.characterize.history import load_history, load_sizes
from kvscope.characterize.spatial import DECILES, decile_histogram, heat_map, start_spatial
from kvscope.characterize.turns import NextTurn, TurnCount, next_turns, turns
from tests.characterize.tiny import CHAT_1, CHAT_2, REQUESTS, SEARCH_1, lengths_only, tiny_store


def test_turns_per_conversation() -> None:
    """Three conversations have one turn, one has two."""
    with tiny_store() as (store, trace):
        found = turns(store, trace)
    assert found is not None
    assert found.conversations == 4
    assert found.histogram == (TurnCount(1, 3), TurnCount(2, 1))
    assert found.single_turn_share == 3 / 4
    assert (found.turns.mean, found.turns.p50, found.turns.p80, found.turns.max) == (1.25, 1, 2, 2)


def test_turns_by_user() -> None:
    """User 1 has conversations of two and one turns, user 2 two of one."""
    with tiny_store() as (store, trace):
        found = turns(store, trace)
    assert found is not None
    assert found.users is not None
    assert found.users.users == 2
    assert (found.users.mean.mean, found.users.mean.p50, found.users.mean.max) == (1.25, 1, 1.5)
    assert found.users.deviation is not None
    assert found.users.deviation.p50 == 0
    assert found.users.deviation.max == pytest.approx(0.5**0.5)


def test_next_turns_by_category() -> None:
    """Only r0 is continued, after 10 s; so r4, at the end, is the one that is not settled."""
    with tiny_store() as (store, trace):
        found = next_turns(trace, load_history(store, trace))
    assert found is not None
    assert found.settle_s == 10
    assert {row.category: row.next_turn for row in found.by_category} == {
        CHAT_1: NextTurn(2, 1 / 2, 2, 1 / 2),
        CHAT_2: NextTurn(1, 0, 1, 0),
        SEARCH_1: NextTurn(2, 0, 1, 0),
    }
    assert found.overall == NextTurn(5, 1 / 5, 4, 1 / 4)
    assert found.after_first_turn == NextTurn(4, 1 / 4, 3, 1 / 3)
    assert found.after_later_turns == NextTurn(1, 0, 1, 0)


def test_next_turns_over_time() -> None:
    """A window that reaches into the last 10 s is not settled."""
    with tiny_store() as (store, trace):
        found = next_turns(trace, load_history(store, trace), Windows(30.0, 4))
    assert found is not None
    rows = [(r.start_s, r.category, r.requests, r.probability, r.settled) for r in found.over_time]
    assert rows == [
        (0, CHAT_1, 1, 1, True),
        (30, CHAT_1, 1, 0, True),
        (0, CHAT_2, 1, 0, True),
        (0, SEARCH_1, 1, 0, True),
        (90, SEARCH_1, 1, 0, False),
    ]


def test_turns_need_a_lineage_and_no_hashes() -> None:
    """Conversations can be known without block hashes, but not without a lineage."""
    with lengths_only("given") as (store, trace):
        found = turns(store, trace)
        assert found is not None
        assert (found.conversations, found.users) == (4, None)
        assert next_turns(trace, load_history(store, trace)) is not None
    with lengths_only("none") as (store, trace):
        assert turns(store, trace) is None
        assert next_turns(trace, load_history(store, trace)) is None


def test_what_is_asked_just_in_time_is_settled() -> None:
    """The trace ends at 100 s and turns follow within 10 s: what arrives by 90 s is settled."""
    columns = {**REQUESTS, "arrival_s": [0.0, 10.0, 85.0, 90.0, 100.0]}
    with tiny_store(columns) as (store, trace):
        found = next_turns(trace, load_history(store, trace), Windows(10.0, 10))
    assert found is not None
    assert found.settle_s == 10
    assert (found.overall.requests, found.overall.settled_requests) == (5, 4)
    settled = {row.start_s: row.settled for row in found.over_time}
    assert settled == {0: True, 10: True, 80: True, 90: False}


@pytest.mark.parametrize("at_once", [1 << 20, 2])
def test_what_is_settled_is_the_p90_of_delays(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten turns after 1, 2, … 10 s: nine of them within 9 s, however few are read at a time."""
    numbers = list(range(11))
    columns = {name: values[:1] * len(numbers) for name, values in REQUESTS.items()} | {
        "request": numbers,
        "arrival_s": [float(k * (k + 1) // 2) for k in numbers],
        "parent": [None, *numbers[:-1]],
    }
    monkeypatch.setattr(history, "AT_ONCE", at_once)
    with tiny_store(columns) as (store, trace):
        for work in (None, tmp_path):
            found = next_turns(trace, load_history(store, trace, work))
            assert found is not None
            assert found.settle_s == 9


def test_a_next_turn_of_an_unsettled_request_counts_only_among_all() -> None:
    """One conversation, turns after 10, 9, … 1 s: what arrives after 46 s of 55 is not settled."""
    numbers = list(range(11))
    columns = {name: values[:1] * len(numbers) for name, values in REQUESTS.items()} | {
        "request": numbers,
        "arrival_s": [float(55 - (10 - k) * (11 - k) // 2) for k in numbers],
        "parent": [None, *numbers[:-1]],
    }
    with tiny_store(columns) as (store, trace):
        found = next_turns(trace, load_history(store, trace))
    assert found is not None
    assert found.settle_s == 9
    assert found.overall == NextTurn(11, 10 / 11, 7, 1.0)


BlockPath = tuple[int, ...]


def test_spatial_by_hand() -> None:
    """Eleven lookups: three find b1 in a first tenth, two b2 in a sixth, one of them in a third.

    r4's b1 holds its last token, so it is computed again.
    """
    with tiny_store() as (store, trace):
        found = start_spatial(
            store, trace, None, load_sizes(store, trace), load_history(store, trace)
        ).result()
    assert found is not None
    assert found.overall is not None
    assert found.overall[0][0] == 3 / 11  # the first tenth
    assert found.overall[0][9] == 5 / 11  # everything
    assert found.overall[2][0] == 1 / 11  # the third tenth
    assert found.overall[2][3] == 2 / 11  # from the third to the sixth
    assert found.overall[9] == (0,) * 10
    assert found.multi_turn is not None
    assert found.multi_turn[0][9] == 2 / 4  # r1; b4 was output, which has no position
    assert found.single_turn is not None
    assert found.single_turn[0][9] == 3 / 7


def test_prefix_depth() -> None:
    """Blocks hit are 0, 3, 1, 2, 0, of prompts of 9, 17, 8, 9 and 4 tokens."""
    with tiny_store() as (store, trace):
        found = start_spatial(
            store, trace, None, load_sizes(store, trace), load_history(store, trace)
        ).result()
    assert found is not None
    everything, single, multi = found.prefix_depth
    assert (everything.turns, single.turns, multi.turns) == ("all", "single", "multi")
    assert (everything.hit_blocks.mean, everything.hit_blocks.p50) == (1.2, 1)
    assert everything.hit_blocks.max == 3
    assert everything.prompt_share.p80 == 12 / 17
    assert everything.prompt_share.max == 8 / 9
    assert multi.prompt_share.mean == 12 / 17
    assert single.prompt_share.mean == pytest.approx((0 + 4 / 8 + 8 / 9 + 0) / 4)


def slow_map(
    paths: list[BlockPath], full: list[int], hittable: list[int], counted: list[bool]
) -> list[list[float]] | None:
    """Return the heat map by its definition: one cache per offset and stride."""
    lookups = sum(f for f, c in zip(full, counted, strict=True) if c)
    if not lookups:
        return None
    rates = []
    for offset in range(DECILES):
        row = []
        for stride in range(1, DECILES + 1):
            cache: set[BlockPath] = set()
            hits = 0
            for path, blocks, within, counts in zip(paths, full, hittable, counted, strict=True):
                prefixes = [path[: depth + 1] for depth in range(blocks)]
                hits += counts * sum(prefix in cache for prefix in prefixes[:within])
                cache |= {
                    prefix
                    for depth, prefix in enumerate(prefixes)
                    if offset * blocks <= DECILES * depth < (offset + stride) * blocks
                }
            row.append(hits / lookups)
        rates.append(row)
    return rates


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=14),
            st.booleans(),  # the last block is partial
            st.booleans(),  # the last token is the last full block's
            st.booleans(),  # a later turn
        ),
        min_size=1,
        max_size=10,
    )
)
def test_kernel_against_caches(
    requests: list[tuple[list[int], bool, bool, bool]],
) -> None:
    """One pass over masks gives what a hundred caches give, compiled or not."""
    paths = [tuple(path) for path, *_ in requests]
    full = [len(path) - partial for path, partial, *_ in requests]
    hittable = [f - last if f else 0 for f, (_, _, last, _) in zip(full, requests, strict=True)]
    multi = [later for *_, later in requests]

    block_of: dict[BlockPath, int] = {(): 0}
    parent = [0]
    for path in paths:
        for depth in range(len(path)):
            if path[: depth + 1] not in block_of:
                block_of[path[: depth + 1]] = len(parent)
                parent.append(block_of[path[:depth]])
    columns = (
        np.array(parent, dtype=np.int32),
        np.array([block_of[path] for path in paths], dtype=np.int32),
        np.array([len(path) for path in paths], dtype=np.int32),
        np.array(full, dtype=np.int32),
        np.array(hittable, dtype=np.int32),
        np.array(multi, dtype=np.bool_),
    )
    counts = decile_histogram(*columns)
    with pytest.MonkeyPatch.context() as patched:
        kernel: Any = space._count_by_decile  # its source, run as it is
        patched.setattr(space, "_count_by_decile", kernel.py_func)
        assert (counts == decile_histogram(*columns)).all()
    for found, counted in (
        (heat_map(counts.sum(axis=0)), [True] * len(paths)),
        (heat_map(counts[0]), [not later for later in multi]),
        (heat_map(counts[1]), multi),
    ):
        expected = slow_map(paths, full, hittable, counted)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert [list(row) for row in found] == expected

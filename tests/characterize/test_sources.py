"""Sources of reuse, and distributions of weighted values."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.characterize import distributions
from kvscope.characterize.distributions import Weighted, describe, quantiles
from kvscope.characterize.history import load_history
from kvscope.characterize.sources import skew, sources
from kvscope.core import disk_columns
from tests.characterize.tiny import REQUESTS, one_request, tiny_store


def test_sources() -> None:
    """Of seven reused blocks three stay in the conversation, one with the user, three cross."""
    with tiny_store() as (store, trace):
        found = sources(store, trace, load_history(store, trace))
    assert found is not None
    assert found.reused_blocks == 7
    assert found.same_conversation_share == 3 / 7
    assert found.same_user_share == 1 / 7
    assert found.other_share == 3 / 7


def test_heat_map() -> None:
    """User 1 reuses five blocks, four of them its own; user 2 reuses two of user 1's."""
    with tiny_store() as (store, trace):
        found = sources(store, trace, load_history(store, trace))
    assert found is not None
    cells = [(cell.source_user, cell.reuser_user, cell.blocks) for cell in found.heat_map]
    assert cells == [(1, 1, 4), (2, 1, 1), (1, 2, 2)]
    assert [(cell.source_rank, cell.reuser_rank) for cell in found.heat_map] == [
        (1, 1),
        (2, 1),
        (1, 2),
    ]


def test_heat_map_beyond_the_top_users() -> None:
    """Touches of users that are not among the top ones stay in the map, without a rank."""
    with tiny_store() as (store, trace):
        rows = store.rows("characterize/user_heat_map", trace_id=trace.trace_id, top=1)
    assert [(row["source_rank"], row["source_user"], row["blocks"]) for row in rows] == [
        (1, 1, 4),
        (None, None, 1),
    ]


def test_sources_without_users_and_lineage() -> None:
    """What the trace does not tell is None, and all reuse is by others."""
    with tiny_store(has_users=False, lineage="none") as (store, trace):
        found = sources(store, trace, load_history(store, trace))
    assert found is not None
    assert (found.same_conversation_share, found.same_user_share) == (None, None)
    assert found.heat_map == ()


def test_skew_of_blocks() -> None:
    """Five cacheable blocks are reused 4, 2, 1, 0 and 0 times; half a block counts half."""
    with tiny_store() as (store, trace):
        found = skew(store, trace)
    assert found is not None
    assert found.cacheable_blocks == 5
    assert found.reused_block_share == 3 / 5
    shares = {at.top_share: at.share for at in found.reuse}
    assert shares[0.1] == found.reuse_from_top_10_percent == pytest.approx(0.5 * 4 / 7)
    assert shares[0.2] == pytest.approx(4 / 7)
    assert shares[0.5] == pytest.approx((4 + 2 + 0.5) / 7)


def test_skew_of_users() -> None:
    """User 1 has five of six hits and three of five requests: 90 % of either takes both users."""
    with tiny_store() as (store, trace):
        found = skew(store, trace)
    assert found is not None
    assert found.users is not None
    assert found.users.users == 2
    assert {at.top_share: at.share for at in found.users.hits}[0.5] == pytest.approx(5 / 6)
    assert found.users.share_making_90_percent_of_hits == 1.0
    assert found.users.share_making_90_percent_of_requests == 1.0


def test_skew_without_reuse() -> None:
    """No reuse has no skew, but the blocks are still counted."""
    with one_request() as (store, trace):
        found = skew(store, trace)
        assert sources(store, trace, load_history(store, trace)) is None
    assert found is not None
    assert (found.cacheable_blocks, found.reused_block_share, found.reuse) == (2, 0, ())
    assert found.reuse_from_top_10_percent is None
    assert found.users is not None
    assert found.users.share_making_90_percent_of_hits is None


def test_ninety_percent_may_be_reached_exactly() -> None:
    """Nine of ten requests and hits are user 1's: that user alone makes 90 % of both."""
    columns = {name: [values[0]] * 10 for name, values in REQUESTS.items() if name != "parent"} | {
        "request": list(range(10)),
        "arrival_s": [float(at) for at in range(10)],
        "user_id": [1] * 9 + [2],
        "ideal_blocks": [1] * 10,
    }
    with tiny_store(columns) as (store, trace):
        found = skew(store, trace)
    assert found is not None
    assert found.users is not None
    assert found.users.share_making_90_percent_of_hits == 1 / 2
    assert found.users.share_making_90_percent_of_requests == 1 / 2


def test_nobody_has_no_rank() -> None:
    """Requests without a user reuse most, and take no place on the heat map."""
    columns = {**REQUESTS, "user_id": [1, None, None, 1, 2]}
    with tiny_store(columns) as (store, trace):
        rows = store.rows("characterize/user_heat_map", trace_id=trace.trace_id, top=2)
    assert {(row["reuser_user"], row["reuser_rank"]) for row in rows} == {(1, 1), (2, 2)}


ITEMS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 2)), max_size=20)


@given(ITEMS, st.sampled_from([1, 3, 100]))
def test_against_the_values_written_out(items: list[tuple[int, int, int]], at_once: int) -> None:
    """Weights mean repetition: quantiles, means and CDFs equal those of the repeated values."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            distributions, "stretches", partial(disk_columns.stretches, at_once=at_once)
        )
        check_values(sorted(items))


def check_values(items: list[tuple[int, int, int]]) -> None:
    """Compare with Python's lists."""
    of = Weighted(
        np.array([value for value, _, _ in items], dtype=np.float64),
        np.array([weight for _, weight, _ in items], dtype=np.int64),
    )
    group = np.array([g for *_, g in items], dtype=np.int64).__getitem__
    grid = np.array([0.5, 3.0, 7.5])
    overall, by_group = describe(of, group, ["0", "1", "2"], grid)
    described = {each.category: each for each in [*by_group, *([overall] if overall else [])]}
    for g in (0, 1, 2, None):
        written = [
            float(value)
            for value, weight, of_g in items
            if g in (None, of_g)
            for _ in range(weight)
        ]
        known = described.pop(None if g is None else str(g), None)
        if not written:
            assert known is None
            assert g is None or np.isnan(quantiles(of, group, 3, np.array([50]))[g, 0])
            continue
        assert known is not None
        assert known.weight == len(written)
        at = known.summary
        for percent, value in ((50, at.p50), (80, at.p80), (90, at.p90), (99, at.p99)):
            assert value == written[-(-percent * len(written) // 100) - 1]
        assert g is None or quantiles(of, group, 3, np.array([50]))[g, 0] == at.p50
        assert at.max == written[-1]
        assert at.mean == pytest.approx(math.fsum(written) / len(written))
        assert known.cdf == tuple(sum(v <= t for v in written) / len(written) for t in grid)
    assert not described


@pytest.mark.parametrize("length", [0, 1, 2, 1000])
@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_equal_values_stay_in_order(length: int, dtype: type[np.generic]) -> None:
    """Whether none, some or all are equal, zeros of either sign among them."""
    generator = np.random.default_rng(1)
    for distinct in (1, 2, 30, 10**6):
        values = generator.integers(-distinct, distinct, length).astype(dtype)
        values *= generator.choice(np.array([-1, 1], dtype=dtype), length)
        order = disk_columns.stable_order(values)
        assert np.array_equal(order, np.argsort(values, kind="stable"))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 5), max_size=9), min_size=1, max_size=5), st.integers(1, 9))
def test_columns_are_sorted_on_disk_as_in_memory(keys: list[list[int]], at_once: int) -> None:
    """Any number of parts, ties between them, and any slice of the result."""
    place = iter(range(100))
    parts = [
        {
            "key": np.array(part, dtype=np.float64),
            "place": np.array([next(place) for _ in part], dtype=np.int64),
        }
        for part in keys
    ]
    known = disk_columns.sorted_columns(parts, "key")
    with TemporaryDirectory() as folder:
        found = disk_columns.sorted_on_disk(parts, "key", Path(folder), at_once)
        assert not [*Path(folder).iterdir()]
        for name, column in known.items():
            assert len(found[name]) == len(column)
            for part in (slice(None), slice(1, 3), *disk_columns.stretches(len(column), 2)):
                assert np.array_equal(found[name][part], column[part])
                assert not len(column) or found[name][part].dtype == column.dtype

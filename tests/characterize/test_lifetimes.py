from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.characterize.distributions import Summary
from kvscope.characterize.lifetimes import WindowLifetime, _level_for, lifetimes, working_set
from kvscope.characterize.windows import Windows
from tests.characterize.tiny import (
    BLOCKS,
    CHAT_1,
    CHAT_2,
    REQUESTS,
    SEARCH_1,
    one_request,
    tiny_store,
)


def test_lifetimes() -> None:
    """b1 lives 100 s, b2 40 s, b4 10 s; b5 and b6 are touched once; b3 was never cacheable."""
    with tiny_store() as (store, trace):
        found = lifetimes(store, trace)
    assert found is not None
    assert found.overall is not None
    assert (found.overall.blocks, found.overall.never_reused_share) == (5, 2 / 5)
    assert found.overall.lifetime_s == Summary(mean=30, p50=10, p80=40, p90=100, p99=100, max=100)
    assert found.overall.cdf == pytest.approx(
        [sum(life <= t for life in (0, 0, 10, 40, 100)) / 5 for t in found.at_s]
    )


def test_lifetimes_by_category() -> None:
    """A block counts for the category of the request that touched it first."""
    with tiny_store() as (store, trace):
        found = lifetimes(store, trace)
    assert found is not None
    rows = [
        (r.category, r.blocks, r.never_reused_share, r.lifetime_s.p50) for r in found.by_category
    ]
    assert rows == [(CHAT_1, 3, 0, 40), (CHAT_2, 1, 1, 0), (SEARCH_1, 1, 1, 0)]


def test_lifetimes_over_time() -> None:
    """Means by the window and category of the first touch."""
    with tiny_store() as (store, trace):
        found = lifetimes(store, trace, windows=Windows(10.0, 10))
    assert found is not None
    assert found.over_time == (
        WindowLifetime(0, CHAT_1, 3, 50),
        WindowLifetime(10, CHAT_2, 1, 0),
        WindowLifetime(20, SEARCH_1, 1, 0),
    )


def test_working_set() -> None:
    """Alive are b1, b2 and b4 for 10 s, b1 and b2 until 40 s, then b1 alone until 100 s."""
    with tiny_store() as (store, trace):
        found = working_set(store, trace)
    assert found is not None
    assert found.peak_blocks == 3
    assert found.mean_blocks == (3 * 10 + 2 * 30 + 1 * 60) / 100
    assert found.p99_blocks == 3
    assert found.at_s == tuple(float(second) for second in range(100))
    # A stretch shows its peak, so the one that begins as b4 dies shows two.
    assert found.blocks == (3,) * 10 + (2,) * 30 + (1,) * 60


def test_one_request_lives_no_time() -> None:
    """Without a span nothing is alive, and blocks live 0 s."""
    with one_request() as (store, trace):
        live, lives = working_set(store, trace), lifetimes(store, trace)
    assert live is not None
    assert (live.peak_blocks, live.mean_blocks, live.p99_blocks, live.blocks) == (0, 0, 0, (0,))
    assert lives is not None
    assert lives.overall is not None
    assert (lives.overall.blocks, lives.overall.never_reused_share) == (2, 1)


def test_working_set_at_p99() -> None:
    """Two blocks are alive for 1.5 % of the time, so p99 is two, and p98 would be one."""
    columns = {**REQUESTS, "arrival_s": [0.0, 1.5, 3.0, 4.0, 100.0]}
    blocks = {
        **BLOCKS,
        "first_request": [0, 0, None, 4, 4, 4],
        "last_request": [4, 1, None, 4, 4, 4],
    }
    with tiny_store(columns, blocks) as (store, trace):
        found = working_set(store, trace)
    assert found is not None
    assert (found.peak_blocks, found.p99_blocks) == (2, 2)
    assert found.mean_blocks == pytest.approx(1 + 0.015)


@given(
    percent=st.sampled_from([1, 50, 90, 99, 100]),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 2, 7, 1023, 1024, 10**6, 10**9])),
        min_size=1,
        max_size=20,
    ),
)
def test_a_level_is_the_quantile_of_its_times(percent: int, steps: list[tuple[int, int]]) -> None:
    """However far levels lie apart; times without length do not count."""
    lasts, levels = zip(*steps, strict=True)
    at_s = np.concatenate([[0.0], np.cumsum(lasts)]).astype(np.float64)
    level = np.array([*levels, levels[-1]])
    at_each = sorted(each for last, each in steps for _ in range(last))
    expected = at_each[-(-percent * len(at_each) // 100) - 1] if at_each else min(levels)
    assert _level_for(percent, at_s, level) == expected

"""Reuse gaps and lifetimes of blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.characterize.distributions import Summary, Weighted, Windows
from kvscope.characterize.history import History, load_history
from kvscope.characterize.lifetimes import (
    WindowLifetime,
    _counts,
    _level_for,
    _observed_until,
    lifetimes,
    reuse_gaps,
    reuse_hazard,
    working_set,
)
from tests.characterize.tiny import (
    BLOCKS,
    CHAT_1,
    CHAT_2,
    REQUESTS,
    SEARCH_1,
    one_request,
    tiny_store,
)


def test_reuse_gaps() -> None:
    """Gaps weigh by blocks and belong to the category of the request that touched last."""
    with tiny_store() as (store, trace):
        found = reuse_gaps(trace, load_history(store, trace))
    assert found is not None
    by_category = {row.category: (row.reused_blocks, row.gap_s) for row in found.by_category}
    assert by_category == {
        # r0's three blocks after 10 s, r3's one after 60 s
        CHAT_1: (4, Summary(mean=22.5, p50=10, p80=60, p90=60, p99=60, max=60)),
        CHAT_2: (2, Summary(mean=20, p50=10, p80=30, p90=30, p99=30, max=30)),
        SEARCH_1: (1, Summary(mean=20, p50=20, p80=20, p90=20, p99=20, max=20)),
    }
    assert found.overall is not None
    assert found.overall.reused_blocks == 7
    assert found.overall.gap_s == Summary(mean=150 / 7, p50=10, p80=30, p90=60, p99=60, max=60)


def test_reuse_gap_cdf() -> None:
    """The CDF at t is the share of reused blocks with a gap of at most t, and ends at 1."""
    with tiny_store() as (store, trace):
        found = reuse_gaps(trace, load_history(store, trace))
    assert found is not None
    assert found.overall is not None
    gaps = [10, 10, 10, 10, 20, 30, 60]
    expected = [sum(gap <= t for gap in gaps) / 7 for t in found.at_s]
    assert found.overall.cdf == pytest.approx(expected)
    assert (found.at_s[-1], found.overall.cdf[0], found.overall.cdf[-1]) == (100, 0, 1)


def test_hazard_by_hand() -> None:
    """At nine seconds, r0's three blocks are about to be reused; at 0 s nobody's are."""
    with tiny_store() as (store, trace):
        found = reuse_hazard(trace, load_history(store, trace))
    assert found is not None
    chat = found.by_category[0]
    assert chat.category == CHAT_1
    at = next(k for k, t in enumerate(found.at_s) if 9 <= t < 10)
    # Touches by chat 1: b1 b2 b4 by r0, b1 by r3 (again after 60 s), b2 by r3 (never again).
    assert (chat.at_risk_blocks[0], chat.probability[0]) == (5, 0)
    assert chat.at_risk_blocks[at] == 5
    # The next point is more than a second away: three of five in that time, so fewer in a second.
    observed_s = found.at_s[at + 1] - found.at_s[at]
    assert observed_s > 1
    assert chat.probability[at] == pytest.approx(1 - (2 / 5) ** (1 / observed_s))
    later = next(k for k, t in enumerate(found.at_s) if t > 60)
    assert chat.at_risk_blocks[later] == 0  # r3's b2 is 60 s old when the trace ends
    assert chat.probability[later] is None


def test_nothing_reused() -> None:
    """One request has no gaps, and no second in which its blocks could be seen reused."""
    with one_request() as (store, trace):
        gaps, hazard = (
            reuse_gaps(trace, load_history(store, trace)),
            reuse_hazard(trace, load_history(store, trace)),
        )
    assert gaps is not None
    assert hazard is not None
    assert (gaps.overall, gaps.by_category) == (None, ())
    assert (hazard.overall, hazard.by_category) == (None, ())


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    data=st.data(),
)
def test_hazard_against_every_touch(arrivals: list[int], data: st.DataObject) -> None:
    """The counts equal those of a walk over every single touch, one grid point at a time."""
    arrival_s = np.array(sorted(arrivals)) / 4
    arrival_s -= arrival_s[0]
    requests = len(arrival_s)
    pairs = [(p, r) for r in range(requests) for p in range(r)]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    runs = sorted(chosen, key=lambda run: arrival_s[run[1]] - arrival_s[run[0]])
    lasts = data.draw(st.lists(st.integers(0, requests - 1), max_size=6))
    category = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=requests, max_size=requests))
    )
    prev = np.array([p for p, _ in runs], dtype=np.int32)
    request = np.array([r for _, r in runs], dtype=np.int32)
    history = History(
        span_s=float(arrival_s[-1]),
        categories=("a", "b"),
        arrival_s=arrival_s,
        category=category.astype(np.int16),
        continued=np.zeros(requests, dtype=np.bool_),
        settle_s=0.0,
        request=request,
        prev=prev,
        gap=Weighted(arrival_s[request] - arrival_s[prev], np.full(len(runs), 2)),
        first=np.array(lasts, dtype=np.int32),
        last=np.array(lasts, dtype=np.int32),
        life=Weighted(np.zeros(len(lasts)), np.full(len(lasts), 3)),
    )
    grid = np.array([0.25, 0.5, 1.0, 1.75, 3.0])
    until = _observed_until(grid)
    assert until.tolist() == [1.25, 1.5, 2.0, 3.0, 4.0]
    at_risk, reused = _counts(history, grid, until)

    touches = [(p, arrival_s[r] - arrival_s[p], 2) for p, r in runs]
    touches += [(q, np.inf, 3) for q in lasts]
    for k in (0, 1):
        for j, t in enumerate(grid):
            seen = [
                (gap, blocks)
                for q, gap, blocks in touches
                if category[q] == k and gap > t and history.span_s - arrival_s[q] >= until[j]
            ]
            assert at_risk[k, j] == sum(blocks for _, blocks in seen)
            assert reused[k, j] == sum(blocks for gap, blocks in seen if gap <= until[j])


def test_lifetimes() -> None:
    """b1 lives 100 s, b2 40 s, b4 10 s; b5 and b6 are touched once; b3 was never cacheable."""
    with tiny_store() as (store, trace):
        found = lifetimes(trace, load_history(store, trace))
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
        found = lifetimes(trace, load_history(store, trace))
    assert found is not None
    rows = [
        (r.category, r.blocks, r.never_reused_share, r.lifetime_s.p50) for r in found.by_category
    ]
    assert rows == [(CHAT_1, 3, 0, 40), (CHAT_2, 1, 1, 0), (SEARCH_1, 1, 1, 0)]


def test_lifetimes_over_time() -> None:
    """Means by the window and category of the first touch."""
    with tiny_store() as (store, trace):
        found = lifetimes(trace, load_history(store, trace), windows=Windows(10.0, 10))
    assert found is not None
    assert found.over_time == (
        WindowLifetime(0, CHAT_1, 3, 50),
        WindowLifetime(10, CHAT_2, 1, 0),
        WindowLifetime(20, SEARCH_1, 1, 0),
    )


def test_working_set() -> None:
    """Alive are b1, b2 and b4 for 10 s, b1 and b2 until 40 s, then b1 alone until 100 s."""
    with tiny_store() as (store, trace):
        found = working_set(trace, load_history(store, trace))
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
        live, lives = (
            working_set(trace, load_history(store, trace)),
            lifetimes(trace, load_history(store, trace)),
        )
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
        found = working_set(trace, load_history(store, trace))
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

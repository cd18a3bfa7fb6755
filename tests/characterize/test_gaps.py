from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.characterize.distributions import Summary, Weighted
from kvscope.characterize.gaps import _counts, _observed_until, reuse_gaps, reuse_hazard
from kvscope.characterize.history import History
from tests.characterize.tiny import CHAT_1, CHAT_2, SEARCH_1, one_request, tiny_store


def test_reuse_gaps() -> None:
    """Gaps weigh by blocks and belong to the category of the request that touched last."""
    with tiny_store() as (store, trace):
        found = reuse_gaps(store, trace)
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
        found = reuse_gaps(store, trace)
    assert found is not None
    assert found.overall is not None
    gaps = [10, 10, 10, 10, 20, 30, 60]
    expected = [sum(gap <= t for gap in gaps) / 7 for t in found.at_s]
    assert found.overall.cdf == pytest.approx(expected)
    assert (found.at_s[-1], found.overall.cdf[0], found.overall.cdf[-1]) == (100, 0, 1)


def test_hazard_by_hand() -> None:
    """At nine seconds, r0's three blocks are about to be reused; at 0 s nobody's are."""
    with tiny_store() as (store, trace):
        found = reuse_hazard(store, trace)
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
        gaps, hazard = reuse_gaps(store, trace), reuse_hazard(store, trace)
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

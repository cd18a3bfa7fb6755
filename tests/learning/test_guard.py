"""The rule by which a policy goes over to another candidate, and back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.learning.guard import (
    FALLBACK,
    INTERVAL_REQUESTS,
    LEAST_INTERVALS,
    LOSS_INTERVALS,
    Guard,
    _Intervals,
    interval_blocks,
)
from kvscope.learning.offline.shadow_replays import interval_ends

EVEN = [100.0, 100.0, 100.0]
GOOD = [100.0, 90.0, 95.0]  # the second is the best, the third is better than the fallback


def judged(*rows: list[float], guard: Guard | None = None) -> list[int]:
    """Return the candidate in force after each interval, by what each computed in it."""
    guard = guard or Guard(len(rows[0]))
    after = []
    for row in rows:
        before = guard.now
        assert guard.judge(row) == (guard.now != before)
        after.append(guard.now)
    return after


def test_the_fallback_rules_until_there_is_evidence() -> None:
    """The first eight intervals tell nothing, and where all are alike there is never any."""
    assert judged(*[GOOD] * LEAST_INTERVALS) == [FALLBACK] * (LEAST_INTERVALS - 1) + [1]
    assert judged(*[EVEN] * 50) == [FALLBACK] * 50


def test_the_one_that_gains_most_is_taken() -> None:
    """Also instead of another one that gains."""
    other = [100.0, 99.0, 60.0]
    assert judged(*[GOOD] * 10, *[other] * 10)[-1] == 2


def test_a_gain_within_its_deviations_is_none() -> None:
    """One good interval in many is chance; a gain in each is not, however small."""
    lucky = [100.0, 0.0, 100.0]
    assert judged(*[EVEN] * 20, lucky, *[EVEN] * 20) == [FALLBACK] * 41
    assert judged(*[[100.0, 99.9, 100.0]] * 20)[-1] == 1
    guard = Guard(2)
    judged(*[[100.0, 90.0]] * 3, guard=guard)
    fades = 0.5 ** (1 / 16)
    assert guard.gain[1] == pytest.approx(10 * (1 + fades + fades**2))
    assert guard.deviation(1) == pytest.approx(25 * (1 + fades**2 + fades**4) ** 0.5)


def test_one_that_loses_is_given_up_within_a_turnover() -> None:
    """However much it gained before: eight intervals of an eighth of the cache later, at most."""
    worse = [100.0, 110.0, 110.0]
    after = judged(*[[100.0, 90.0, 100.0]] * 500, *[worse] * 8)
    assert after[499] == 1
    assert after[-1] == FALLBACK
    soon = judged(*[[100.0, 90.0, 100.0]] * 10, *[worse] * 8)
    assert soon.index(FALLBACK, 9) < after.index(FALLBACK, 499) - 490


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 20).map(float), min_size=3, max_size=3), min_size=1, max_size=200
    )
)
def test_what_it_can_lose_is_bounded(rows: list[list[float]]) -> None:
    """Whatever comes, one candidate in force loses at most eight times the largest difference."""
    lost = 0.0
    for (before, now), row in zip(pairwise([FALLBACK, *judged(*rows)]), rows, strict=True):
        lost = max(lost, 0.0) + row[before] - row[FALLBACK]
        assert lost <= LOSS_INTERVALS * 20.0
        if now != before:
            lost = 0.0


def test_the_bound_is_near() -> None:
    """After an endless row of the best intervals it takes the eight worst ones."""
    best, worst = [20.0, 0.0], [0.0, 20.0]
    after = judged(*[best] * 500, *[worst] * 8)
    assert after[499:] == [1] * 8 + [FALLBACK]


def test_evidence_can_be_void() -> None:
    """The choice stays, and eight intervals have to pass again."""
    guard = Guard(3)
    assert judged(*[GOOD] * 9, guard=guard)[-1] == 1
    guard.forget()
    worse = [100.0, 110.0, 120.0]
    assert judged(*[worse] * 8, guard=guard) == [1] * (LEAST_INTERVALS - 1) + [FALLBACK]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=150),
    st.sampled_from((0.5, 10.0, 100.0)),
)
def test_intervals_end_where_one_has_computed_enough(
    blocks: list[list[int]], least_blocks: float
) -> None:
    """Request by request as from all at once: sixteen requests, and some shadow so many blocks."""
    counted, ends, since = _Intervals(2, least_blocks), list[int](), 0
    for number, row in enumerate(blocks, start=1):
        done = counted.add(row, [2.0 * count for count in row])
        if done is not None:
            ends.append(number)
            assert done == [2.0 * sum(column) for column in zip(*blocks[since:number], strict=True)]
            assert number - since >= INTERVAL_REQUESTS
            since = number
    columns = np.array(blocks, dtype=np.int64).reshape(-1, 2).T
    assert interval_ends(columns, least_blocks).tolist() == ends


def test_eight_intervals_are_a_turnover() -> None:
    """As the bound says: what a shadow computes in them fills the cache once."""
    assert LOSS_INTERVALS * interval_blocks(800) == 800

"""The least capacity: a linear scan says the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.policies.base import Policy
from kvscope.policies.registry import by_name
from kvscope.tuning.least import PRECISION, least_for_any, least_for_lru
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Evaluator, Trial
from tests.tuning.examples import chats, workload

QUICK = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.data_too_large])
LRU = by_name("lru")()


def _evaluator(seed: int, slo_s: float, percentile: float) -> Evaluator:
    return Evaluator(workload(chats(seed, 40)), Target(slo_s, percentile))


@QUICK
@given(
    seed=st.integers(0, 10_000),
    share=st.floats(0.2, 1.1),
    percentile=st.sampled_from([0.5, 0.9, 0.95]),
    low=st.integers(0, 30),
)
def test_lru_needs_what_a_linear_scan_finds(
    seed: int, share: float, percentile: float, low: int
) -> None:
    """The least capacity that holds, up to 1 % above it; None where the highest does not hold."""
    evaluator = _evaluator(seed, 0.5, percentile)
    high = max(evaluator.workload.curve.capacity_for(evaluator.workload.curve.ideal), low + 1)
    worst, best = (evaluator.trial(LRU, at).target_s for at in (low, high))
    evaluator.target = Target(best + (worst - best) * share, percentile)
    meets = [evaluator.trial(LRU, at).meets(evaluator.target) for at in range(low, high + 1)]
    assert meets == sorted(meets)  # once held, held with more
    found = least_for_lru(evaluator, low, high)
    if not any(meets):
        assert found is None
        return
    least = low + meets.index(True)
    assert found is not None
    assert found.meets(evaluator.target)
    assert least <= found.capacity_blocks <= least + max(1, PRECISION * found.capacity_blocks)


@QUICK
@given(
    seed=st.integers(0, 10_000),
    share=st.floats(0.05, 0.95),
    xi=st.sampled_from([16.0, 64.0, 200.0, 700.0]),
    also=st.none() | st.integers(0, 400),
)
def test_no_tried_capacity_above_the_least_fails(
    seed: int, share: float, xi: float, also: int | None
) -> None:
    """For policies whose tail may get worse with more: from the answer on all that was tried holds.

    One that was tried right below it does not, or it is the lowest there is.
    """
    settings_of: list[Policy] = [by_name("tlru")({"xi_tokens": xi}), by_name("threshold-lru")()]
    evaluator = _evaluator(seed, 0.5, 0.9)
    high = evaluator.workload.curve.capacity_for(evaluator.workload.curve.ideal)
    worst, best = (evaluator.trial(LRU, at).target_s for at in (0, high))
    evaluator.target = Target(best + (worst - best) * share, 0.9)
    evaluator.trials.clear()
    found = least_for_any(evaluator, [LRU, *settings_of], 0, high, also=also)
    held: dict[int, bool] = {}
    for trial in evaluator.trials.values():
        at = trial.capacity_blocks
        held[at] = held.get(at, False) or trial.meets(evaluator.target)
    assert also is None or not 0 < also < high or also in held
    assert found is not None
    assert found.meets(evaluator.target)
    least = found.capacity_blocks
    assert all(meets for at, meets in held.items() if at >= least)
    below = max((at for at in held if at < least), default=None)
    if below is None:
        assert least == 0
    else:
        assert not held[below]
        assert least - below <= max(1, PRECISION * least)


class Scripted:
    """An evaluator whose answers are written down: met at these capacities alone."""

    def __init__(self, meets: Any) -> None:
        self.meets, self.target, self.asked = meets, Target(1.0), set[int]()

    def evaluate(self, questions: list[tuple[Policy, int]], advance: object = None) -> list[Any]:
        """Return trials of 0.5 s where the target is met, else of 2 s."""
        self.asked |= {at for _, at in questions}
        return [_Told(policy, at, 0.5 if self.meets(at) else 2.0) for policy, at in questions]


class _Told:
    def __init__(self, policy: Policy, at: int, target_s: float) -> None:
        self.policy, self.capacity_blocks, self.target_s = policy, at, target_s

    def meets(self, target: Target) -> bool:
        return self.target_s <= target.slo_s

    def rank(self, target: Target) -> tuple[float]:
        return (self.target_s,)


def test_a_capacity_that_holds_by_chance_does_not_count() -> None:
    """An island of success below a failure is passed over; the answer is above the failure."""
    evaluator: Any = Scripted(lambda at: at >= 5_000 or 600 <= at <= 1_500)
    found: Trial | None = least_for_any(evaluator, [LRU], 0, 10_000)
    assert found is not None
    assert 5_000 <= found.capacity_blocks <= 5_050


def test_the_present_capacity_is_looked_at() -> None:
    """What the user has is tried, so that the least is never below a known failure there."""
    evaluator: Any = Scripted(lambda at: at >= 1_000 and at != 7_777)
    missed = least_for_any(evaluator, [LRU], 0, 10_000)
    assert missed is not None
    assert missed.capacity_blocks < 7_777
    found = least_for_any(evaluator, [LRU], 0, 10_000, also=7_777)
    assert found is not None
    assert 7_777 < found.capacity_blocks <= 7_777 * 1.01 + 1


@pytest.mark.parametrize("least", [0, 1, 2, 63, 64, 65, 4_095, 999_999, 1_000_000])
def test_halving_comes_to_its_end(least: int) -> None:
    """Any least capacity up to a million is found with few questions."""
    for search in (
        lambda evaluator: least_for_lru(evaluator, 0, 1_000_000),
        lambda evaluator: least_for_any(evaluator, [LRU], 0, 1_000_000),
    ):
        evaluator: Any = Scripted(lambda at: at >= least)
        found = search(evaluator)
        assert least <= found.capacity_blocks <= max(least * (1 + PRECISION), least + 1)
        assert len(evaluator.asked) < 60

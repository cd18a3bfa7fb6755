"""Which values of xi are worth a look at one capacity: those that a search begins with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.tuning.objective import Trial
from kvscope.tuning.search import XI, Advance, Evaluator, changed, hints_from, values_to_try
from kvscope.tuning.target import Target

PRECISION = 0.01
GRID = 8
_KEPT = 3  # settings that go on from the grid
SMALLEST_SHARE = 1 / 16  # of what LRU needs: nobody gets by with less than that


def least_for_lru(
    evaluator: Evaluator, lru: Policy, low: int, high: int, advance: Advance | None = None
) -> Trial | None:
    """LRU's trial at the least capacity from `low` to `high` blocks that meets the target.

    None where even `high` does not. Exact to PRECISION: what LRU holds at one capacity it holds at
    every larger one, so no request gets slower with more.
    Source: Mattson et al., "Evaluation techniques for storage hierarchies", 1970 (inclusion).
    """
    first, last = evaluator.trials([(lru, low), (lru, high)], advance)
    if first.meets(evaluator.target):
        return first
    if not last.meets(evaluator.target):
        return None
    failing, meeting = first, last
    while inner := _between(failing.capacity_blocks, meeting.capacity_blocks):
        for trial in evaluator.trials([(lru, at) for at in inner], advance):
            if trial.meets(evaluator.target):
                meeting = trial
                break
            failing = trial
    return meeting


def least_for_any(
    evaluator: Evaluator,
    settings: Sequence[Policy],
    low: int,
    high: int,
    advance: Advance | None = None,
    *,
    also: int | None = None,
) -> Trial | None:
    """The trial at the least capacity from which on some of `settings` meets the target.

    At every capacity tried from there up to `high` one of them does; a smaller capacity that meets
    it by chance, below one that does not, does not count. None where `high` does not. `also` is a
    capacity to try if it lies between.
    """
    between = {also} if also is not None and low < also < high else set()
    points = sorted({low, *_grid(low, high), *between, high})
    failing, found = 0, None
    while points:
        for trials in reversed(_at_each(evaluator, settings, points, advance)):
            if not trials[0].meets(evaluator.target):
                failing = trials[0].capacity_blocks
                break
            found = trials[0]
            settings = [trial.policy for trial in trials[:_KEPT]]
        if found is None or found.capacity_blocks == low:
            break
        points = _between(failing, found.capacity_blocks)
    return found


def _between(failing: int, meeting: int) -> list[int]:
    """Two capacities between, by equal factors; none where the answer is precise enough."""
    if meeting - failing <= max(1, int(PRECISION * meeting)):
        return []
    points = np.geomspace(max(failing, 1), meeting, 4)[1:3].round().astype(int)
    return sorted({int(at) for at in points if failing < at < meeting}) or [
        (failing + meeting) // 2
    ]


def _grid(low: int, high: int) -> list[int]:
    least = max(low, int(high * SMALLEST_SHARE), 1)
    return [int(at) for at in np.geomspace(least, max(high, least), GRID).round()]


def _at_each(
    evaluator: Evaluator, settings: Sequence[Policy], grid: Sequence[int], advance: Advance | None
) -> list[list[Trial]]:
    """The trials of the settings at each capacity, the best first."""
    questions = [(policy, at) for at in grid for policy in settings]
    trials = iter(evaluator.trials(questions, advance))
    return [
        sorted((next(trials) for _ in settings), key=lambda one: one.rank(evaluator.target))
        for _ in grid
    ]


def has_xi(policy: type[Policy]) -> bool:
    """Whether a policy has a xi."""
    return any(one.name == XI for one in policy.parameters)


def over_xi(
    workload: Workload, variant: Variant, capacity_blocks: int, target: Target
) -> list[Policy]:
    """The variant with every xi to try, ascending; its other parameters as a replay has them.

    What the variant says of xi itself does not count. Its policy must have one (`has_xi`).
    """
    given = {name: value for name, value in variant.given.items() if name != XI}
    free = replace(variant, given=given)
    found = estimate_parameters(workload.request_traffic, workload.profile, target.slo_s)
    with closing(Evaluator(workload, target)) as evaluator:
        hints = hints_from(evaluator, Lru(), capacity_blocks)
    start = bind(free, found)
    return [changed(start, XI, xi) for xi in values_to_try(free, found, hints)[XI]]

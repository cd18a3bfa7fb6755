"""The least capacity that meets the target, for LRU and for any of several settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.tuning.trial import Advance, Evaluator, Trial

PRECISION = 0.01
GRID = 8
_KEPT = 3  # settings that go on from the grid
SMALLEST_SHARE = 1 / 16  # of the capacity that LRU needs: no policy gets by with less


def least_for_lru(
    evaluator: Evaluator, low: int, high: int, advance: Advance | None = None
) -> Trial | None:
    """Return LRU's trial at the least capacity from `low` to `high` blocks that meets the target.

    None where even `high` does not. Exact to PRECISION: a larger LRU cache holds all that a smaller
    one does, so no request gets slower with more.
    Source: Mattson et al., "Evaluation techniques for storage hierarchies", 1970 (inclusion).
    """
    failing, meeting = evaluator.evaluate([(Lru(), low), (Lru(), high)], advance)
    if failing.meets(evaluator.target):
        return failing
    if not meeting.meets(evaluator.target):
        return None
    while inner := _between(failing.capacity_blocks, meeting.capacity_blocks):
        for trial in evaluator.evaluate([(Lru(), blocks) for blocks in inner], advance):
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
    """Return the best trial at the least capacity from which on one of `settings` meets the target.

    At every capacity tried from there up to `high` one of them does; a smaller capacity that meets
    it by chance, below one that does not, does not count. None where `high` does not. `also` is a
    capacity to try if it lies between.
    """
    target = evaluator.target
    between = {also} if also is not None and low < also < high else set()
    points = sorted({low, *_grid(low, high), *between, high})
    failing, least = 0, None
    while points:
        pairs = [(policy, blocks) for blocks in points for policy in settings]
        trials = iter(evaluator.evaluate(pairs, advance))
        by_capacity = [
            sorted((next(trials) for _ in settings), key=lambda trial: trial.rank(target))
            for _ in points
        ]
        for ranked in reversed(by_capacity):
            if not ranked[0].meets(target):
                failing = ranked[0].capacity_blocks
                break
            least = ranked[0]
            settings = [trial.policy for trial in ranked[:_KEPT]]
        if least is None or least.capacity_blocks == low:
            break
        points = _between(failing, least.capacity_blocks)
    return least


def _between(failing: int, meeting: int) -> list[int]:
    """Return two capacities between, by equal factors; none where the answer is precise enough."""
    if meeting - failing <= max(1, int(PRECISION * meeting)):
        return []
    points = np.geomspace(max(failing, 1), meeting, 4)[1:3].round().astype(int)
    inside = sorted({int(blocks) for blocks in points if failing < blocks < meeting})
    return inside or [(failing + meeting) // 2]


def _grid(low: int, high: int) -> list[int]:
    least = max(low, int(high * SMALLEST_SHARE), 1)
    return [int(blocks) for blocks in np.geomspace(least, max(high, least), GRID).round()]

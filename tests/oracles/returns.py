"""The table of `gittins` from touches and returns, counted block by block and fitted with NumPy.

Written from the definitions of hazard and index, class by class and horizon by horizon.
"""

from __future__ import annotations

import math

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.learning.returns.formulas import BEGINS_S, WINDOW_BINS, ReturnCounts
from kvscope.learning.returns.offline import Returns, Touches
from kvscope.policies.gittins import AGES

LASTS_S = np.append(np.diff(BEGINS_S), BEGINS_S[-1])
PRIOR = 1.0 / (30.0 + BEGINS_S + LASTS_S / 2)


def count_window(
    touches: Touches,
    kinds: Int32s,
    returns: Returns,
    refit: int,
    refit_s: float,
    classes: int,
) -> ReturnCounts:
    """Return the counts of the window before a refit: how long each block waited, or waits."""
    returned, waiting, seconds = np.zeros((3, classes, AGES))
    inside = np.flatnonzero((touches.bin >= refit - WINDOW_BINS) & (touches.bin < refit))
    for touch in inside:
        since_s, kind, left = touches.arrival_s[touch], kinds[touch], touches.blocks[touch]
        own = (returns.touch == touch) & (returns.bin < refit)
        for arrival_s, blocks in zip(returns.arrival_s[own], returns.blocks[own], strict=True):
            _add(returned[kind], seconds[kind], arrival_s - since_s, blocks)
            left -= blocks
        _add(waiting[kind], seconds[kind], refit_s - since_s, left)
    return ReturnCounts(returned, waiting, seconds, float(len(inside)))


def _add(sums: Float64s, seconds: Float64s, wait_s: float, blocks: int) -> None:
    age = int(np.sum(wait_s >= BEGINS_S)) - 1
    sums[age] += blocks
    seconds[age] += blocks * (wait_s - BEGINS_S[age])


def index_of(counts: ReturnCounts, steps: tuple[int, ...]) -> Float64s:
    """Return the index of each class and age."""
    return gittins_index(hazards(counts, steps))


def hazards(counts: ReturnCounts, steps: tuple[int, ...]) -> Float64s:
    """Return the returns a second at each age, of each class (classes x AGES)."""
    left = counts.returned + counts.waiting
    later = left[:, ::-1].cumsum(axis=1)[:, ::-1] - left
    unit = counts.touches / left.sum() if left.sum() > 0 else 0.0
    returned, at_risk = counts.returned * unit, (counts.seconds + later * LASTS_S) * unit
    every, risk = returned.sum(axis=0), at_risk.sum(axis=0)
    prior = PRIOR * min((every.sum() + 1.0) / ((risk * PRIOR).sum() + 1.0), 1.0)
    hazard: Float64s = np.tile((every + 0.2) / (risk + 0.2 / prior), (math.prod(steps), 1))
    for known in range(1, len(steps) + 1):
        group = np.arange(math.prod(steps)) // math.prod(steps[known:])
        events, risk = _sums(returned, group), _sums(at_risk, group)
        hazard = (events + 0.2) / (risk + 0.2 / hazard)
    return hazard


def _sums(values: Float64s, group: Int64s) -> Float64s:
    """Return the sum of each class's group."""
    same = (group[:, None] == group).astype(np.float64)
    sums: Float64s = same @ values
    return sums


def gittins_index(hazard: Float64s) -> Float64s:
    """Return the best rate of returns over all horizons, at the beginning of each age."""
    cumulative = np.concatenate((np.zeros((len(hazard), 1)), (hazard * LASTS_S).cumsum(1)), 1)
    index = np.zeros_like(hazard)
    for age in range(AGES):
        alive = np.exp(cumulative[:, age, None] - cumulative[:, age:])
        spent_s = ((alive[:, :-1] - alive[:, 1:]) / hazard[:, age:]).cumsum(axis=1)
        index[:, age] = ((1.0 - alive[:, 1:]) / spent_s).max(axis=1)
    return index

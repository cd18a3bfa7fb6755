"""Reuse gaps: their distribution, and the probability of reuse after an idle time.

A gap belongs to the category of the request that touched the block before it: all that an eviction
policy knows of a block.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import (
    Rates,
    Summary,
    describe,
    log_grid,
    points_below,
    totals,
)
from kvscope.characterize.history import History
from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.disk_columns import stretches
from kvscope.core.trace import Trace


class GapDistribution(Struct, frozen=True):
    """Reuse gaps of blocks last touched by one category; `cdf` runs along the grid."""

    category: str | None
    reused_blocks: int
    gap_s: Summary
    cdf: Rates


class ReuseGaps(Struct, frozen=True):
    """Reuse gaps, weighted by blocks, on the grid `at_s`; categories without reuse are absent."""

    at_s: Rates
    overall: GapDistribution | None
    by_category: tuple[GapDistribution, ...]


class HazardCurve(Struct, frozen=True):
    """Probability along the grid that a block is reused in the next second; None: none at risk."""

    category: str | None
    probability: tuple[float | None, ...]
    at_risk_blocks: tuple[int, ...]


class ReuseHazard(Struct, frozen=True):
    """Reuse in the next second of blocks untouched for `at_s`."""

    at_s: Rates
    overall: HazardCurve | None
    by_category: tuple[HazardCurve, ...]


_SOON_S = 1.0


def reuse_gaps(trace: Trace, history: History) -> ReuseGaps | None:
    """Return the distribution of reuse gaps, weighted by blocks; None without hashes.

    Only gaps that end inside the trace count, so long ones are under-represented; `fit` models
    account for that. Source: ATC'25, section 3 (reuse time).
    """
    if not trace.has_hashes:
        return None
    grid = log_grid(trace.span_s)
    category = history.category_of(history.prev)
    overall, by_category = describe(history.gap, category, history.categories, grid)
    return ReuseGaps(
        at_s=tuple(grid.tolist()),
        overall=GapDistribution(*overall) if overall else None,
        by_category=tuple(GapDistribution(*group) for group in by_category),
    )


def reuse_hazard(trace: Trace, history: History) -> ReuseHazard | None:
    """Return the probability that a block idle for t is reused in the next second, on a log grid.

    None without hashes. Where grid points lie more than a second apart, reuse is counted up to the
    next point and converted to the probability per second that gives as much, so that no reuse
    falls between two points. At risk at t are touches followed by no touch up to t, among those
    with enough of the trace left to observe the outcome, so that its end (right-censoring) biases
    nothing. Each touch is one observation, the last of a block included. A touch that only another
    request's output renews is left out.
    Source: ATC'25, section 3 (reuse probability).
    """
    if not trace.has_hashes:
        return None
    grid = log_grid(trace.span_s)
    until = _observed_until(grid)
    at_risk, reused = _counts(history, grid, until)
    overall = _curve(None, at_risk.sum(axis=0), reused.sum(axis=0), until - grid)
    by_category = (
        _curve(name, at_risk[k], reused[k], until - grid)
        for k, name in enumerate(history.categories)
    )
    return ReuseHazard(
        at_s=tuple(grid.tolist()),
        overall=overall,
        by_category=tuple(curve for curve in by_category if curve),
    )


def _observed_until(grid: Float64s) -> Float64s:
    """Return the age up to which reuse counts for each point: one second, or the next point."""
    until: Float64s = np.maximum(grid + _SOON_S, np.append(grid[1:], grid[-1]))
    return until


def _curve(
    category: str | None, at_risk: Int64s, reused: Int64s, observed_s: Float64s
) -> HazardCurve | None:
    """Return the curve; None where nothing is ever at risk."""
    if not at_risk[0]:
        return None
    not_reused = 1 - reused / np.maximum(at_risk, 1)
    chance = 1 - not_reused ** (_SOON_S / observed_s)
    return HazardCurve(
        category=category,
        probability=tuple(
            p if count else None for p, count in zip(chance.tolist(), at_risk.tolist(), strict=True)
        ),
        at_risk_blocks=tuple(at_risk.tolist()),
    )


def _counts(history: History, grid: Float64s, until: Float64s) -> tuple[Int64s, Int64s]:
    """Return (at risk at grid[i], reused by age until[i]) in blocks, categories × grid."""
    shape = (len(history.categories), len(grid) + 1)
    at_risk, reused = np.zeros((2, shape[0], len(grid)), dtype=np.int64)
    left_s = np.maximum(history.span_s - history.arrival_s, 0.0)
    observed_after = np.searchsorted(until, left_s, side="right")

    def after(request: Int32s) -> tuple[Int64s, Int64s]:
        """Return the category of each, and how many leading points are observed in full after."""
        return history.category[request].astype(np.int64), observed_after[request]

    for part in stretches(len(history.gap.value)):
        gap, weight = history.gap.value[part], history.gap.weight[part]
        category, observed = after(history.prev[part])
        waiting = np.minimum(points_below(gap, grid), observed)
        too_soon = np.minimum(points_below(gap, until), waiting)  # that do not reach the gap
        waited = _reaching(category, waiting, weight, shape)
        at_risk += waited
        reused += waited - _reaching(category, too_soon, weight, shape)
    for part in stretches(len(history.life.value)):
        at_risk += _reaching(*after(history.last[part]), history.life.weight[part], shape)
    return at_risk, reused


def _reaching(group: Int64s, points: Int64s, weight: Int64s, shape: tuple[int, int]) -> Int64s:
    """Return the weight by group that covers each point; an item covers its first `points`."""
    ends = totals(weight, group * shape[1] + points, shape[0] * shape[1]).reshape(shape)
    beyond: Int64s = ends.sum(axis=1, keepdims=True) - np.cumsum(ends, axis=1)
    return beyond[:, :-1]

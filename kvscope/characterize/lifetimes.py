"""Reuse gaps of blocks, their lifetimes, and the working set (blocks alive at once).

A gap belongs to the category of the request that touched the block before it, which an eviction
policy knows. A lifetime, from first to last touch, belongs to the category of the first.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import (
    Described,
    Rates,
    Summary,
    Windows,
    describe,
    log_grid,
    points_below,
    round_windows,
    totals,
)
from kvscope.characterize.history import History
from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.disk_columns import stretches
from kvscope.core.trace import Trace


class GapDistribution(Struct, frozen=True):
    """Gaps of blocks last touched by one category (null: any); `cdf` is along `ReuseGaps.at_s`."""

    category: str | None
    reused_blocks: int
    gap_s: Summary
    cdf: Rates


class ReuseGaps(Struct, frozen=True):
    """Reuse gaps, weighted by blocks, with CDFs at `at_s`; categories without reuse are absent."""

    at_s: Rates
    overall: GapDistribution | None
    by_category: tuple[GapDistribution, ...]


class HazardCurve(Struct, frozen=True):
    """Probability of reuse in 1 s by idle time (`ReuseHazard.at_s`); None if none is at risk."""

    category: str | None
    probability: tuple[float | None, ...]
    at_risk_blocks: tuple[int, ...]


class ReuseHazard(Struct, frozen=True):
    """Probability of reuse in the next second, for blocks that have been idle for `at_s`."""

    at_s: Rates
    overall: HazardCurve | None
    by_category: tuple[HazardCurve, ...]


_SOON_S = 1.0


def reuse_gaps(trace: Trace, history: History) -> ReuseGaps | None:
    """Return the distribution of reuse gaps, weighted by blocks; None without hashes.

    Only gaps that end inside the trace count, so long ones are under-represented; `fit` models
    account for that. Source: KVCache Cache in the Wild (ATC'25), section 3 (reuse time).
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

    None without hashes. Where grid points are more than a second apart, reuse up to the next point
    counts, converted to an equivalent probability per second, so that no reuse falls between two
    points. At risk at t are touches after which the block stays untouched up to t, if the trace
    lasts for that second, or to that point; so its end (right-censoring) causes no bias. Each touch
    is one observation, also a block's last. Left out is a touch after which the next request to
    touch the block has it in its output, not in its prompt: that is no reuse. Source: KVCache Cache
    in the Wild (ATC'25), section 3 (reuse probability).
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
    """Return for each idle time in `grid` (s) the idle time up to which reuse counts after it (s).

    That is 1 s later, as the hazard is the probability of reuse in the next second, or the next
    grid point if that is later, so that no reuse falls between two points.
    """
    until: Float64s = np.maximum(grid + _SOON_S, np.append(grid[1:], grid[-1]))
    return until


def _curve(
    category: str | None, at_risk: Int64s, reused: Int64s, observed_s: Float64s
) -> HazardCurve | None:
    """Return the hazard curve of a category (None: all), or None if it has no blocks at risk.

    `observed_s` is the time (s) from each grid point in which reuse counts.
    """
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
    """Return blocks at risk at grid[i], and those reused by until[i]: both categories × grid."""
    shape = (len(history.categories), len(grid) + 1)
    at_risk, reused = np.zeros((2, shape[0], len(grid)), dtype=np.int64)
    left_s = np.maximum(history.span_s - history.arrival_s, 0.0)
    observed_after = np.searchsorted(until, left_s, side="right")

    def after(request: Int32s) -> tuple[Int64s, Int64s]:
        """Return each request's category, and at how many grid points the outcome is known."""
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
    """Return the total weight by group and grid point of the items that count there.

    Item k counts at the first points[k] grid points. `shape`: (groups, grid points + 1).
    """
    ends = totals(weight, group * shape[1] + points, shape[0] * shape[1]).reshape(shape)
    beyond: Int64s = ends.sum(axis=1, keepdims=True) - np.cumsum(ends, axis=1)
    return beyond[:, :-1]


class LifetimeDistribution(Struct, frozen=True):
    """Lifetimes of blocks first touched by one category (null: any); 0 if never reused."""

    category: str | None
    blocks: int
    never_reused_share: float
    lifetime_s: Summary
    cdf: Rates


class WindowLifetime(Struct, frozen=True):
    """Mean lifetime of the blocks that one category first touched in one window."""

    start_s: float
    category: str
    blocks: int
    mean_s: float


class Lifetimes(Struct, frozen=True):
    """Lifetimes of cacheable blocks, with CDFs at `at_s`, and by window of the first touch."""

    at_s: Rates
    window_s: float
    overall: LifetimeDistribution | None
    by_category: tuple[LifetimeDistribution, ...]
    over_time: tuple[WindowLifetime, ...]


class WorkingSet(Struct, frozen=True):
    """Number of blocks that will be reused, over time: a capacity that would lose no reuse.

    `blocks[i]` is the peak from `at_s[i]` to `at_s[i + 1]` (the last: the trace's end). Bytes are
    None unless a model is stated. `peak_hbm_multiple` is `peak_bytes` relative to the size of the
    deployment's pools, else of the HBM; None if neither is known.
    """

    peak_blocks: int
    mean_blocks: float
    p99_blocks: int
    at_s: Rates
    blocks: tuple[int, ...]
    peak_bytes: int | None = None
    mean_bytes: float | None = None
    p99_bytes: int | None = None
    peak_hbm_multiple: float | None = None


SERIES_POINTS = 100
_RANGES = 1024


def lifetimes(trace: Trace, history: History, windows: Windows | None = None) -> Lifetimes | None:
    """Return the lifetimes of cacheable blocks; None without hashes.

    A lifetime runs from first to last touch, 0 for a block never touched again. Categories and
    `windows` (None: `round_windows`) are those of the first touch. The trace's end cuts lifetimes
    short, late blocks' most. Source: KVCache Cache in the Wild (ATC'25), section 3 (lifetime).
    """
    if not trace.has_hashes:
        return None
    windows = windows or round_windows(trace)
    grid = log_grid(trace.span_s)
    lives, groups = history.life, len(history.categories)
    category = history.category_of(history.first)
    overall, by_category = describe(lives, category, history.categories, grid)
    once = np.zeros(groups, dtype=np.int64)
    for part in stretches(len(lives.value)):
        weight = np.where(history.first[part] == history.last[part], lives.weight[part], 0)
        once += totals(weight, category(part), groups)
    never: dict[str | None, int] = dict(zip(history.categories, once.tolist(), strict=True))
    never[None] = int(once.sum())

    def distribution(group: Described) -> LifetimeDistribution:
        name, blocks, life, along = group
        return LifetimeDistribution(name, blocks, never[name] / blocks, life, along)

    return Lifetimes(
        at_s=tuple(grid.tolist()),
        window_s=windows.length_s,
        overall=distribution(overall) if overall else None,
        by_category=tuple(map(distribution, by_category)),
        over_time=_over_time(history, windows),
    )


def _over_time(history: History, windows: Windows) -> tuple[WindowLifetime, ...]:
    groups, lives = len(history.categories), history.life
    blocks = np.zeros(windows.count * groups, dtype=np.int64)
    seconds = np.zeros(len(blocks))
    for part in stretches(len(lives.value)):
        born, weight = history.first[part], lives.weight[part]
        cell = windows.index(history.arrival_s[born]) * groups + history.category[born]
        blocks += totals(weight, cell, len(blocks))
        seconds += np.bincount(cell, lives.value[part] * weight, minlength=len(blocks))
    return tuple(
        WindowLifetime(
            start_s=windows.start_s(int(k) // groups),
            category=history.categories[int(k) % groups],
            blocks=int(blocks[k]),
            mean_s=float(seconds[k] / blocks[k]),
        )
        for k in np.flatnonzero(blocks)
    )


def working_set(trace: Trace, history: History) -> WorkingSet | None:
    """Return the number of live blocks over time: the capacity that loses no reuse.

    A block is alive at t if first touch <= t < last touch. Mean and p99 are weighted by time. None
    without hashes. Source: KVCache Cache in the Wild (ATC'25), Figure 22.
    """
    if not trace.has_hashes:
        return None
    level = np.zeros(len(history.arrival_s), dtype=np.int64)
    for part in stretches(len(history.life.value)):
        blocks = history.life.weight[part]
        np.add.at(level, history.first[part], blocks)
        np.subtract.at(level, history.last[part], blocks)
    np.cumsum(level, out=level)
    at_s = history.arrival_s
    ends = np.append(at_s[1:] != at_s[:-1], True)
    if not ends.all():
        level, at_s = level[ends], at_s[ends]  # from at_s[i] until at_s[i + 1]
    span_s = float(at_s[-1] - at_s[0])
    mean = sum(
        float((level[:-1][part] * np.diff(at_s[part.start : part.stop + 1])).sum())
        for part in stretches(len(level) - 1)
    )
    starts_s, peaks = _series(at_s, level, trace.span_s)
    return WorkingSet(
        peak_blocks=int(level.max()),
        mean_blocks=mean / span_s if span_s else 0.0,  # else all at once: nothing lives
        p99_blocks=_level_for(99, at_s, level) if span_s else 0,
        at_s=tuple(starts_s.tolist()),
        blocks=tuple(peaks.tolist()),
    )


def _level_for(percent: int, at_s: Float64s, level: Int64s) -> int:
    """Return the lowest level that is not exceeded for `percent` of the time.

    `level[i]` lasts from `at_s[i]` to `at_s[i + 1]`, the last one for no time. Times are whole
    microseconds below 2^53, so that ranks are exact. Time is summed in 1024 ranges of levels, then
    again within the range that contains the rank.
    """

    def microseconds() -> Float64s:
        """Return the time (µs) spent in each of 1024 ranges of levels.

        Ranges are `width` levels wide, the first one begins at `low`; levels above `high` or below
        `low` count in none. All three are variables of `_level_for`.
        """
        total = np.zeros(_RANGES)
        for part in stretches(len(level) - 1):
            lasts = np.round(np.diff(at_s[part.start : part.stop + 1]) * 1e6)
            inside = (level[part] >= low) & (level[part] <= high)
            total += np.bincount((level[part][inside] - low) // width, lasts[inside], _RANGES)
        return total

    low, high = int(level.min()), int(level.max())
    rank = None
    while low < high or rank is None:
        width = -(-(high - low + 1) // _RANGES)
        upto = np.cumsum(microseconds())
        if rank is None:
            rank = -(-percent * int(upto[-1]) // 100)
        k = int(np.searchsorted(upto, rank))
        rank -= int(upto[k - 1]) if k else 0
        low, high = low + k * width, min(low + (k + 1) * width - 1, high)
    return low


def _series(at_s: Float64s, level: Int64s, span_s: float) -> tuple[Float64s, Int64s]:
    """Return starts (s) and peaks (blocks) of a hundred equal windows, of one without a span."""
    if span_s <= 0:
        return np.zeros(1), level[:1]
    starts = np.arange(SERIES_POINTS, dtype=np.float64) * (span_s / SERIES_POINTS)
    before = np.searchsorted(at_s, starts, side="right") - 1
    peaks = level[np.maximum(before, 0)].copy()  # arrivals count from 0, so something is before
    for part in stretches(len(at_s)):
        point = np.searchsorted(starts, at_s[part], side="right") - 1
        np.maximum.at(peaks, np.minimum(point, SERIES_POINTS - 1), level[part])
    return starts, peaks

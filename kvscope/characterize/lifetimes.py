"""How long blocks live, from first to last touch, and how many are alive at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.characterize.distributions import (
    Described,
    Rates,
    Summary,
    Weighted,
    describe,
    log_grid,
    quantiles,
    totals,
)
from kvscope.characterize.history import History, load_history
from kvscope.characterize.windows import Windows, round_windows
from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.trace import Trace
from kvscope.store.db import Store


@dataclass(frozen=True, slots=True)
class LifetimeDistribution:
    """Lifetimes of the blocks first touched by one category, those never reused included as 0."""

    category: str | None
    blocks: int
    never_reused_share: float
    lifetime_s: Summary
    cdf: Rates


@dataclass(frozen=True, slots=True)
class WindowLifetime:
    """Mean lifetime of the blocks that one category first touched in one window."""

    start_s: float
    category: str
    blocks: int
    mean_s: float


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Lifetimes of cacheable blocks on the grid `at_s`, and over time."""

    at_s: Rates
    window_s: float
    overall: LifetimeDistribution | None
    by_category: tuple[LifetimeDistribution, ...]
    over_time: tuple[WindowLifetime, ...]


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Blocks that will be reused, over time: the capacity that would lose none of them.

    `blocks[i]` is the peak between `at_s[i]` and `at_s[i + 1]` (the last: the trace's end). Bytes
    are known once a model is named, `peak_hbm_multiple` once its memory is.
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


def lifetimes(
    store: Store, trace: Trace, history: History | None = None, windows: Windows | None = None
) -> Lifetimes | None:
    """Return the lifetimes of cacheable blocks; None without hashes.

    A lifetime runs from the first to the last touch and is 0 for a block never touched again.
    Categories and windows are those of the first touch. The trace's end cuts lifetimes short, those
    of late blocks most. Source: ATC'25, section 3 (lifetime).
    """
    if not trace.has_hashes:
        return None
    history = history or load_history(store, trace)
    windows = windows or round_windows(trace)
    length = history.arrival_s[history.last] - history.arrival_s[history.first]
    order = np.argsort(length)
    lives = Weighted(length[order], history.lifespan_blocks[order])
    born = history.first[order]
    once = np.where(born == history.last[order], lives.weight, 0)
    grid = log_grid(trace.span_s)
    category = history.category[born]
    overall, by_category = describe(lives, category, history.categories, grid)
    once_by_category = totals(once, category, len(history.categories)).tolist()
    never: dict[str | None, int] = dict(zip(history.categories, once_by_category, strict=True))
    never[None] = int(once.sum())

    def distribution(group: Described) -> LifetimeDistribution:
        name, blocks, life, along = group
        return LifetimeDistribution(name, blocks, never[name] / blocks, life, along)

    return Lifetimes(
        at_s=tuple(grid.tolist()),
        window_s=windows.length_s,
        overall=distribution(overall) if overall else None,
        by_category=tuple(map(distribution, by_category)),
        over_time=_over_time(history, lives, born, windows),
    )


def _over_time(
    history: History, lives: Weighted, born: Int32s, windows: Windows
) -> tuple[WindowLifetime, ...]:
    groups = len(history.categories)
    cell = windows.index(history.arrival_s[born]) * groups + history.category[born]
    blocks = totals(lives.weight, cell, windows.count * groups)
    seconds = np.bincount(cell, lives.value * lives.weight, minlength=windows.count * groups)
    return tuple(
        WindowLifetime(
            start_s=windows.start_s(int(k) // groups),
            category=history.categories[int(k) % groups],
            blocks=int(blocks[k]),
            mean_s=float(seconds[k] / blocks[k]),
        )
        for k in np.flatnonzero(blocks)
    )


def working_set(store: Store, trace: Trace, history: History | None = None) -> WorkingSet | None:
    """Return the number of live blocks over time: the capacity that misses no reuse.

    A block is alive at t if first touch <= t < last touch. Mean and p99 weigh by time. None
    without hashes. Source: ATC'25, Figure 22.
    """
    if not trace.has_hashes:
        return None
    history = history or load_history(store, trace)
    requests = len(history.arrival_s)
    born = totals(history.lifespan_blocks, history.first.astype(np.int64), requests)
    died = totals(history.lifespan_blocks, history.last.astype(np.int64), requests)
    at_s, starts = np.unique(history.arrival_s, return_index=True)
    level = np.cumsum(np.add.reduceat(born - died, starts))  # from at_s[i] until at_s[i + 1]
    lasts = np.diff(at_s)
    order = np.argsort(level[:-1])
    microseconds = np.round(lasts[order] * 1e6).astype(np.int64)  # integers, so ranks are exact
    by_time = Weighted(level[:-1][order].astype(np.float64), microseconds)
    still = by_time.weight.sum() == 0  # all requests at once: nothing lives
    p99 = quantiles(by_time, np.zeros(len(lasts), dtype=np.int64), 1, np.array([99]))[0, 0]
    starts_s, peaks = _series(at_s, level, trace.span_s)
    return WorkingSet(
        peak_blocks=int(level.max()),
        mean_blocks=0.0 if still else float((level[:-1] * lasts).sum() / lasts.sum()),
        p99_blocks=0 if still else int(p99),
        at_s=tuple(starts_s.tolist()),
        blocks=tuple(peaks.tolist()),
    )


def _series(at_s: Float64s, level: Int64s, span_s: float) -> tuple[Float64s, Int64s]:
    """Return the starts in seconds and the peaks in blocks of a hundred equal windows."""
    if span_s <= 0:
        return np.zeros(1), level[:1]
    starts = np.arange(SERIES_POINTS, dtype=np.float64) * (span_s / SERIES_POINTS)
    before = np.searchsorted(at_s, starts, side="right") - 1
    peaks = level[np.maximum(before, 0)].copy()  # arrivals count from 0, so something is before
    stretch = np.minimum(np.searchsorted(starts, at_s, side="right") - 1, SERIES_POINTS - 1)
    np.maximum.at(peaks, stretch, level)
    return starts, peaks

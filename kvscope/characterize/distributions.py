"""Time windows of a trace, and distributions of weighted values by group, such as reuse gaps.

Values are sorted once and then summarized by any number of groupings, in a tenth of the time of
SQL window functions. They are read in parts, since they may stay on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.disk_columns import Column, stretches
from kvscope.core.percentiles import Quantiles
from kvscope.core.trace import Trace

DAY_S = 86_400.0
_MOST_DAYS = 3_653  # ten years: bounds the number of windows
_ROUND_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0),
    *(3_600.0, 7_200.0, 14_400.0, 21_600.0, 43_200.0, DAY_S),
)


class Windows(Struct, frozen=True):
    """`count` windows of `length_s` from the trace's start; later times belong to the last one."""

    length_s: float
    count: int

    @property
    def parameters(self) -> dict[str, float | int]:
        """The parameters of SQL queries by window: `window_s` and `last_window`, an index."""
        return {"window_s": self.length_s, "last_window": self.count - 1}

    def start_s(self, index: int) -> float:
        """Return the start of window `index` in seconds."""
        return index * self.length_s

    def index(self, at_s: Float64s) -> Int64s:
        """Return the index of the window that contains each time."""
        return np.minimum(np.floor(at_s / self.length_s), self.count - 1).astype(np.int64)


def round_windows(trace: Trace, about: int = 60, rate_scale: float = 1.0) -> Windows:
    """Return at most `about` windows of a round length: seconds, minutes, hours, days.

    The windows cover a trace replayed `rate_scale` times as fast.
    """
    span_s = trace.span_s / rate_scale
    least_s = span_s / about
    length = next(
        (length for length in _ROUND_S if length >= least_s), math.ceil(least_s / DAY_S) * DAY_S
    )
    return Windows(length, max(math.ceil(span_s / length), 1))


def equal_windows(trace: Trace, count: int) -> Windows:
    """Return `count` windows of equal length; one window for a trace without a span."""
    if trace.span_s <= 0:
        return Windows(1.0, 1)
    return Windows(trace.span_s / count, count)


def day_windows(trace: Trace) -> Windows:
    """Return one window per day; less than half a day at the end belongs to the day before.

    A trace of more than ten years (its clock must be wrong) has windows of several days.
    """
    length = max(math.ceil(trace.span_s / DAY_S / _MOST_DAYS), 1) * DAY_S
    return Windows(length, max(math.floor(trace.span_s / length + 0.5), 1))


Rates = tuple[float, ...]
HeatMap = tuple[Rates, ...]
Turns = Literal["all", "single", "multi"]


class Summary(Struct, frozen=True):
    """A distribution in six numbers; the name of the field that has it tells the unit."""

    mean: float
    p50: float
    p80: float
    p90: float
    p99: float
    max: float

    @property
    def quantiles(self) -> Quantiles:
        """The four quantiles, without mean and maximum, for JSON documents."""
        return Quantiles(self.p50, self.p80, self.p90, self.p99)


GRID_POINTS = 60
GRID_FROM_S = 0.01
_PERCENTS = np.array([50, 80, 90, 99, 100])


class Weighted(Struct, frozen=True):
    """K values in ascending order, each with a `weight` (a positive integer count)."""

    value: Column
    weight: Column


GroupOf = Callable[[slice], Int64s]
"""A function from a slice of sorted values to the group number of each value in it."""


def log_grid(span_s: float) -> Float64s:
    """Return sixty times (s), evenly spaced in log: 10 ms to the trace's span, at least 1 s."""
    return np.geomspace(GRID_FROM_S, max(span_s, 1.0), GRID_POINTS)


def totals(weight: Int64s, group: Int64s, groups: int) -> Int64s:
    """Return the sum of weights by group."""
    return np.bincount(group, weight, minlength=groups).astype(np.int64)


def quantiles(of: Weighted, group: GroupOf, groups: int, percents: Int64s) -> Float64s:
    """Return weighted nearest-rank quantiles, groups × percents; NaN for a group without values.

    `group` returns the group numbers, below `groups`, of the values in a slice of `of`.
    """
    total = np.zeros(groups, dtype=np.int64)
    for part in stretches(len(of.value)):
        total += totals(of.weight[part], group(part), groups)
    return _quantiles(of, group, total, percents)


def _quantiles(of: Weighted, group: GroupOf, total: Int64s, percents: Int64s) -> Float64s:
    """Return what `quantiles` does, given the `total` weight of each group."""
    groups = len(total)
    values = np.full((groups, len(percents)), np.nan)
    rank = -(-percents[None, :] * total[:, None] // 100)
    small = np.int16 if groups <= np.iinfo(np.int16).max else np.int32  # radix sort up to 16 bits
    before = np.zeros((groups, 1), dtype=np.int64)
    for part in stretches(len(of.value)):
        own, weight = group(part), of.weight[part]
        here = totals(weight, own, groups)
        order = np.argsort(own.astype(small), kind="stable")
        inside = (rank > before) & (rank <= before + here[:, None])
        place = (rank - before + (np.cumsum(here) - here)[:, None])[inside]
        upto = np.cumsum(weight[order])
        values[inside] = of.value[part][order[np.searchsorted(upto, place)]]
        before += here[:, None]
    return values


def points_below(value: Float64s, grid: Float64s) -> Int64s:
    """Return the number of grid points below each value; both are in ascending order."""
    begins = np.searchsorted(value, grid, side="right")
    return np.repeat(np.arange(len(grid) + 1), np.diff(begins, prepend=0, append=len(value)))


def summary(of: Weighted) -> Summary | None:
    """Return the summary of all values, None if there are none."""
    (whole,) = _described(of, _together, (None,), np.zeros(0))
    return whole.summary if whole else None


def _together(part: slice) -> Int64s:
    return np.zeros(part.stop - part.start, dtype=np.int64)


class Described(NamedTuple):
    """The values of one category (None: all): total weight, summary, CDF on `describe`'s `grid`."""

    category: str | None
    weight: int
    summary: Summary
    cdf: Rates


def describe(
    of: Weighted, category: GroupOf, names: Sequence[str], grid: Float64s
) -> tuple[Described | None, list[Described]]:
    """Return `Described` of all values (None if there are none), and of each category with values.

    `category` returns the indices in `names` of the values in a slice of `of`. A CDF is the share
    of the weight up to each point of `grid`.
    """
    (overall,) = _described(of, _together, (None,), grid)
    return overall, [each for each in _described(of, category, names, grid) if each]


def _described(
    of: Weighted, group: GroupOf, names: Sequence[str | None], grid: Float64s
) -> list[Described | None]:
    shape = len(names), len(grid) + 1
    counts, weighted = np.zeros(shape, dtype=np.int64), np.zeros(len(names))
    for part in stretches(len(of.value)):
        value, weight, own = of.value[part], of.weight[part], group(part)
        point = points_below(value, grid)
        counts += totals(weight, own * shape[1] + point, counts.size).reshape(shape)
        weighted += np.bincount(own, value * weight, minlength=len(names))
    total = counts.sum(axis=1)
    share = np.cumsum(counts, axis=1)[:, :-1] / np.maximum(total, 1)[:, None]
    at = _quantiles(of, group, total, _PERCENTS)
    return [
        Described(name, int(total[k]), Summary(float(weighted[k] / total[k]), *at[k].tolist()), cdf)
        if total[k]
        else None
        for k, (name, cdf) in enumerate(zip(names, map(tuple, share.tolist()), strict=True))
    ]

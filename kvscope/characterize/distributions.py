"""Distributions of weighted values by group, such as reuse gaps of blocks by category.

Values are sorted once and then summarized by any number of groupings: a tenth of the time that
SQL's window functions take over the runs. They are read in stretches: they may stay on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.disk_columns import Column, stretches
from kvscope.core.percentiles import Quantiles

Rates = tuple[float, ...]
HeatMap = tuple[Rates, ...]
Turns = Literal["all", "single", "multi"]


@dataclass(frozen=True, slots=True)
class Summary:
    """One distribution in six numbers; the field that holds it names the unit."""

    mean: float
    p50: float
    p80: float
    p90: float
    p99: float
    max: float

    @property
    def quantiles(self) -> Quantiles:
        """The four quantiles, as the JSON documents have them."""
        return Quantiles(self.p50, self.p80, self.p90, self.p99)


GRID_POINTS = 60
GRID_FROM_S = 0.01
_PERCENTS = np.array([50, 80, 90, 99, 100])


@dataclass(frozen=True, slots=True)
class Weighted:
    """K values in ascending order, each standing for `weight` things (positive integers)."""

    value: Column
    weight: Column


GroupOf = Callable[[slice], Int64s]
"""The group of each value in a stretch of them."""


def log_grid(span_s: float) -> Float64s:
    """Return sixty times in seconds, from 10 ms to the trace's span, evenly spaced in log."""
    return np.geomspace(GRID_FROM_S, max(span_s, 1.0), GRID_POINTS)


def totals(weight: Int64s, group: Int64s, groups: int) -> Int64s:
    """Return the sum of weights by group."""
    return np.bincount(group, weight, minlength=groups).astype(np.int64)


def quantiles(of: Weighted, group: GroupOf, groups: int, percents: Int64s) -> Float64s:
    """Return nearest-rank quantiles, groups × percents; NaN for a group without values."""
    values = np.full((groups, len(percents)), np.nan)
    total = _sums(of, group, groups)[0]
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
        values[inside] = of.value[part][order][np.searchsorted(upto, place)]
        before += here[:, None]
    return values


def _sums(of: Weighted, group: GroupOf, groups: int) -> tuple[Int64s, Float64s]:
    """Return the sum of the weights, and that of values times weights, by group."""
    weights, values = np.zeros(groups, dtype=np.int64), np.zeros(groups)
    for part in stretches(len(of.value)):
        own, weight = group(part), of.weight[part]
        weights += totals(weight, own, groups)
        values += np.bincount(own, of.value[part] * weight, minlength=groups)
    return weights, values


def summaries(of: Weighted, group: GroupOf, groups: int) -> list[Summary | None]:
    """Return one summary a group, None for a group without values."""
    total, weighted = _sums(of, group, groups)
    at = quantiles(of, group, groups, _PERCENTS)
    return [
        Summary(float(weighted[k] / total[k]), *(float(value) for value in at[k]))
        if total[k]
        else None
        for k in range(groups)
    ]


def summary(of: Weighted) -> Summary | None:
    """Return the summary of all values, None if there are none."""
    return summaries(of, _together, 1)[0]


def _together(part: slice) -> Int64s:
    return np.zeros(part.stop - part.start, dtype=np.int64)


def cdfs(of: Weighted, group: GroupOf, groups: int, grid: Float64s) -> list[Rates]:
    """Return the share of each group's weight up to each point of the grid; 0 without values."""
    points = len(grid)
    flat = np.zeros(groups * (points + 1), dtype=np.int64)
    for part in stretches(len(of.value)):
        bucket = np.searchsorted(grid, of.value[part])  # the first point not below the value
        flat += totals(of.weight[part], group(part) * (points + 1) + bucket, len(flat))
    below = np.cumsum(flat.reshape(groups, points + 1), axis=1)
    share = below[:, :points] / np.maximum(below[:, -1:], 1)
    return [tuple(row) for row in share.tolist()]


def cdf(of: Weighted, grid: Float64s) -> Rates:
    """Return the share of all weight up to each point of the grid."""
    return cdfs(of, _together, 1, grid)[0]


class Described(NamedTuple):
    """The values of one category (None: all of them): their weight, summary and CDF."""

    category: str | None
    weight: int
    summary: Summary
    cdf: Rates


def describe(
    of: Weighted, category: GroupOf, names: Sequence[str], grid: Float64s
) -> tuple[Described | None, list[Described]]:
    """Return the description of all values (None if there are none), and by category with any."""
    groups = len(names)
    weights = _sums(of, category, groups)[0]
    each = zip(
        names,
        weights.tolist(),
        summaries(of, category, groups),
        cdfs(of, category, groups, grid),
        strict=True,
    )
    whole = summary(of)
    overall = Described(None, int(weights.sum()), whole, cdf(of, grid)) if whole else None
    return overall, [
        Described(name, weight, numbers, along) for name, weight, numbers, along in each if numbers
    ]

"""Distributions of weighted values by group, such as reuse gaps of blocks by category.

Values are sorted once and then summarized by any number of groupings: a tenth of the time that
SQL's window functions take over the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
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

    value: Float64s
    weight: Int64s


def log_grid(span_s: float) -> Float64s:
    """Return sixty times in seconds, from 10 ms to the trace's span, evenly spaced in log."""
    return np.geomspace(GRID_FROM_S, max(span_s, 1.0), GRID_POINTS)


def totals(weight: Int64s, group: Int64s, groups: int) -> Int64s:
    """Return the sum of weights by group."""
    return np.bincount(group, weight, minlength=groups).astype(np.int64)


def quantiles(of: Weighted, group: Int64s, groups: int, percents: Int64s) -> Float64s:
    """Return nearest-rank quantiles, groups × percents; NaN for a group without values."""
    total = totals(of.weight, group, groups)
    values = np.full((groups, len(percents)), np.nan)
    if len(of.value) == 0:
        return values
    small = np.int16 if groups <= np.iinfo(np.int16).max else np.int32  # radix sort up to 16 bits
    order = np.argsort(group.astype(small), kind="stable")
    rank = np.cumsum(of.weight[order])
    before = np.cumsum(total) - total
    ranks = before[:, None] + -(-percents[None, :] * total[:, None] // 100)
    some = total > 0
    values[some] = of.value[order][np.searchsorted(rank, ranks[some])]
    return values


def summaries(of: Weighted, group: Int64s, groups: int) -> list[Summary | None]:
    """Return one summary a group, None for a group without values."""
    total = totals(of.weight, group, groups)
    weighted = np.bincount(group, of.value * of.weight, minlength=groups)
    at = quantiles(of, group, groups, _PERCENTS)
    return [
        Summary(float(weighted[k] / total[k]), *(float(value) for value in at[k]))
        if total[k]
        else None
        for k in range(groups)
    ]


def summary(of: Weighted) -> Summary | None:
    """Return the summary of all values, None if there are none."""
    return summaries(of, np.zeros(len(of.value), dtype=np.int64), 1)[0]


def cdfs(of: Weighted, group: Int64s, groups: int, grid: Float64s) -> list[Rates]:
    """Return the share of each group's weight up to each point of the grid; 0 without values."""
    points = len(grid)
    bucket = np.searchsorted(grid, of.value)  # the first point that is not below the value
    flat = totals(of.weight, group * (points + 1) + bucket, groups * (points + 1))
    below = np.cumsum(flat.reshape(groups, points + 1), axis=1)
    share = below[:, :points] / np.maximum(below[:, -1:], 1)
    return [tuple(row) for row in share.tolist()]


def cdf(of: Weighted, grid: Float64s) -> Rates:
    """Return the share of all weight up to each point of the grid."""
    return cdfs(of, np.zeros(len(of.value), dtype=np.int64), 1, grid)[0]


class Described(NamedTuple):
    """The values of one category (None: all of them): their weight, summary and CDF."""

    category: str | None
    weight: int
    summary: Summary
    cdf: Rates


def describe(
    of: Weighted, category: Int64s, names: Sequence[str], grid: Float64s
) -> tuple[Described | None, list[Described]]:
    """Return the description of all values (None if there are none), and by category with any."""
    groups = len(names)
    each = zip(
        names,
        totals(of.weight, category, groups).tolist(),
        summaries(of, category, groups),
        cdfs(of, category, groups, grid),
        strict=True,
    )
    whole = summary(of)
    overall = Described(None, int(of.weight.sum()), whole, cdf(of, grid)) if whole else None
    return overall, [
        Described(name, weight, numbers, along) for name, weight, numbers, along in each if numbers
    ]

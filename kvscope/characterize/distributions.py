"""Distributions of weighted values by group, such as reuse gaps of blocks by category.

Values come sorted once and are then summarized by as many groupings as wanted. SQL could say the
same with window functions over the runs, but this takes a tenth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
        """The four quantiles alone, as the JSON documents carry them."""
        return Quantiles(self.p50, self.p80, self.p90, self.p99)


GRID_POINTS = 60
GRID_FROM_S = 0.01
_PERCENTS = np.array([50, 80, 90, 99, 100])


@dataclass(frozen=True, slots=True)
class Weighted:
    """K values in ascending order, each standing for `weight` things (positive integers)."""

    value: NDArray[np.float64]
    weight: NDArray[np.int64]


def log_grid(span_s: float) -> NDArray[np.float64]:
    """Sixty times from 10 ms to the trace's span, evenly spaced in their logarithm."""
    return np.geomspace(GRID_FROM_S, max(span_s, 1.0), GRID_POINTS)


def totals(weight: NDArray[np.int64], group: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """Sum of weights by group."""
    return np.bincount(group, weight, minlength=groups).astype(np.int64)


def quantiles(
    of: Weighted, group: NDArray[np.int64], groups: int, percents: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Nearest-rank quantiles by group, groups × percents; NaN for a group without values."""
    total = totals(of.weight, group, groups)
    found = np.full((groups, len(percents)), np.nan)
    if len(of.value) == 0:
        return found
    small = np.int16 if groups <= np.iinfo(np.int16).max else np.int32  # radix sort up to 16 bits
    order = np.argsort(group.astype(small), kind="stable")
    rank = np.cumsum(of.weight[order])
    before = np.cumsum(total) - total
    wanted = before[:, None] + -(-percents[None, :] * total[:, None] // 100)
    some = total > 0
    found[some] = of.value[order][np.searchsorted(rank, wanted[some])]
    return found


def summaries(of: Weighted, group: NDArray[np.int64], groups: int) -> list[Summary | None]:
    """One summary a group, None for a group without values."""
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
    """The summary of all values, None if there are none."""
    return summaries(of, np.zeros(len(of.value), dtype=np.int64), 1)[0]


def cdfs(
    of: Weighted, group: NDArray[np.int64], groups: int, grid: NDArray[np.float64]
) -> list[Rates]:
    """Share of each group's weight at or below each point of the grid; zeros without values."""
    points = len(grid)
    bucket = np.searchsorted(grid, of.value)  # the first point that is not below the value
    flat = totals(of.weight, group * (points + 1) + bucket, groups * (points + 1))
    below = np.cumsum(flat.reshape(groups, points + 1), axis=1)
    share = below[:, :points] / np.maximum(below[:, -1:], 1)
    return [tuple(row) for row in share.tolist()]


def cdf(of: Weighted, grid: NDArray[np.float64]) -> Rates:
    """The same of all values together."""
    return cdfs(of, np.zeros(len(of.value), dtype=np.int64), 1, grid)[0]

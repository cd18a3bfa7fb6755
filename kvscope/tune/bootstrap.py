"""How sure a gain is: conversations drawn again and again, all policies on the same draws.

A conversation is drawn whole, since its turns are anything but independent. What is drawn are the
latencies that the one replay gave: how conversations compete for the cache is not replayed anew.

Source: Efron & Tibshirani, "An Introduction to the Bootstrap", chapter 13 (percentile interval);
Davison & Hinkley, "Bootstrap Methods", section 2.4 (cluster sampling).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.jit import callable_in_kernels, kernel
from kvscope.tune.objective import Target
from kvscope.units import format_percentile

DRAWS = 1000
CONFIDENCE = 0.95
_PERCENTILES = (0.5, 0.9, 0.95, 0.99)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Gain:
    """By which share (0-1) a figure is less than the baseline's, and its 95 % interval.

    Negative where it is more. 0 where the baseline has nothing to reduce.
    """

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether it is a gain: its interval lies above 0."""
        return self.low > 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """Figures of one policy's latencies: as they are (F entries), and in D draws (D x F)."""

    told: NDArray[np.float64]
    drawn: NDArray[np.float64]


class Bootstrap:
    """Draws conversations with replacement: the same draws for everything that it is asked.

    `conversation` has an entry a request. Figures are p50, p90, p95, p99, the target's percentile,
    `violations` (a share) and `tel` (a mean).
    """

    def __init__(
        self,
        conversation: NDArray[np.int32],
        target: Target,
        *,
        draws: int = DRAWS,
        seed: int = 0,
    ) -> None:
        _, cluster = np.unique(conversation, return_inverse=True)
        self._cluster = cluster.astype(np.int32)
        self._ranks = np.array(sorted({*_PERCENTILES, target.percentile}))
        self._slo_s, self._draws, self._seed = target.slo_s, draws, seed
        percentiles = [format_percentile(float(rank)) for rank in self._ranks]
        self._names = (*percentiles, "violations", "tel")

    def figures(self, ttft_s: NDArray[np.float64]) -> Drawn:
        """The figures of latencies in seconds, an entry a request."""
        order = np.argsort(ttft_s, kind="stable")
        ascending, cluster = ttft_s[order], self._cluster[order]
        weight = np.ones(int(cluster.max()) + 1, dtype=np.int32)
        found = np.empty((1 + self._draws, len(self._names)))
        _draw(ascending, cluster, weight, self._ranks, self._slo_s, np.uint64(self._seed), found)
        return Drawn(found[0], found[1:])

    def gains(self, baseline: Drawn, candidate: Drawn) -> dict[str, Gain]:
        """By how much the candidate's figures are less than the baseline's, by their names."""
        less = _less(baseline.drawn, candidate.drawn)
        low, high = np.quantile(less, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        value = _less(baseline.told, candidate.told)
        return {
            name: Gain(float(value[at]), float(low[at]), float(high[at]))
            for at, name in enumerate(self._names)
        }


def objective_of(target: Target) -> str:
    """The name of the gain that decides."""
    if target.measure == "violations":
        return "violations"
    return format_percentile(target.percentile)


def surely_better(found: Mapping[str, Gain], target: Target) -> bool:
    """Whether what the target measures is surely less than the baseline's."""
    return found[objective_of(target)].sure


def _less(baseline: NDArray[np.float64], candidate: NDArray[np.float64]) -> NDArray[np.float64]:
    """(baseline - candidate) / baseline, 0 where there is nothing to be less than."""
    some = (baseline > 0) & np.isfinite(baseline) & np.isfinite(candidate)
    return np.where(some, 1 - candidate / np.where(some, baseline, 1.0), 0.0)


@kernel
def _draw(
    ascending: NDArray[np.float64],
    cluster: NDArray[np.int32],
    weight: NDArray[np.int32],
    ranks: NDArray[np.float64],
    slo_s: float,
    seed: np.uint64,
    found: NDArray[np.float64],
) -> None:
    """Fill `found`: with each cluster once, then a row a draw of as many, with replacement.

    `weight`, with an entry a cluster, is 1 throughout and serves as scratch space. The same seed
    gives the same draws. Source of the numbers: splitmix64 (Steele, Lea & Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014).
    """
    _figures(ascending, cluster, weight, ranks, slo_s, found[0])
    state = seed
    for draw in range(1, len(found)):
        weight[:] = 0
        for _ in range(len(weight)):
            state += _STEP
            x = state
            x = (x ^ (x >> np.uint64(30))) * _FIRST
            x = (x ^ (x >> np.uint64(27))) * _SECOND
            x ^= x >> np.uint64(31)
            weight[int((x >> np.uint64(11)) * _UNIT * len(weight))] += 1
        _figures(ascending, cluster, weight, ranks, slo_s, found[draw])


@callable_in_kernels
def _figures(
    ascending: NDArray[np.float64],
    cluster: NDArray[np.int32],
    weight: NDArray[np.int32],
    ranks: NDArray[np.float64],
    slo_s: float,
    found: NDArray[np.float64],
) -> None:
    """Fill `found`: nearest-rank percentiles, then the share beyond the SLO, then the mean excess.

    Request k counts weight[cluster[k]] times.
    """
    total = 0
    for k in range(len(ascending)):
        total += weight[cluster[k]]
    seen = 0
    at = 0
    beyond = 0
    excess = 0.0
    for k in range(len(ascending)):
        count = weight[cluster[k]]
        if count == 0:
            continue
        seen += count
        while at < len(ranks) and seen >= ranks[at] * total - 1e-9:
            found[at] = ascending[k]
            at += 1
        if ascending[k] > slo_s:
            beyond += count
            excess += count * (ascending[k] - slo_s)
    found[len(ranks)] = beyond / total
    found[len(ranks) + 1] = excess / total

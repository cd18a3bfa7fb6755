"""How sure a gain is: what was served is drawn again and again, all policies on the same draws.

Conversations are drawn whole, since their turns are anything but independent; and so, beside that,
are stretches of time, since those who were there at one time competed for one cache. The wider
interval counts. What is drawn are the latencies that the one replay gave.

Source: Efron & Tibshirani, "An Introduction to the Bootstrap", chapter 13 (percentile interval);
Davison & Hinkley, "Bootstrap Methods", section 2.4 (clusters), section 8.2.3 (blocks of time).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.units import format_percentile
from kvscope.tuning.target import Target

DRAWS = 1000
CONFIDENCE = 0.95
FEWEST = 10
"""Conversations that an interval needs: draws of fewer are too much alike to tell anything."""
_PERCENTILES = (0.5, 0.9, 0.95, 0.99)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Gain:
    """By which share (0-1) a figure is less than the baseline's, and its 95 % interval.

    Negative where it is more. 0 where the baseline has nothing to reduce. The interval is all there
    is where the conversations are too few to tell.
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
    """Figures of one policy's latencies: as they are (F entries), and in draws.

    `drawn` is 2 x D x F: D draws of conversations, and as many of stretches of time.
    """

    told: NDArray[np.float64]
    drawn: NDArray[np.float64]


class Bootstrap:
    """Draws with replacement from the judged requests: the same draws for all that it is asked.

    `conversation` has an entry a request, in order of arrival. Figures are p50, p90, p95, p99, the
    target's percentile, `violations` (a share) and `tel` (a mean).
    """

    def __init__(
        self,
        conversation: NDArray[np.int32],
        target: Target,
        *,
        draws: int = DRAWS,
        seed: int = 0,
    ) -> None:
        known, cluster = np.unique(conversation, return_inverse=True)
        self.conversations = len(known)
        requests = len(conversation)
        stretch = np.arange(requests) // max(math.isqrt(requests), 1)
        self._clusters = [one.astype(np.int32) for one in (cluster, stretch)]
        self._ranks = np.array(sorted({*_PERCENTILES, target.percentile}))
        self._target, self._draws, self._seed = target, draws, seed
        percentiles = [format_percentile(float(rank)) for rank in self._ranks]
        self._names = (*percentiles, "violations", "tel")

    def figures(self, ttft_s: NDArray[np.float64]) -> Drawn:
        """The figures of latencies in seconds, an entry a request."""
        order = np.argsort(ttft_s, kind="stable")
        ascending, seed = ttft_s[order], np.uint64(self._seed)
        found = np.empty((len(self._clusters), 1 + self._draws, len(self._names)))
        for way, cluster in enumerate(self._clusters):
            weight = np.ones(int(cluster.max()) + 1, dtype=np.int32)
            slo_s = self._target.slo_s
            _draw(ascending, cluster[order], weight, self._ranks, slo_s, seed, found[way])
        return Drawn(found[0, 0], found[:, 1:])

    def gains(self, baseline: Drawn, candidate: Drawn) -> dict[str, Gain]:
        """By how much the candidate's figures are less than the baseline's, by their names."""
        less = np.sort(_less(baseline.drawn, candidate.drawn), axis=1)
        ends = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) * self._draws
        ends = less[:, np.ceil(ends - 1e-9).astype(np.int64) - 1]  # nearest rank
        low, high = ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)
        value = _less(baseline.told, candidate.told)
        if self.conversations < FEWEST:
            low, high = np.full_like(value, -np.inf), np.full_like(value, np.inf)
        return {
            name: Gain(float(value[at]), float(low[at]), float(high[at]))
            for at, name in enumerate(self._names)
        }

    def surely_less(self, baseline: Drawn, candidate: Drawn) -> bool:
        """Whether what the target measures is surely less in the candidate."""
        return surely_better(self.gains(baseline, candidate), self._target)

    def keeps(self, drawn: Drawn) -> float:
        """The share of the draws (0-1) in which the target is met; of both ways the smaller."""
        at = self._names.index(format_percentile(self._target.percentile))
        return float((drawn.drawn[..., at] <= self._target.slo_s).mean(axis=1).min())

    def interval(self, drawn: Drawn, name: str) -> tuple[float, float]:
        """Between which values a figure lies in 95 % of the draws; of both ways the wider ends."""
        found = drawn.drawn[..., self._names.index(name)]
        low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
        return float(low.min()), float(high.max())


def objective_of(target: Target) -> str:
    """The name of the gain that decides."""
    if target.measure == "violations":
        return "violations"
    return format_percentile(target.percentile)


def surely_better(found: Mapping[str, Gain], target: Target) -> bool:
    """Whether what the target measures is surely less than the baseline's."""
    return found[objective_of(target)].sure


def _less(baseline: NDArray[np.float64], candidate: NDArray[np.float64]) -> NDArray[np.float64]:
    """(baseline - candidate) / baseline, 0 where there is nothing to be less than.

    An infinite baseline is reduced by all of itself, or by nothing.
    """
    some = (baseline > 0) & np.isfinite(baseline)
    less = np.where(some, 1 - candidate / np.where(some, baseline, 1.0), 0.0)
    return np.where(np.isinf(baseline) & np.isfinite(candidate), 1.0, less)


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
        for k in range(len(weight)):  # a slice assigned would take a second to compile
            weight[k] = 0
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

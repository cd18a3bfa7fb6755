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

from kvscope.jit import kernel
from kvscope.tune.objective import Target
from kvscope.units import format_percentile

DRAWS = 1000
CONFIDENCE = 0.95
FEWEST = 10
"""Conversations that an interval needs: draws of fewer are too much alike to tell anything."""
_PERCENTILES = (0.5, 0.9, 0.95, 0.99)


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
        known, self._cluster = np.unique(conversation, return_inverse=True)
        self.conversations = len(known)
        self._ranks = np.array(sorted({*_PERCENTILES, target.percentile}))
        self._slo_s, self._draws, self._seed = target.slo_s, draws, seed
        percentiles = [format_percentile(float(rank)) for rank in self._ranks]
        self._names = (*percentiles, "violations", "tel")

    def figures(self, ttft_s: NDArray[np.float64]) -> Drawn:
        """The figures of latencies in seconds, an entry a request."""
        order = np.argsort(ttft_s, kind="stable")
        ascending, cluster = ttft_s[order], self._cluster[order].astype(np.int64)
        clusters = int(cluster.max()) + 1
        drawn = np.empty((self._draws, len(self._names)))
        generator = np.random.default_rng(self._seed)
        for draw in range(self._draws):
            weight = np.bincount(generator.integers(clusters, size=clusters), minlength=clusters)
            drawn[draw] = _figures(ascending, cluster, weight, self._ranks, self._slo_s)
        once = np.ones(clusters, dtype=np.int64)
        told = _figures(ascending, cluster, once, self._ranks, self._slo_s)
        return Drawn(told, drawn)

    def gains(self, baseline: Drawn, candidate: Drawn) -> dict[str, Gain]:
        """By how much the candidate's figures are less than the baseline's, by their names."""
        less = np.sort(_less(baseline.drawn, candidate.drawn), axis=0)
        ends = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) * len(less)
        low, high = less[np.ceil(ends - 1e-9).astype(np.int64) - 1]  # nearest rank
        value = _less(baseline.told, candidate.told)
        if self.conversations < FEWEST:
            low, high = np.full_like(value, -np.inf), np.full_like(value, np.inf)
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
    """(baseline - candidate) / baseline, 0 where there is nothing to be less than.

    An infinite baseline is reduced by all of itself, or by nothing.
    """
    some = (baseline > 0) & np.isfinite(baseline)
    less = np.where(some, 1 - candidate / np.where(some, baseline, 1.0), 0.0)
    return np.where(np.isinf(baseline) & np.isfinite(candidate), 1.0, less)


@kernel
def _figures(
    ascending: NDArray[np.float64],
    cluster: NDArray[np.int64],
    weight: NDArray[np.int64],
    ranks: NDArray[np.float64],
    slo_s: float,
) -> NDArray[np.float64]:
    """Nearest-rank percentiles, then the share beyond the SLO, then the mean excess.

    Request k counts weight[cluster[k]] times.
    """
    total = 0
    for k in range(len(ascending)):
        total += weight[cluster[k]]
    found = np.zeros(len(ranks) + 2)
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
    return found

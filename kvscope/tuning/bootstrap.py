"""How certain a gain is: held-out requests are resampled, with the same draws for all policies.

Conversations are drawn whole, since their turns depend on each other; and, separately, so are
stretches of time, since concurrent requests compete for one cache. The wider interval counts. The
latencies resampled are those of one replay.

Source: Efron & Tibshirani, "An Introduction to the Bootstrap", chapter 13 (percentile interval);
Davison & Hinkley, "Bootstrap Methods", section 2.4 (clusters), section 8.2.3 (blocks of time).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.units import format_percentile
from kvscope.tuning.target import Target

RESAMPLES = 1000
CONFIDENCE = 0.95
FEWEST = 10
"""Conversations that an interval needs: resamples of fewer are too much alike."""
_PERCENTILES = (0.5, 0.9, 0.95, 0.99)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Gain:
    """The share (0-1) by which a figure is below the baseline's, and its 95 % interval.

    Negative where it is above. 0 where the baseline has nothing to reduce. The interval is infinite
    where there are too few conversations.
    """

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Return whether it is a gain: its interval lies above 0."""
        return self.low > 0


@dataclass(frozen=True, slots=True)
class Resampled:
    """F figures of one policy's latencies: `value`, and `resamples`, an array of 2 x R x F.

    The first R are resamples of conversations, the others of stretches of time.
    """

    value: NDArray[np.float64]
    resamples: NDArray[np.float64]


class Bootstrap:
    """Resamples of the held-out requests with replacement, the same ones for every policy.

    `conversation` has an entry a request, in order of arrival. Figures are p50, p90, p95, p99, the
    target's percentile, `violations` (a share) and `tel` (a mean).
    """

    def __init__(
        self,
        conversation: NDArray[np.int32],
        target: Target,
        *,
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> None:
        distinct, conversations = np.unique(conversation, return_inverse=True)
        self.conversations = len(distinct)
        requests = len(conversation)
        stretches = np.arange(requests) // max(math.isqrt(requests), 1)
        self._clusterings = [conversations.astype(np.int32), stretches.astype(np.int32)]
        self._ranks = np.array(sorted({*_PERCENTILES, target.percentile}))
        self._target, self._resamples, self._seed = target, resamples, seed
        percentiles = [format_percentile(float(rank)) for rank in self._ranks]
        self._names = (*percentiles, "violations", "tel")

    def figures(self, ttft_s: NDArray[np.float64]) -> Resampled:
        """Return the figures of latencies in seconds, one a request."""
        order = np.argsort(ttft_s, kind="stable")
        ascending, seed = ttft_s[order], np.uint64(self._seed)
        figures = np.empty((len(self._clusterings), 1 + self._resamples, len(self._names)))
        for cluster, rows in zip(self._clusterings, figures, strict=True):
            weight = np.ones(int(cluster.max()) + 1, dtype=np.int32)
            slo_s = self._target.slo_s
            _resample(ascending, cluster[order], weight, self._ranks, slo_s, seed, rows)
        return Resampled(figures[0, 0], figures[:, 1:])

    def gains(self, baseline: Resampled, candidate: Resampled) -> dict[str, Gain]:
        """Return the share by which each of the candidate's figures is below the baseline's."""
        less = np.sort(_less(baseline.resamples, candidate.resamples), axis=1)
        ends = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) * self._resamples
        ends = less[:, np.ceil(ends - 1e-9).astype(np.int64) - 1]  # nearest rank
        low, high = ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)
        value = _less(baseline.value, candidate.value)
        if self.conversations < FEWEST:
            low, high = np.full_like(value, -np.inf), np.full_like(value, np.inf)
        return {
            name: Gain(float(value[at]), float(low[at]), float(high[at]))
            for at, name in enumerate(self._names)
        }

    def significantly_better(self, baseline: Resampled, candidate: Resampled) -> bool:
        """Return whether the candidate's gain in the target's objective is significant."""
        return self.gains(baseline, candidate)[self._target.objective].significant

    def meeting_share(self, figures: Resampled) -> float:
        """Return the share (0-1) of resamples that meet the target, the smaller of both kinds."""
        at = self._names.index(format_percentile(self._target.percentile))
        return float((figures.resamples[..., at] <= self._target.slo_s).mean(axis=1).min())

    def interval(self, figures: Resampled, name: str) -> tuple[float, float]:
        """Return the 95 % interval of a figure, the wider ends of both kinds of resamples."""
        values = figures.resamples[..., self._names.index(name)]
        low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
        return float(low.min()), float(high.max())


def _less(baseline: NDArray[np.float64], candidate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (baseline - candidate) / baseline, 0 where the baseline has nothing to reduce.

    An infinite baseline is reduced by all of itself, or by nothing.
    """
    some = (baseline > 0) & np.isfinite(baseline)
    less = np.where(some, 1 - candidate / np.where(some, baseline, 1.0), 0.0)
    return np.where(np.isinf(baseline) & np.isfinite(candidate), 1.0, less)


@kernel
def _resample(
    ascending: NDArray[np.float64],
    cluster: NDArray[np.int32],
    weight: NDArray[np.int32],
    ranks: NDArray[np.float64],
    slo_s: float,
    seed: np.uint64,
    rows: NDArray[np.float64],
) -> None:
    """Fill `rows` with figures: of each cluster once, then of as many drawn with replacement.

    `weight`, with an entry a cluster, is 1 throughout and serves as scratch space. The same seed
    draws the same clusters. Source of the random numbers: splitmix64 (Steele, Lea & Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014).
    """
    _figures(ascending, cluster, weight, ranks, slo_s, rows[0])
    state = seed
    for row in range(1, len(rows)):
        for k in range(len(weight)):  # a slice assigned would take a second to compile
            weight[k] = 0
        for _ in range(len(weight)):
            state += _STEP
            x = state
            x = (x ^ (x >> np.uint64(30))) * _FIRST
            x = (x ^ (x >> np.uint64(27))) * _SECOND
            x ^= x >> np.uint64(31)
            weight[int((x >> np.uint64(11)) * _UNIT * len(weight))] += 1
        _figures(ascending, cluster, weight, ranks, slo_s, rows[row])


@callable_in_kernels
def _figures(
    ascending: NDArray[np.float64],
    cluster: NDArray[np.int32],
    weight: NDArray[np.int32],
    ranks: NDArray[np.float64],
    slo_s: float,
    figures: NDArray[np.float64],
) -> None:
    """Fill `figures`: nearest-rank percentiles, then the share beyond the SLO and the mean excess.

    Request k counts weight[cluster[k]] times.
    """
    total = 0
    for k in range(len(ascending)):
        total += weight[cluster[k]]
    passed = 0
    at = 0
    late = 0
    excess = 0.0
    for k in range(len(ascending)):
        count = weight[cluster[k]]
        if count == 0:
            continue
        passed += count
        while at < len(ranks) and passed >= ranks[at] * total - 1e-9:
            figures[at] = ascending[k]
            at += 1
        if ascending[k] > slo_s:
            late += count
            excess += count * (ascending[k] - slo_s)
    figures[len(ranks)] = late / total
    figures[len(ranks) + 1] = excess / total

"""How certain a gain is: a window's requests are resampled, with the same draws for all policies.

Conversations are drawn whole, since their turns depend on each other; and, separately, so are
stretches of time, since concurrent requests compete for one cache. The wider interval counts. The
latencies resampled are those of one replay.

Source: Efron & Tibshirani, "An Introduction to the Bootstrap", chapter 13 (percentile interval);
Davison & Hinkley, "Bootstrap Methods", section 2.4 (clusters), section 8.2.3 (blocks of time).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.units import format_percentile
from kvscope.tuning.target import Target

Floats = NDArray[np.float64]

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
    """How far a figure is below the baseline's, and its 95 % interval; negative where it is above.

    A share of the baseline's figure, or a difference where the field that holds it says so. Minus
    infinity where the baseline is 0 and the figure is not. The interval is infinite where there are
    too few conversations.
    """

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Return whether it is a gain: its interval lies above 0."""
        return self.low > 0

    @property
    def degenerate(self) -> bool:
        """Return whether all resamples agree, so that the interval says nothing of the spread."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Resampled:
    """F figures of one policy's latencies: `value`, and `resamples`, an array of 2 x R x F.

    The first R are resamples of conversations, the others of stretches of time.
    """

    value: NDArray[np.float64]
    resamples: NDArray[np.float64]


class Bootstrap:
    """Resamples of a window's requests with replacement, the same ones for every policy.

    `conversation` has an entry a request, in order of arrival. Figures are p50, p90, p95, p99, the
    target's percentile, `violations` (a share) and `tel` (a mean; requests without a token are
    violations and add nothing to it).
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
        self.names = (*percentiles, "violations", "tel")

    def figures(self, ttft_s: NDArray[np.float64]) -> Resampled:
        """Return the figures of latencies in seconds, one a request."""
        order = np.argsort(ttft_s, kind="stable")
        ascending, seed = ttft_s[order], np.uint64(self._seed)
        figures = np.empty((len(self._clusterings), 1 + self._resamples, len(self.names)))
        for cluster, rows in zip(self._clusterings, figures, strict=True):
            weight = np.ones(int(cluster.max()) + 1, dtype=np.int32)
            slo_s = self._target.slo_s
            _resample(ascending, cluster[order], weight, self._ranks, slo_s, seed, rows)
        return Resampled(figures[0, 0], figures[:, 1:])

    def gains(self, baseline: Resampled, candidate: Resampled) -> dict[str, Gain]:
        """Return the share by which each of the candidate's figures is below the baseline's."""
        return self._compared(_less, baseline, candidate)

    def attainment_gain(self, baseline: Resampled, candidate: Resampled) -> Gain:
        """Return the change of the share (0-1) of requests within the SLO, a difference."""
        return self._compared(np.subtract, baseline, candidate)["violations"]

    def _compared(
        self, less: Callable[[Floats, Floats], Floats], baseline: Resampled, candidate: Resampled
    ) -> dict[str, Gain]:
        with np.errstate(invalid="ignore"):  # inf - inf
            resamples = np.sort(less(baseline.resamples, candidate.resamples), axis=1)
            value = less(baseline.value, candidate.value)
        ends = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) * self._resamples
        ends = resamples[:, np.ceil(ends - 1e-9).astype(np.int64) - 1]  # nearest rank
        low, high = ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)
        if self.conversations < FEWEST:
            low, high = np.full_like(value, -np.inf), np.full_like(value, np.inf)
        return {
            name: Gain(float(value[at]), float(low[at]), float(high[at]))
            for at, name in enumerate(self.names)
        }

    def meeting_share(self, figures: Resampled) -> float:
        """Return the share (0-1) of resamples that meet the target, the smaller of both kinds."""
        at = self.names.index(format_percentile(self._target.percentile))
        return float((figures.resamples[..., at] <= self._target.slo_s).mean(axis=1).min())

    def interval(self, figures: Resampled, name: str) -> tuple[float, float]:
        """Return the 95 % interval of a figure, the wider ends of both kinds of resamples."""
        values = figures.resamples[..., self.names.index(name)]
        low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
        return float(low.min()), float(high.max())


def _less(baseline: Floats, candidate: Floats) -> Floats:
    """Return 1 - candidate / baseline; 0 where they are equal, both 0 or both infinite included."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(candidate == baseline, 0.0, 1 - candidate / baseline)


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
            if ascending[k] < np.inf:
                excess += count * (ascending[k] - slo_s)
    figures[len(ranks)] = late / total
    figures[len(ranks) + 1] = excess / total

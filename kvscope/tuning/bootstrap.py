"""Confidence of gains: bootstrap resamples of a window's requests, the same for all policies.

Requests are resampled in clusters of three kinds: conversations, since their turns depend on each
other (users, if conversations are single requests, since a program's requests share its prompt);
short stretches of time, since concurrent requests compete for one cache; eighths of the window,
since a queue or a full cache lasts longer. The widest interval counts. The latencies resampled are
those of one replay.

Percentile intervals are too short for few clusters, and late requests are in fewer clusters still.
So intervals have the tails of Student's t for the effective number of clusters behind a figure.

Source: Davison & Hinkley, "Bootstrap Methods and their Application", 1997 (clusters, blocks of
time); Ibragimov & Müller, "t-Statistic Based Correlation and Heterogeneity Robust Inference", JBES
28(4), 2010 (few large blocks and Student's t); Hesterberg, "What Teachers Should Know About the
Bootstrap", American Statistician 69(4), 2015, arXiv 1411.5279 (expanded percentile interval; the
formula also in R's package resample, ExpandProbs); Carter, Schnepel & Steigerwald, "Asymptotic
Behavior of a t-Test Robust to Cluster Heterogeneity", Review of Economics and Statistics 99(4),
2017 (effective number of clusters).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import STEP, Float64s, fraction, mixed
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.units import format_percentile
from kvscope.tuning.target import Target

RESAMPLES = 1000
CONFIDENCE = 0.95
FEWEST = 10
"""Conversations that an interval needs: resamples of fewer are too much alike."""
_SINGLE = 1.1
"""Mean requests per conversation below which nearly all conversations are single requests."""
_EIGHTHS = 8
_PERCENTILES = (0.5, 0.9, 0.95, 0.99)


class Gain(Struct, frozen=True):
    """Relative reduction of a figure against the baseline, with its 95 % interval.

    `value` and the interval's ends `low` and `high` are shares of the baseline's figure; for SLO
    attainment (fields `attainment_gain`) differences of shares. Below 0 is worse; minus infinity:
    only the baseline's figure is 0. With too few conversations the interval is infinite.
    """

    value: float
    low: float
    high: float


class Resampled(Struct, frozen=True):
    """F figures of one policy's latencies: `value` (F), and `resamples` of these (3 x R x F).

    The three kinds are resamples of conversations, of short stretches of time and of eighths of the
    window. `clusters` (3 x F) is the effective number of clusters behind each figure.
    """

    value: NDArray[np.float64]
    resamples: NDArray[np.float64]
    clusters: NDArray[np.float64]


def clusters_of(conversation: NDArray[np.int32], user: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return each request's cluster for resampling: its conversation, or its user.

    It is the user if conversations have fewer than 1.1 requests on average, all users are known
    (not -1), and their effective number is 10 or more. Both arrays have one entry per request.
    """
    single = len(conversation) < _SINGLE * len(np.unique(conversation))
    if not single or user.min() < 0:
        return conversation
    requests = np.bincount(user).astype(np.float64)
    effective = requests.sum() ** 2 / (requests**2).sum()
    return user if effective >= FEWEST else conversation


class Bootstrap:
    """Resamples of a window's requests with replacement, the same ones for every policy.

    `conversation` has the cluster of each request, by arrival. `names` of the figures: "p50",
    "p90", "p95", "p99" and `target`'s percentile of TTFT (all s), "violations" (a share) and "tel"
    (mean excess over the SLO, s). Requests without a token are violations without excess.
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
        self._clusterings = [conversations.astype(np.int32)]
        for length in (math.isqrt(requests), -(-requests // _EIGHTHS)):
            self._clusterings.append((np.arange(requests) // max(length, 1)).astype(np.int32))
        self._ranks = np.array(sorted({*_PERCENTILES, target.percentile}))
        self._target, self._resamples, self._seed = target, resamples, seed
        percentiles = [format_percentile(float(rank)) for rank in self._ranks]
        self.names = (*percentiles, "violations", "tel")

    def figures(self, ttft_s: NDArray[np.float64]) -> Resampled:
        """Return the figures of latencies (s; one per request, by arrival) and their resamples."""
        order = np.argsort(ttft_s, kind="stable")
        ascending, seed = ttft_s[order], np.uint64(self._seed)
        figures = np.empty((len(self._clusterings), 1 + self._resamples, len(self.names)))
        for cluster, rows in zip(self._clusterings, figures, strict=True):
            weight = np.ones(int(cluster.max()) + 1, dtype=np.int32)
            slo_s = self._target.slo_s
            _resample(ascending, cluster[order], weight, self._ranks, slo_s, seed, rows)
        value = figures[0, 0]
        clusters = [self._clusters(ttft_s, cluster) for cluster in self._clusterings]
        return Resampled(value, figures[:, 1:], np.array(clusters))

    def _clusters(self, ttft_s: Float64s, cluster: NDArray[np.int32]) -> Float64s:
        """Return the effective number of clusters of each figure: (sum of x)^2 / sum of x^2.

        x is a cluster's load: its requests (percentiles), late requests or excess (TEL).
        """
        loads = np.ones(len(ttft_s)), *self._late(ttft_s)
        clusters = [_effective(load, cluster) for load in loads]
        return np.repeat(clusters, (len(self._ranks), 1, 1))

    def _late(self, ttft_s: Float64s) -> tuple[Float64s, Float64s]:
        """Return for each request whether it is late (0 or 1), and its excess over the SLO (s)."""
        late = ttft_s > self._target.slo_s
        excess = np.where(late & np.isfinite(ttft_s), ttft_s - self._target.slo_s, 0.0)
        return late.astype(np.float64), excess

    def gains(self, baseline: Resampled, candidate: Resampled) -> dict[str, Gain]:
        """Return the relative reduction of each figure against the baseline's, by name."""
        clusters = np.minimum(baseline.clusters, candidate.clusters)
        return self._compared(_less, baseline, candidate, clusters)

    def attainment_gain(self, baseline: Resampled, candidate: Resampled) -> Gain:
        """Return the change in SLO attainment, as a difference of shares (0-1)."""
        # The policy with more late requests decides how certain a difference is.
        clusters = np.maximum(baseline.clusters, candidate.clusters)
        return self._compared(np.subtract, baseline, candidate, clusters)["violations"]

    def _compared(
        self,
        less: Callable[[Float64s, Float64s], Float64s],
        baseline: Resampled,
        candidate: Resampled,
        clusters: Float64s,
    ) -> dict[str, Gain]:
        with np.errstate(invalid="ignore"):  # inf - inf
            low, high = interval(less(baseline.resamples, candidate.resamples), clusters)
            value = less(baseline.value, candidate.value)
        if self.conversations < FEWEST:
            low, high = np.full_like(value, -np.inf), np.full_like(value, np.inf)
        return {
            name: Gain(float(value[at]), float(low[at]), float(high[at]))
            for at, name in enumerate(self.names)
        }

    def likely(
        self, baseline: Resampled, candidate: Resampled, baseline_s: Float64s, candidate_s: Float64s
    ) -> float:
        """Return the probability (0-1) that attainment or TEL improves, the larger of both.

        It is one-sided; 0.95 and above counts as certain. Both arrays are latencies, paired by
        request: the probability is Student's t for the effective number of clusters behind the
        differences, the smallest over all kinds of clusters. 0 with too few conversations.
        """
        from scipy.special import ndtri, stdtr

        if self.conversations < FEWEST:
            return 0.0
        likely = []
        loads = zip(self._late(baseline_s), self._late(candidate_s), strict=True)
        for at, (before, after) in enumerate(loads, len(self._ranks)):
            lower = baseline.resamples[..., at] - candidate.resamples[..., at]
            better = (lower > 0).mean(axis=1) + (lower == 0).mean(axis=1) / 2
            least = 0.5 / self._resamples
            clusters = [_effective(np.abs(before - after), each) for each in self._clusterings]
            freedom = np.maximum(np.array(clusters) - 1, 0.1)
            deviations = ndtri(np.clip(better, least, 1 - least)) / np.sqrt(1 + 1 / freedom)
            likely.append(float(stdtr(freedom, deviations).min()))
        return max(likely)

    def meeting_share(self, figures: Resampled) -> float:
        """Return the share of resamples with `target`'s percentile in the SLO, least over kinds."""
        at = self.names.index(format_percentile(self._target.percentile))
        return float((figures.resamples[..., at] <= self._target.slo_s).mean(axis=1).min())

    def interval(self, figures: Resampled, name: str) -> tuple[float, float]:
        """Return the 95 % interval of a figure, 0 to infinity for too few conversations."""
        if self.conversations < FEWEST:
            return 0.0, math.inf
        at = self.names.index(name)
        low, high = interval(figures.resamples[..., at], figures.clusters[..., at])
        return float(low), float(high)


def _effective(load: Float64s, cluster: NDArray[np.int32]) -> float:
    """Return the effective number of clusters that carry a load: (sum of x)^2 / sum of x^2."""
    sums = np.bincount(cluster, load)
    squares = float((sums**2).sum())
    return float(sums.sum()) ** 2 / squares if squares > 0 else 0.0


def interval(resamples: Float64s, clusters: Float64s) -> tuple[Float64s, Float64s]:
    """Return the ends of the 95 % intervals of figures, the widest over kinds of resamples.

    `resamples` has the shape kinds x R (x figures); NaN is ignored. `clusters`, kinds (x figures),
    is the effective number of clusters: with 1 or fewer, the interval spans all resamples.
    """
    from scipy.special import ndtr, stdtrit

    freedom = np.maximum(clusters - 1, 0.1)  # where Student's quantile is astronomical already
    deviations = np.sqrt(1 + 1 / freedom) * stdtrit(freedom, (1 + CONFIDENCE) / 2)
    tail = ndtr(-deviations)[:, None]
    resamples = np.sort(resamples, axis=1)  # NaN come last
    count = np.count_nonzero(~np.isnan(resamples), axis=1, keepdims=True)
    ranks = (np.ceil(share * count - 1e-9).astype(np.int64) for share in (tail, 1 - tail))
    low, high = (
        np.take_along_axis(resamples, np.clip(rank - 1, 0, None), axis=1)[:, 0] for rank in ranks
    )
    return low.min(axis=0), high.max(axis=0)


def _less(baseline: Float64s, candidate: Float64s) -> Float64s:
    """Return 1 - candidate / baseline; 0 where they are equal, also if both are 0 or infinite."""
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
    """Fill `rows` with figures: row 0 of the original sample, the others of resampled clusters.

    `ascending` are latencies (s), `cluster` has the cluster of each of these. `ranks` are the
    percentiles as ascending shares (0-1): a column of `rows` each, then columns of the share beyond
    the SLO and of the mean excess (s). `weight`, one entry per cluster, is 1 throughout and serves
    as scratch space. The same seed draws the same clusters.
    """
    _figures(ascending, cluster, weight, ranks, slo_s, rows[0])
    state = seed
    for row in range(1, len(rows)):
        for k in range(len(weight)):  # a slice assigned would take a second to compile
            weight[k] = 0
        for _ in range(len(weight)):
            state += STEP
            weight[int(fraction(mixed(state)) * len(weight))] += 1
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

    Latency k (s) of `ascending` is in cluster[k] and counts weight[cluster[k]] times. `ranks` are
    the percentiles as ascending shares (0-1).
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

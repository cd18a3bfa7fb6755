"""Waits of touched blocks, censored or not, and their distribution without a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int64s

RESOLUTION_S = 1e-3  # resolution of a trace's clock at best
_LEAST_S = 1e-6  # a shorter censored wait counts as this
BIN_WIDTH = 0.01  # relative: waits that lie closer than that may be taken together


class Observations(Struct, frozen=True, dict=True):
    """K runs of touched blocks, each with one wait.

    Run k: `weight[k]` blocks were touched together and, `waited_s[k]` later, touched again
    (`reused[k]`) or, where not, still waiting when the time span ended: right-censored. Runs of one
    `cluster` (0 to C - 1) may depend on each other, those of different ones do not.
    """

    waited_s: Float64s
    reused: NDArray[np.bool_]
    weight: Float64s
    cluster: Int64s
    resolution_s: float = RESOLUTION_S

    @classmethod
    def of(
        cls,
        waited_s: NDArray[np.floating],
        reused: NDArray[np.bool_],
        weight: NDArray[np.generic] | None = None,
        cluster: NDArray[np.integer] | None = None,
        resolution_s: float = RESOLUTION_S,
    ) -> Self:
        """Return runs in any order; by default each has weight 1 and is its own cluster."""
        least_s = np.where(reused, resolution_s, _LEAST_S)
        waited = np.maximum(np.asarray(waited_s, dtype=np.float64), least_s)
        weights = np.ones(len(waited)) if weight is None else np.asarray(weight, dtype=np.float64)
        some = weights > 0
        named = np.arange(len(waited)) if cluster is None else np.asarray(cluster)
        _, numbered = np.unique(named[some], return_inverse=True)
        return cls(
            waited[some],
            np.asarray(reused, dtype=np.bool_)[some],
            weights[some],
            numbered.astype(np.int64),
            resolution_s,
        )

    @cached_property
    def total(self) -> float:
        """Number of touched blocks."""
        return float(self.weight.sum())

    @cached_property
    def total_reused(self) -> float:
        """Number of touched blocks that were reused."""
        return float(self.weight[self.reused].sum())

    @cached_property
    def reused_runs(self) -> int:
        """Number of runs that were reused."""
        return int(np.count_nonzero(self.reused))

    @cached_property
    def clusters(self) -> int:
        """Number of clusters: parts of the data that are independent."""
        return int(self.cluster.max()) + 1 if len(self.cluster) else 0

    @cached_property
    def effective(self) -> float:
        """Kish's effective size by cluster: the equivalent number of independent blocks."""
        by_cluster = np.bincount(self.cluster, self.weight)
        squares = float(by_cluster @ by_cluster)
        return self.total**2 / squares if squares else 0.0

    @cached_property
    def effective_reused(self) -> float:
        """Kish's effective size of the reused blocks."""
        by_cluster = np.bincount(self.cluster[self.reused], self.weight[self.reused])
        squares = float(by_cluster @ by_cluster)
        return self.total_reused**2 / squares if squares else 0.0

    @cached_property
    def at_once(self) -> NDArray[np.bool_]:
        """Mask of runs reused within the clock's resolution."""
        return self.reused & (self.waited_s <= self.resolution_s * (1 + 1e-9))

    def merged(self) -> Observations:
        """Return one run for each bin of waits that differ by at most 1 %, so that fits are faster.

        Reused and waiting runs have bins of their own. A bin is one run with the mean wait of its
        blocks, and its own cluster. A likelihood is smooth within a bin, so the change is of the
        second order: about 1e-5.
        """
        place = np.floor(np.log(self.waited_s / _LEAST_S) / BIN_WIDTH).astype(np.int64)
        key = np.where(self.at_once, 1, 2 * (place + 1) + self.reused)
        blocks: Float64s = np.bincount(key, self.weight).astype(np.float64)
        seconds = np.bincount(key, self.weight * self.waited_s)
        bins = np.flatnonzero(blocks)
        mean_s: Float64s = seconds[bins] / blocks[bins]
        numbered = np.arange(len(bins), dtype=np.int64)
        return Observations(mean_s, bins % 2 == 1, blocks[bins], numbered, self.resolution_s)


FEWEST_RUNS = 30  # runs of reuse that a fit needs
FEWEST_EFFECTIVE = 10.0  # independent reused blocks that a fit needs
CLOSE = 0.05  # a model that misplaces at most this share of the reuse fits, whatever n
_CRITICAL = 1.094  # critical KS distance times sqrt(n), at 5 %, rate estimated


def enough(of: Observations) -> bool:
    """Return whether there is enough reuse to fit, spread over enough conversations."""
    return of.reused_runs >= FEWEST_RUNS and of.effective_reused >= FEWEST_EFFECTIVE


def tolerance(of: Observations) -> float:
    """Return the KS distance up to which a model fits: negligible, or within sampling error.

    Source: Lilliefors, On the Kolmogorov-Smirnov test for the exponential distribution (1969).
    """
    return float(max(CLOSE, _CRITICAL / np.sqrt(max(of.effective_reused, 1.0))))


_AT_RISK = 5.0  # the curve counts where at least this many independent blocks are at risk


class KaplanMeier:
    """Kaplan-Meier curve: S(t) = the product, over reuses at u <= t, of 1 - reused(u) / at risk(u).

    At risk at u are the blocks neither reused nor censored before u; the hazard is reused(u) / at
    risk(u) at those times and 0 between. No likelihood: it is the maximum over all distributions.
    Learned: `times_s_`, ascending, at which blocks were reused; `survival_` after each of them;
    `horizon_`, the number of these times with at least five independent blocks at risk.
    Source: Kaplan and Meier, Nonparametric estimation from incomplete observations (1958).
    """

    times_s_: Float64s
    survival_: Float64s
    horizon_: int

    def fit(self, of: Observations, effective: float | None = None) -> Self:
        """Return the curve itself, fitted to `of`; `effective`: its independent blocks if known."""
        order = np.argsort(of.waited_s, kind="stable")
        times, first = np.unique(of.waited_s[order], return_index=True)
        weight = of.weight[order]
        at_risk = of.total - (np.cumsum(weight) - weight)[first]
        reused = np.add.reduceat(np.where(of.reused[order], weight, 0.0), first)
        some = reused > 0
        self.times_s_ = times[some].astype(np.float64)
        self.survival_ = np.cumprod(1.0 - reused[some] / at_risk[some]).astype(np.float64)
        alike = (of.effective if effective is None else effective) / of.total
        self._blurred = bool(np.any(of.at_once))
        self.horizon_ = int(np.count_nonzero(at_risk[some] * alike >= _AT_RISK))
        return self

    def survival(self, t: Float64s) -> Float64s:
        """Return S(t), the share of blocks not reused within t seconds."""
        steps = np.concatenate(([1.0], self.survival_))
        still: Float64s = steps[np.searchsorted(self.times_s_, t, side="right")]
        return still

    def reuse_within(self, t: Float64s) -> Float64s:
        """Return 1 - S(t), the share of blocks reused within t."""
        within: Float64s = 1.0 - self.survival(t)
        return within

    @property
    def reach_s(self) -> float:
        """Time (s) up to which the curve is reliable: times_s_[max(horizon_, 1) - 1]."""
        return float(self.times_s_[max(self.horizon_, 1) - 1])

    @property
    def reached(self) -> float:
        """Share (0-1) of blocks reused within `reach_s` seconds."""
        return float(1.0 - self.survival_[max(self.horizon_, 1) - 1])

    def distance(self, reuse_within: Callable[[Float64s], Float64s]) -> float:
        """Return the Kolmogorov-Smirnov distance of p F(t), as a share of the blocks reused.

        It is the share of the blocks reused up to `reach_s` that the model has too early or too
        late: rare reuse does not make a category count as well fitted.
        """
        counted = max(self.horizon_, 1)
        model = reuse_within(self.times_s_[:counted])
        after = 1.0 - self.survival_[:counted]
        before = np.concatenate(([0.0], after[:-1]))
        if self._blurred:  # the first step stands for all times up to there
            before[0] = model[0]
        furthest = np.maximum(np.abs(model - after), np.abs(model - before)).max()
        return float(furthest / self.reached)

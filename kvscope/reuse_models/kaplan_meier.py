"""Kaplan-Meier: the distribution of waits without a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np

from kvscope.reuse_models.observations import Floats, Observations

_AT_RISK = 5.0  # the curve counts where at least this many independent blocks are at risk


class KaplanMeier:
    """S(t) = the product, over the times u <= t of reuses, of 1 - reused(u) / at risk(u).

    At risk at u are the blocks that neither were reused nor stopped being watched before u; the
    hazard is reused(u) / at risk(u) at those times and 0 between. No likelihood: it is the maximum
    over all distributions. Learned: `times_s_`, ascending, where blocks were reused; `survival_`
    after each of them; `horizon_`, how many of them have at least five independent blocks at risk.
    Source: Kaplan and Meier, Nonparametric estimation from incomplete observations (1958).
    """

    times_s_: Floats
    survival_: Floats
    horizon_: int

    def fit(self, of: Observations, effective: float | None = None) -> Self:
        """Fit to `of`; `effective` is its number of independent blocks."""
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

    def survival(self, t: Floats) -> Floats:
        """Return S(t)."""
        steps = np.concatenate(([1.0], self.survival_))
        still: Floats = steps[np.searchsorted(self.times_s_, t, side="right")]
        return still

    def reuse_within(self, t: Floats) -> Floats:
        """Return 1 - S(t), the share of blocks reused within t."""
        within: Floats = 1.0 - self.survival(t)
        return within

    @property
    def reach_s(self) -> float:
        """Time in seconds up to which the curve counts."""
        return float(self.times_s_[max(self.horizon_, 1) - 1])

    @property
    def reached(self) -> float:
        """Share of blocks reused by `reach_s`."""
        return float(1.0 - self.survival_[max(self.horizon_, 1) - 1])

    def distance(self, reuse_within: Callable[[Floats], Floats]) -> float:
        """Return the Kolmogorov-Smirnov distance of p F(t), as a share of the blocks reused.

        Of the blocks reused up to `reach_s`, the share that comes too early or too late: a rarely
        reused category does not count as well fitted for being rare.
        """
        counted = max(self.horizon_, 1)
        model = reuse_within(self.times_s_[:counted])
        after = 1.0 - self.survival_[:counted]
        before = np.concatenate(([0.0], after[:-1]))
        if self._blurred:  # the first step stands for all times up to there
            before[0] = model[0]
        furthest = np.maximum(np.abs(model - after), np.abs(model - before)).max()
        return float(furthest / self.reached)

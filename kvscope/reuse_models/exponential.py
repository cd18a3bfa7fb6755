"""Exponential: waits without memory, the model that the workload-aware policy reads."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kvscope.learning.reuse.formulas import ReuseCounts, exponentials
from kvscope.reuse_models.base import Interval, ReuseModel
from kvscope.reuse_models.likelihood import logit
from kvscope.reuse_models.observations import Floats, Observations


class Exponential(ReuseModel):
    """S(t) = 1 - p (1 - exp(-r t)).

    Hazard: p r exp(-r t) / S(t). Log-likelihood: the sum over reused blocks of log(p r) - r t, and
    over waiting ones of log S(t). `rate_per_s` r, one over the mean wait of those that are reused.
    Source: KVCache Cache in the Wild (ATC'25), sections 3.4 and 4.2.
    """

    name: ClassVar[str] = "exponential"
    parameters: ClassVar[tuple[str, ...]] = ("rate_per_s",)
    bounds: ClassVar[tuple[Interval, ...]] = ((-25.0, 15.0),)

    def log_density(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        rt = np.exp(free[0]) * t
        return free[0] - rt, (1.0 - rt)[None]

    def wait_survival(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        rt = np.exp(free[0]) * t
        left = np.exp(-rt)
        return left, (-rt * left)[None]

    def start(self, of: Observations) -> Floats:
        """From where expectation and maximization have settled."""
        estimates = exponentials(
            ReuseCounts(
                reused=np.array([of.total_reused]),
                waited_s=np.array([of.weight[of.reused] @ of.waited_s[of.reused]]),
                waiting=of.weight[~of.reused][None],
                since_s=of.waited_s[~of.reused][None],
            )
        )
        return np.array([logit(float(estimates.p[0])), np.log(estimates.rate_per_s[0])])

    def natural(self, free: Floats) -> Floats:
        """See `ReuseModel`."""
        return np.exp(free)

"""Weibull: waits whose hazard falls (shape below 1: a heavy tail) or rises with time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kvscope.reuse_models.base import Interval, ReuseModel
from kvscope.reuse_models.likelihood import logit
from kvscope.reuse_models.observations import Floats, Observations


class Weibull(ReuseModel):
    """S(t) = 1 - p (1 - exp(-(t / s)^k)).

    Hazard: p (k / s) (t / s)^(k - 1) exp(-(t / s)^k) / S(t). Log-likelihood: the sum over reused
    blocks of log(p k / s) + (k - 1) log(t / s) - (t / s)^k, and over waiting ones of log S(t).
    `scale_s` s, by which 63 % of the waits that end are over; `shape` k, 1 is the exponential.
    """

    name: ClassVar[str] = "weibull"
    parameters: ClassVar[tuple[str, ...]] = ("scale_s", "shape")
    bounds: ClassVar[tuple[Interval, ...]] = ((-15.0, 25.0), (-4.0, 4.0))

    def log_density(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        k, log_ratio = np.exp(free[1]), np.log(t) - free[0]
        z = np.exp(np.minimum(k * log_ratio, 700.0))
        slope = np.stack((k * (z - 1.0), 1.0 + k * log_ratio * (1.0 - z)))
        return free[1] + k * log_ratio - np.log(t) - z, slope

    def wait_survival(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        k, log_ratio = np.exp(free[1]), np.log(t) - free[0]
        z = np.exp(np.minimum(k * log_ratio, 700.0))
        left = np.exp(-z)
        steep = z * left
        return left, np.stack((k * steep, -k * log_ratio * steep))

    def start(self, of: Observations) -> Floats:
        """Start from the exponential, with a slightly heavier tail."""
        hit = of.reused
        mean = float(of.weight[hit] @ of.waited_s[hit]) / of.total_reused
        share = of.total_reused / of.total
        return np.array([logit(min(share * 1.05, 0.98)), np.log(mean), -0.2])

    def natural(self, free: Floats) -> Floats:
        """See `ReuseModel`."""
        return np.exp(free)

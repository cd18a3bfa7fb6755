"""Lognormal: waits whose logarithms are normal."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kvscope.reuse_models.base import Interval, ReuseModel
from kvscope.reuse_models.likelihood import logit
from kvscope.reuse_models.observations import Floats, Observations

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class Lognormal(ReuseModel):
    """S(t) = 1 - p Phi(z), with z = log(t / m) / s and Phi the normal distribution.

    Hazard: p phi(z) / (s t S(t)). Log-likelihood: the sum over reused blocks of
    log(p phi(z) / (s t)), and over waiting ones of log S(t). `median_s` m; `sigma` s, the standard
    deviation of the logarithm.
    """

    name: ClassVar[str] = "lognormal"
    parameters: ClassVar[tuple[str, ...]] = ("median_s", "sigma")
    bounds: ClassVar[tuple[Interval, ...]] = ((-15.0, 25.0), (-5.0, 3.0))

    def log_density(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        sigma = np.exp(free[1])
        z = (np.log(t) - free[0]) / sigma
        value = -np.log(t) - free[1] - z * z / 2 - _HALF_LOG_2PI
        return value, np.stack((z / sigma, z * z - 1.0))

    def wait_survival(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        from scipy.special import ndtr

        sigma = np.exp(free[1])
        z = (np.log(t) - free[0]) / sigma
        dense = np.exp(-z * z / 2 - _HALF_LOG_2PI)
        return ndtr(-z), np.stack((dense / sigma, z * dense))

    def start(self, of: Observations) -> Floats:
        """Start from the logarithms of the uncensored waits."""
        hit = of.reused
        share = of.weight[hit] / of.total_reused
        logs = np.log(of.waited_s[hit])
        middle = float(share @ logs)
        spread = max(float(share @ (logs - middle) ** 2) ** 0.5, 0.05)
        p = min(of.total_reused / of.total * 1.1, 0.98)
        return np.array([logit(p), middle + 0.1 * spread, np.log(spread)])

    def natural(self, free: Floats) -> Floats:
        """See `ReuseModel`."""
        return np.exp(free)

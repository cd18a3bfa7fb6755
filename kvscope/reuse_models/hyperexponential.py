"""Hyperexponential: some waits are short and some long, each kind without memory."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kvscope.reuse_models.base import Interval, ReuseModel
from kvscope.reuse_models.exponential import Exponential
from kvscope.reuse_models.likelihood import expit, logit
from kvscope.reuse_models.observations import Floats, Observations

_ROUNDS = 25
_SPREADS = (3.0, 30.0)  # ratio of the two rates at the start of a search


class Hyperexponential(ReuseModel):
    """S(t) = 1 - p (1 - a exp(-u t) - (1 - a) exp(-v t)), u > v.

    Hazard: p f(t) / S(t), f(t) = a u exp(-u t) + (1 - a) v exp(-v t). Log-likelihood: the sum over
    reused blocks of log(p f(t)), and over waiting ones of log S(t). `fast_share` a is the share of
    the waits that end which are of the fast kind; `fast_rate_per_s` u and `slow_rate_per_s` v.
    """

    name: ClassVar[str] = "hyperexponential"
    parameters: ClassVar[tuple[str, ...]] = ("fast_share", "fast_rate_per_s", "slow_rate_per_s")
    bounds: ClassVar[tuple[Interval, ...]] = ((-15.0, 15.0), (-25.0, 15.0), (-25.0, 15.0))

    def log_density(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        a, u, v = expit(free[0]), np.exp(free[1]), np.exp(free[2])
        fast, slow = a * u * np.exp(-u * t), (1.0 - a) * v * np.exp(-v * t)
        dense = fast + slow + 1e-300
        d_share = (1.0 - a) * fast - a * slow
        slope = np.stack((d_share, fast * (1.0 - u * t), slow * (1.0 - v * t)))
        return np.log(dense), slope / dense

    def wait_survival(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        a, u, v = expit(free[0]), np.exp(free[1]), np.exp(free[2])
        fast, slow = np.exp(-u * t), np.exp(-v * t)
        slope = np.stack(
            (a * (1.0 - a) * (fast - slow), -a * u * t * fast, (a - 1.0) * v * t * slow)
        )
        return a * fast + (1.0 - a) * slow, slope

    def start(self, of: Observations) -> Floats:
        """Return the best of a few expectation-maximization searches around the exponential."""
        begin = Exponential().start(of)
        p, rate = expit(begin[0]), float(np.exp(begin[1]))
        searches = [_expected(of, p, 0.5, rate * far**0.5, rate / far**0.5) for far in _SPREADS]
        _, free = max(searches, key=lambda search: search[0])
        return free

    def natural(self, free: Floats) -> Floats:
        """See `ReuseModel`."""
        return np.array([expit(free[0]), np.exp(free[1]), np.exp(free[2])])

    def ordered(self, free: Floats) -> Floats:
        """Return the free parameters with the fast kind first."""
        return free if free[2] >= free[3] else np.array([free[0], -free[1], free[3], free[2]])


def _expected(of: Observations, p: float, a: float, u: float, v: float) -> tuple[float, Floats]:
    """Return log-likelihood and free parameters after some rounds of EM."""
    hit, t = of.reused, of.waited_s
    for _ in range(_ROUNDS):
        fast = np.where(hit, u, 1.0) * a * np.exp(-u * t)
        slow = np.where(hit, v, 1.0) * (1.0 - a) * np.exp(-v * t)
        never = np.where(hit, 0.0, 1.0 - p)
        whole = p * (fast + slow) + never + 1e-300
        be_fast, be_slow = of.weight * p * fast / whole, of.weight * p * slow / whole
        fasts, slows = be_fast.sum() + 1e-12, be_slow.sum() + 1e-12
        p, a = min((fasts + slows) / of.total, 1.0), fasts / (fasts + slows)
        u = (be_fast[hit].sum() + 1e-12) / (be_fast @ t + 1e-12)
        v = (be_slow[hit].sum() + 1e-12) / (be_slow @ t + 1e-12)
    value = float(of.weight @ np.log(whole))
    return value, np.array([logit(p), logit(a), np.log(u), np.log(v)])

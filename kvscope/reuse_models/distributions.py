"""Distributions of waits; a new one is a subclass here and a line in `selection.MODELS`."""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.learning.reuse.formulas import ReuseCounts, exponentials
from kvscope.reuse_models.base import ReuseModel, expit, logit
from kvscope.reuse_models.observations import Observations

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
_ROUNDS = 25  # of expectation and maximization
_SPREADS = (3.0, 30.0)  # ratio of the two rates at the start of a search


def exponential_estimates(of: Observations) -> tuple[float, float]:
    """Return p and the rate (1/s) of an exponential, by converged expectation maximization."""
    waiting = ~of.reused
    estimates = exponentials(
        ReuseCounts(
            reused=np.array([of.total_reused]),
            waited_s=np.array([of.weight[of.reused] @ of.waited_s[of.reused]]),
            waiting=of.weight[waiting][None],
            since_s=of.waited_s[waiting][None],
        )
    )
    return float(estimates.p[0]), float(estimates.rate_per_s[0])


class Exponential(ReuseModel):
    """Waits without memory, as in the policy `wa`: S(t) = 1 - p (1 - exp(-r t)).

    Hazard: p r exp(-r t) / S(t). Log-likelihood: the sum over reused blocks of log(p r) - r t, and
    over waiting ones of log S(t). `rate_per_s` r, one over the mean wait of reused blocks.
    Source: KVCache Cache in the Wild (ATC'25), sections 3.4 and 4.2.
    """

    name = "exponential"
    parameters = ("rate_per_s",)
    bounds = ((-25.0, 15.0),)

    def log_density(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        rt = np.exp(free[0]) * t
        return free[0] - rt, (1.0 - rt)[None]

    def wait_survival(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        rt = np.exp(free[0]) * t
        left = np.exp(-rt)
        return left, (-rt * left)[None]

    def start(self, of: Observations) -> Float64s:
        """Return the estimates of `exponential_estimates` as free parameters."""
        p, rate = exponential_estimates(of)
        return np.array([logit(p), np.log(rate)])


class Hyperexponential(ReuseModel):
    """Two kinds of waits: S(t) = 1 - p (1 - a exp(-u t) - (1 - a) exp(-v t)), u > v.

    Some waits are short and some long, each kind without memory. Hazard: p f(t) / S(t), f(t) = a u
    exp(-u t) + (1 - a) v exp(-v t). Log-likelihood: the sum over reused blocks of log(p f(t)), and
    over waiting ones of log S(t). `fast_share` a is the fast kind's share of the waits that end;
    `fast_rate_per_s` u and `slow_rate_per_s` v.
    """

    name = "hyperexponential"
    parameters = ("fast_share", "fast_rate_per_s", "slow_rate_per_s")
    bounds = ((-15.0, 15.0), (-25.0, 15.0), (-25.0, 15.0))

    def log_density(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        a, u, v = expit(free[0]), np.exp(free[1]), np.exp(free[2])
        fast, slow = a * u * np.exp(-u * t), (1.0 - a) * v * np.exp(-v * t)
        dense = fast + slow + 1e-300
        d_share = (1.0 - a) * fast - a * slow
        slope = np.stack((d_share, fast * (1.0 - u * t), slow * (1.0 - v * t)))
        return np.log(dense), slope / dense

    def wait_survival(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        a, u, v = expit(free[0]), np.exp(free[1]), np.exp(free[2])
        fast, slow = np.exp(-u * t), np.exp(-v * t)
        slope = np.stack(
            (a * (1.0 - a) * (fast - slow), -a * u * t * fast, (a - 1.0) * v * t * slow)
        )
        return a * fast + (1.0 - a) * slow, slope

    def start(self, of: Observations) -> Float64s:
        """Return the best of a few expectation-maximization searches around the exponential."""
        p, rate = exponential_estimates(of)
        searches = [_expected(of, p, 0.5, rate * far**0.5, rate / far**0.5) for far in _SPREADS]
        _, free = max(searches, key=lambda search: search[0])
        return free

    def natural(self, free: Float64s) -> Float64s:
        return np.array([expit(free[0]), np.exp(free[1]), np.exp(free[2])])

    def ordered(self, free: Float64s) -> Float64s:
        """Return the free parameters with the fast kind first."""
        return free if free[2] >= free[3] else np.array([free[0], -free[1], free[3], free[2]])


def _expected(of: Observations, p: float, a: float, u: float, v: float) -> tuple[float, Float64s]:
    """Return (log-likelihood, free parameters) after 25 rounds of expectation maximization.

    It begins with p and the parameters of `Hyperexponential`: share `a`, rates `u` and `v`.
    """
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


class Weibull(ReuseModel):
    """Weibull waits: S(t) = 1 - p (1 - exp(-(t / s)^k)).

    The hazard falls (k below 1: a heavy tail) or rises with time. Hazard: p (k / s) (t / s)^(k - 1)
    exp(-(t / s)^k) / S(t). Log-likelihood: the sum over reused blocks of log(p k / s) + (k - 1)
    log(t / s) - (t / s)^k, and over waiting ones of log S(t). `scale_s` s: 63 % of the waits that
    end are shorter; `shape` k, 1 is the exponential.
    """

    name = "weibull"
    parameters = ("scale_s", "shape")
    bounds = ((-15.0, 25.0), (-4.0, 4.0))

    def log_density(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        k, log_ratio = np.exp(free[1]), np.log(t) - free[0]
        z = np.exp(np.minimum(k * log_ratio, 700.0))
        slope = np.stack((k * (z - 1.0), 1.0 + k * log_ratio * (1.0 - z)))
        return free[1] + k * log_ratio - np.log(t) - z, slope

    def wait_survival(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        k, log_ratio = np.exp(free[1]), np.log(t) - free[0]
        z = np.exp(np.minimum(k * log_ratio, 700.0))
        left = np.exp(-z)
        steep = z * left
        return left, np.stack((k * steep, -k * log_ratio * steep))

    def start(self, of: Observations) -> Float64s:
        """Return the exponential of the uncensored waits, with a slightly heavier tail."""
        hit = of.reused
        mean = float(of.weight[hit] @ of.waited_s[hit]) / of.total_reused
        share = of.total_reused / of.total
        return np.array([logit(min(share * 1.05, 0.98)), np.log(mean), -0.2])


class Lognormal(ReuseModel):
    """Lognormal waits: S(t) = 1 - p Phi(z), z = log(t / m) / s, Phi the normal distribution.

    Hazard: p phi(z) / (s t S(t)). Log-likelihood: the sum over reused blocks of
    log(p phi(z) / (s t)), and over waiting ones of log S(t). `median_s` m; `sigma` s, the standard
    deviation of the logarithm.
    """

    name = "lognormal"
    parameters = ("median_s", "sigma")
    bounds = ((-15.0, 25.0), (-5.0, 3.0))

    def log_density(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        sigma = np.exp(free[1])
        z = (np.log(t) - free[0]) / sigma
        value = -np.log(t) - free[1] - z * z / 2 - _HALF_LOG_2PI
        return value, np.stack((z / sigma, z * z - 1.0))

    def wait_survival(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        from scipy.special import ndtr

        sigma = np.exp(free[1])
        z = (np.log(t) - free[0]) / sigma
        dense = np.exp(-z * z / 2 - _HALF_LOG_2PI)
        return ndtr(-z), np.stack((dense / sigma, z * dense))

    def start(self, of: Observations) -> Float64s:
        """Return estimates from the logarithms of the uncensored waits."""
        hit = of.reused
        share = of.weight[hit] / of.total_reused
        logs = np.log(of.waited_s[hit])
        middle = float(share @ logs)
        spread = max(float(share @ (logs - middle) ** 2) ** 0.5, 0.05)
        p = min(of.total_reused / of.total * 1.1, 0.98)
        return np.array([logit(p), middle + 0.1 * spread, np.log(spread)])

"""The contract of a reuse model: the methods that a distribution's file provides, and its fit.

    model = Weibull().fit(observations)
    model.params_, model.interval_["shape"], model.survival(60.0)

As in scikit-learn: `fit` returns the model, and replaces the learned attributes, which end in `_`.

The fit is by maximum likelihood under right-censoring. A touched block is ever reused with
probability p, after a wait distributed by F: S(t) = 1 - p F(t). A block reused after t adds log p +
log f(t) to the log-likelihood, a block still waiting after t log S(t). The free parameters are
unbounded: first the logit of p, then those of F as the model defines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s
from kvscope.core.errors import InputError
from kvscope.reuse_models.observations import KaplanMeier, Observations
from kvscope.reuse_models.results import Interval

P = "reuse_probability"


class ReuseModel:
    """A defective distribution of the wait for a reuse: S(t) = 1 - p F(t).

    A subclass defines F: `log_density`, `wait_survival`, the start of the search, and the meaning
    of its free parameters (unbounded). Learned: `reuse_probability_` p; `params_` of F; `interval_`
    at 95 % of each of them and of "reuse_probability", None if unidentified; `n_` touched blocks,
    `censored_` of them not seen reused; `log_likelihood_`, the sum over all touched blocks; `aic_`,
    2 K - 2 log L with K counting p, log L scaled from `n_` to the `effective_n_` independent
    blocks; `ks_`, the distance from the Kaplan-Meier curve (`KaplanMeier.distance`); `converged_`.
    `free_` are the free parameters, logit of p first, and `covariance_` is theirs, or None.
    """

    name: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]]
    bounds: ClassVar[tuple[Interval, ...]]

    reuse_probability_: float
    params_: Mapping[str, float]
    interval_: Mapping[str, Interval | None]
    n_: int
    censored_: int
    effective_n_: float
    log_likelihood_: float
    aic_: float
    ks_: float
    converged_: bool
    free_: Float64s
    covariance_: Float64s | None

    def log_density(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        """Return log f(t) at N times `t`, and its derivatives by the free parameters, K × N.

        `free` has the K parameters of F, without the logit of p.
        """
        raise NotImplementedError

    def wait_survival(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        """Return 1 - F(t) at N times `t`, and its derivatives by the free parameters, K × N.

        `free` has the K parameters of F, without the logit of p.
        """
        raise NotImplementedError

    def start(self, of: Observations) -> Float64s:
        """Return free parameters (logit of p first) from which to start the search."""
        raise NotImplementedError

    def natural(self, free: Float64s) -> Float64s:
        """Return the values of F's parameters, in the order of their names, `parameters`.

        Each increases with its own free parameter alone. Neither `free` nor the result includes p.
        """
        return np.exp(free)

    def ordered(self, free: Float64s) -> Float64s:
        """Return the free parameters, logit of p first, with exchangeable parts of F in one order.

        Otherwise a sum of two distributions could be written in two ways.
        """
        return free

    def fit(
        self, of: Observations, reference: KaplanMeier | None = None, *, intervals: bool = True
    ) -> Self:
        """Return the model itself, fitted to `of` by maximum likelihood.

        `reference`: the Kaplan-Meier curve of `of`, fitted here if None. Without `intervals`, which
        take half of the time, all of them are None. Raises InputError if no block was reused.
        """
        if not of.reused_runs:
            raise InputError(
                "no block was reused, so that there is no wait to fit",
                where=f"{self.name} model",
                remedy="give it a longer window",
            )
        merged = of.merged()
        bounds = np.array(self.bounds)
        maximum = maximize(self, merged, self.start(merged), bounds)
        self.free_ = self.ordered(maximum.free)
        self.converged_ = maximum.converged
        self.reuse_probability_ = expit(self.free_[0])
        values = self.natural(self.free_[1:])
        self.params_ = dict(zip(self.parameters, values.tolist(), strict=True))
        self.n_ = round(of.total)
        self.censored_ = round(of.total - of.total_reused)
        self.effective_n_ = of.effective
        self.log_likelihood_ = maximum.log_likelihood
        # Counting every block would weigh a run by its blocks, so that any difference would decide.
        scale = of.effective / of.total
        self.aic_ = float(2 * len(self.free_) - 2 * maximum.log_likelihood * scale)
        self.covariance_ = covariance(self, of, self.free_) if intervals else None
        self.interval_ = self._intervals(of)
        curve = reference or KaplanMeier().fit(merged, of.effective)
        self.ks_ = curve.distance(self.reuse_within)
        return self

    def reuse_within(self, t: Float64s) -> Float64s:
        """Return p F(t), the probability that a touched block is reused within t seconds."""
        left, _ = self.wait_survival(np.asarray(t, dtype=np.float64), self.free_[1:])
        within: Float64s = self.reuse_probability_ * (1.0 - left)
        return within

    def survival(self, t: Float64s) -> Float64s:
        """Return S(t), the probability that a touched block is not reused within t seconds."""
        still: Float64s = 1.0 - self.reuse_within(t)
        return still

    def _intervals(self, of: Observations) -> dict[str, Interval | None]:
        names = (P, *self.parameters)
        if self.covariance_ is None:
            return dict.fromkeys(names)
        spread = np.sqrt(np.maximum(np.diag(self.covariance_), 0.0))
        reach = quantile(of.clusters) * spread
        low, high = self.free_ - reach, self.free_ + reach
        lows = [expit(low[0]), *self.natural(low[1:]).tolist()]
        highs = [expit(high[0]), *self.natural(high[1:]).tolist()]
        return dict(zip(names, zip(lows, highs, strict=True), strict=True))


LEVEL = 0.95
_LOGIT_BOUND = 15.0  # p within 3e-7 of 0 or 1 is 0 or 1
_NEWTON_STEPS = 6
_LEAST = 1e-15  # least probability, so that it has a logarithm
_STEP = 1e-4  # of the central differences
_FLAT = 5.0  # a free parameter with a larger standard deviation is unknown


class Maximum(Struct, frozen=True):
    """Free parameters of the greatest likelihood, logit of p first.

    `log_likelihood` is the sum over blocks. `converged` is false where no maximum was reached.
    """

    free: Float64s
    log_likelihood: float
    converged: bool


def expit(x: float) -> float:
    """Return the probability whose logit is x."""
    return float(1.0 / (1.0 + np.exp(-x)))


def logit(p: float) -> float:
    """Return log(p / (1 - p)), the inverse of `expit`, with p bounded away from 0 and 1."""
    edge = expit(-_LOGIT_BOUND)
    inside = min(max(p, edge), 1.0 - edge)
    return float(np.log(inside / (1.0 - inside)))


def scores(model: ReuseModel, of: Observations, free: Float64s) -> tuple[Float64s, Float64s]:
    """Return the log-likelihood of one block of each run (N), and its derivatives, (1 + K) × N.

    `free` has 1 + K parameters, logit of p first.
    """
    p = expit(free[0])
    value, slope = np.empty(len(of.weight)), np.empty((len(free), len(of.weight)))
    hit, waiting, soon = of.reused & ~of.at_once, ~of.reused, of.at_once
    log_f, d_log_f = model.log_density(of.waited_s[hit], free[1:])
    value[hit] = np.log(p) + log_f
    slope[0, hit], slope[1:, hit] = 1.0 - p, d_log_f
    if np.any(soon):
        left, d_left = model.wait_survival(of.waited_s[soon], free[1:])
        within = np.maximum(1.0 - left, _LEAST)
        value[soon] = np.log(p * within)
        slope[0, soon], slope[1:, soon] = 1.0 - p, -d_left / within
    left, d_left = model.wait_survival(of.waited_s[waiting], free[1:])
    still = (1.0 - p) + p * left
    value[waiting] = np.log(still)
    slope[0, waiting] = -p * (1.0 - p) * (1.0 - left) / still
    slope[1:, waiting] = p * d_left / still
    return value, slope


def maximize(model: ReuseModel, of: Observations, start: Float64s, bounds: Float64s) -> Maximum:
    """Return the likelihood's maximum, sought from `start` within the `bounds` of free parameters.

    `start` has the logit of p first; `bounds` (K × 2) are those of F's K parameters alone.
    """
    from scipy.optimize import minimize

    box = np.vstack(([[-_LOGIT_BOUND, _LOGIT_BOUND]], bounds))
    share = of.weight / of.total

    def loss(free: Float64s) -> tuple[float, Float64s]:
        inside = np.clip(free, box[:, 0], box[:, 1])
        value, slope = scores(model, of, inside)
        outside = free - inside
        return float(outside @ outside - share @ value), 2 * outside - slope @ share

    # Not L-BFGS-B: its tiny BLAS calls wait for each other's threads on a busy machine.
    begin = np.clip(start, box[:, 0], box[:, 1])
    solution = minimize(
        loss, begin, jac=True, method="BFGS", options={"maxiter": 200, "gtol": 1e-6}
    )
    near = np.clip(np.asarray(solution.x, dtype=np.float64), box[:, 0], box[:, 1])
    free = _polished(model, of, near, box)
    least, slope = loss(free)
    inside = (free > box[:, 0]) & (free < box[:, 1])
    settled = bool(np.all(np.abs(slope[inside]) < 1e-5))
    return Maximum(free, -least * of.total, settled)


def _polished(model: ReuseModel, of: Observations, free: Float64s, box: Float64s) -> Float64s:
    """Return the free parameters after Newton steps that raise the likelihood.

    `box` has the lowest and highest value of each, (1 + K) × 2. If one of them is at a bound, all
    stay as they are; steps end before one would reach a bound.
    """
    if np.any((free <= box[:, 0]) | (free >= box[:, 1])):
        return free
    value = float(of.weight @ scores(model, of, free)[0])
    for _ in range(_NEWTON_STEPS):
        slope = scores(model, of, free)[1] @ of.weight
        curvature = information(model, of, free)
        if not _positive(curvature):
            return free
        step = np.linalg.solve(curvature, slope)
        further = free + step
        if np.any((further <= box[:, 0]) | (further >= box[:, 1])):
            return free
        higher = float(of.weight @ scores(model, of, further)[0])
        if not higher >= value:
            return free
        free, value = further, higher
        if np.all(np.abs(step) < 1e-9):
            return free
    return free


def information(model: ReuseModel, of: Observations, free: Float64s) -> Float64s:
    """Return minus the second derivatives of the log-likelihood by the free parameters (square).

    They are central differences of the first ones.
    """
    columns = []
    for at in range(len(free)):
        step = np.zeros(len(free))
        step[at] = _STEP
        up = scores(model, of, free + step)[1] @ of.weight
        down = scores(model, of, free - step)[1] @ of.weight
        columns.append((down - up) / (2 * _STEP))
    whole = np.array(columns)
    return (whole + whole.T) / 2


def covariance(model: ReuseModel, of: Observations, free: Float64s) -> Float64s | None:
    """Return the covariance of the free parameters, None where the data do not identify them.

    Blocks of one run share their wait, and runs of one cluster (conversation) may be alike, so the
    inverse of the information is too small. This is the sandwich estimator, from the spread between
    clusters of scores summed by cluster.
    Source: Liang and Zeger, Longitudinal data analysis using generalized linear models (1986).
    """
    bread = information(model, of, free)
    if of.clusters < 2 or not _positive(bread):
        return None
    slope = scores(model, of, free)[1] * of.weight
    by_cluster = np.array([np.bincount(of.cluster, row, minlength=of.clusters) for row in slope])
    by_cluster -= by_cluster.mean(axis=1, keepdims=True)
    filling = by_cluster @ by_cluster.T * of.clusters / (of.clusters - 1)
    inverse = np.linalg.inv(bread)
    sandwich: Float64s = inverse @ filling @ inverse
    if not np.all(np.isfinite(sandwich)) or np.any(np.diag(sandwich) > _FLAT**2):
        return None
    return sandwich


def quantile(clusters: int) -> float:
    """Return the half-width of a 95 % CI (`LEVEL`) in standard deviations, by Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(max(clusters - 1, 1), 0.5 + LEVEL / 2))


def _positive(matrix: Float64s) -> bool:
    return bool(np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix)[0] > 0)

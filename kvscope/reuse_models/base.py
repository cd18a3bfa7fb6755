"""The contract of a reuse model: what the file of a distribution has to provide.

    model = Weibull().fit(observations)
    model.params_, model.interval_["shape"], model.survival(60.0)

As in scikit-learn: `fit` returns the model itself, learned attributes end in `_`, and fitting
again replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.core.errors import InputError
from kvscope.reuse_models import likelihood
from kvscope.reuse_models.observations import KaplanMeier, Observations
from kvscope.reuse_models.results import Interval

P = "reuse_probability"


class ReuseModel:
    """A defective distribution of the wait for a reuse: S(t) = 1 - p F(t).

    A subclass defines F: `log_density`, `wait_survival`, where to start, and what its free
    parameters (unbounded) mean. Learned: `reuse_probability_` p; `params_` of F;
    `interval_` of p and each of them at 95 %, or None where the data do not tell; `n_` touched
    blocks, `censored_` of them not seen reused; `log_likelihood_` in blocks; `aic_` 2 K - 2 log L,
    scaled to the `effective_n_` independent blocks; `ks_`, see KaplanMeier; `converged_`.
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
        """Return log f(t) and its derivatives by the free parameters, K × N."""
        raise NotImplementedError

    def wait_survival(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        """Return 1 - F(t) and its derivatives by the free parameters, K × N."""
        raise NotImplementedError

    def start(self, of: Observations) -> Float64s:
        """Return the free parameters, logit of p first, to start the search from."""
        raise NotImplementedError

    def natural(self, free: Float64s) -> Float64s:
        """Return the values of `parameters`; each rises with its own free parameter alone."""
        return np.exp(free)

    def ordered(self, free: Float64s) -> Float64s:
        """Return the free parameters with exchangeable parts in their order."""
        return free

    def fit(
        self, of: Observations, reference: KaplanMeier | None = None, *, intervals: bool = True
    ) -> Self:
        """Fit to `of` by maximum likelihood; `reference` saves fitting Kaplan-Meier again.

        Without `intervals`, which take half of the time, all of them are None. Raises InputError
        where no block was reused: then there is nothing to learn.
        """
        if not of.reused_runs:
            raise InputError(
                "no block was reused, so that there is no wait to fit",
                where=f"{self.name} model",
                remedy="give it a longer window",
            )
        shape = _Shape(self)
        merged = of.merged()
        bounds = np.array(self.bounds)
        maximum = likelihood.maximize(shape, merged, self.start(merged), bounds)
        self.free_ = self.ordered(maximum.free)
        self.converged_ = maximum.converged
        self.reuse_probability_ = likelihood.expit(self.free_[0])
        values = self.natural(self.free_[1:])
        self.params_ = dict(zip(self.parameters, values.tolist(), strict=True))
        self.n_ = round(of.total)
        self.censored_ = round(of.total - of.total_reused)
        self.effective_n_ = of.effective
        self.log_likelihood_ = maximum.log_likelihood
        # Counting every block would weigh a run by its blocks, so that any difference would decide.
        scale = of.effective / of.total
        self.aic_ = float(2 * len(self.free_) - 2 * maximum.log_likelihood * scale)
        self.covariance_ = likelihood.covariance(shape, of, self.free_) if intervals else None
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

    def hazard(self, t: Float64s) -> Float64s:
        """Return the reuses per second of a block idle for t: p f(t) / S(t)."""
        log_f, _ = self.log_density(np.asarray(t, dtype=np.float64), self.free_[1:])
        rate: Float64s = self.reuse_probability_ * np.exp(log_f) / self.survival(t)
        return rate

    def _intervals(self, of: Observations) -> dict[str, Interval | None]:
        names = (P, *self.parameters)
        if self.covariance_ is None:
            return dict.fromkeys(names)
        spread = np.sqrt(np.maximum(np.diag(self.covariance_), 0.0))
        reach = likelihood.quantile(of.clusters) * spread
        low, high = self.free_ - reach, self.free_ + reach
        lows = [likelihood.expit(low[0]), *self.natural(low[1:]).tolist()]
        highs = [likelihood.expit(high[0]), *self.natural(high[1:]).tolist()]
        return dict(zip(names, zip(lows, highs, strict=True), strict=True))


class _Shape:
    """A model's F under the likelihood's names."""

    def __init__(self, model: ReuseModel) -> None:
        self.log_density = model.log_density
        self.survival = model.wait_survival

"""Which model of the waits to use, and why, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.reuse_models.base import ReuseModel
from kvscope.reuse_models.exponential import Exponential
from kvscope.reuse_models.hyperexponential import Hyperexponential
from kvscope.reuse_models.kaplan_meier import KaplanMeier
from kvscope.reuse_models.lognormal import Lognormal
from kvscope.reuse_models.observations import Observations
from kvscope.reuse_models.weibull import Weibull

MODELS: tuple[type[ReuseModel], ...] = (Exponential, Hyperexponential, Weibull, Lognormal)
FEWEST_RUNS = 30  # of reuse; fewer are not fitted
FEWEST_EFFECTIVE = 10.0  # reused blocks that are independent of each other; likewise
CLOSE = 0.05  # a model that misplaces no more of the reuse than that fits, however much data says
_CRITICAL = 1.094  # of the KS distance times sqrt(n), at 5 % and with the rate estimated


@dataclass(frozen=True)
class Choice:
    """All models of one category beside the curve, the one to use, and why.

    `fits` tells whether the chosen one does; `reference` is Kaplan-Meier.
    """

    models: tuple[ReuseModel, ...]
    reference: KaplanMeier
    chosen: ReuseModel
    fits: bool
    verdict: str

    @property
    def exponential(self) -> ReuseModel:
        """The paper's model, chosen or not."""
        return self.models[0]


def enough(of: Observations) -> bool:
    """Whether there is enough reuse to fit models to, and not all of it in a few conversations."""
    return of.reused_runs >= FEWEST_RUNS and of.effective_reused >= FEWEST_EFFECTIVE


def tolerance(of: Observations) -> float:
    """Up to which KS distance a model fits: what is too small to matter, or to be seen.

    Source: Lilliefors, On the Kolmogorov-Smirnov test for the exponential distribution (1969).
    """
    return float(max(CLOSE, _CRITICAL / np.sqrt(max(of.effective_reused, 1.0))))


def choose(of: Observations) -> Choice:
    """Fit every model; take the exponential if it fits, else of those that do the least AIC.

    Where none fits it is the nearest: AIC also looks where hardly any reuse is.
    """
    reference = KaplanMeier().fit(of.merged(), of.effective)
    models = tuple(kind().fit(of, reference) for kind in MODELS)
    limit = tolerance(of)
    exponential = models[0]
    if exponential.ks_ <= limit:
        far = "" if exponential.ks_ <= CLOSE else " (few gaps)"
        return Choice(models, reference, exponential, True, f"exponential fits{far}")
    fitting = [model for model in models if model.ks_ <= limit]
    best = min(fitting or models, key=lambda model: model.aic_ if fitting else model.ks_)
    return Choice(models, reference, best, bool(fitting), _words(models, best, bool(fitting)))


def _words(models: tuple[ReuseModel, ...], best: ReuseModel, fits: bool) -> str:
    if best is models[0]:
        return f"exponential misses {best.ks_:.0%}, and no other model does better"
    use = f"use {best.name}" if fits else f"{best.name} is nearest, but misses {best.ks_:.0%}"
    return f"{_trouble(models)}: {use}"


def _trouble(models: tuple[ReuseModel, ...]) -> str:
    """What keeps the exponential from fitting: a Weibull's shape of 1 would be one."""
    weibull = next(model for model in models if isinstance(model, Weibull))
    interval = weibull.interval_["shape"]
    if interval is not None and interval[1] < 1:
        return "too heavy a tail"
    if interval is not None and interval[0] > 1:
        return "waits too much alike"
    return "not exponential"

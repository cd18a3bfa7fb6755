"""Choice of the model of waits, with its reason."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.reuse_models.base import ReuseModel
from kvscope.reuse_models.distributions import (
    Exponential,
    Hyperexponential,
    Lognormal,
    Weibull,
)
from kvscope.reuse_models.observations import KaplanMeier, Observations

MODELS: tuple[type[ReuseModel], ...] = (Exponential, Hyperexponential, Weibull, Lognormal)
FEWEST_RUNS = 30  # runs of reuse that a fit needs
FEWEST_EFFECTIVE = 10.0  # independent reused blocks that a fit needs
CLOSE = 0.05  # a model that misplaces at most this share of the reuse fits, whatever n
_CRITICAL = 1.094  # critical KS distance times sqrt(n), at 5 %, rate estimated


class Choice(Struct, frozen=True):
    """All models of one category, the chosen one, whether it `fits`, and why.

    `reference` is Kaplan-Meier.
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
    """Return whether there is enough reuse to fit, and not only in a few conversations."""
    return of.reused_runs >= FEWEST_RUNS and of.effective_reused >= FEWEST_EFFECTIVE


def tolerance(of: Observations) -> float:
    """Return the KS distance up to which a model fits: too small to matter, or to be detected.

    Source: Lilliefors, On the Kolmogorov-Smirnov test for the exponential distribution (1969).
    """
    return float(max(CLOSE, _CRITICAL / np.sqrt(max(of.effective_reused, 1.0))))


def choose(of: Observations) -> Choice:
    """Fit every model; choose the exponential if it fits, else the least AIC among those that fit.

    Where none fits, choose the nearest by KS: AIC also weighs times with hardly any reuse.
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
    # Why the exponential does not fit: a Weibull of shape 1 would be one.
    weibull = next(model for model in models if isinstance(model, Weibull))
    low, high = weibull.interval_["shape"] or (0.0, np.inf)
    why = (
        "too heavy a tail" if high < 1 else "waits too much alike" if low > 1 else "not exponential"
    )
    use = f"use {best.name}" if fits else f"{best.name} is nearest, but misses {best.ks_:.0%}"
    return f"{why}: {use}"

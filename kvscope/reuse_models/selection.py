"""Choice of the model of waits, with the reason for it, and models over sliding windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import DAY_S, log_grid
from kvscope.core.arrays import Float64s
from kvscope.reuse_models.base import ReuseModel
from kvscope.reuse_models.distributions import (
    Exponential,
    Hyperexponential,
    Lognormal,
    Weibull,
)
from kvscope.reuse_models.evidence import Evidence, Span
from kvscope.reuse_models.observations import (
    CLOSE,
    KaplanMeier,
    Observations,
    enough,
    tolerance,
)
from kvscope.reuse_models.results import StabilityFit, WindowFit, WindowFits

MODELS: tuple[type[ReuseModel], ...] = (Exponential, Hyperexponential, Weibull, Lognormal)
_KINDS: Mapping[str, type[ReuseModel]] = {kind.name: kind for kind in MODELS}


class Choice(Struct, frozen=True):
    """All models of one category, the chosen one, whether it `fits`, and the reason (`verdict`).

    `reference` is the Kaplan-Meier curve.
    """

    models: tuple[ReuseModel, ...]
    reference: KaplanMeier
    chosen: ReuseModel
    fits: bool
    verdict: str


def choose(of: Observations) -> Choice:
    """Return all models fitted to `of`, and the choice: the exponential if it fits.

    Else the least AIC among those that fit, and if none fits the smallest KS distance: AIC also
    weighs times with hardly any reuse.
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


DEFAULT_LENGTH_S = 3_600.0
_PER_WINDOW = 2  # a new window begins every half window
_LEAST_COUNT = 5  # windows of default length that fit into a trace
_MOST = 96
_ALIKE = 0.1  # of the reuse: windows that differ by less are called stable
_SURELY = 1.5  # a change is this many times what chance gives
_CHANCE = 0.8687  # mean of the two-sample KS distance times sqrt(n m / (n + m))


class _WindowSample(Struct, frozen=True):
    """One category in one window with enough reuse."""

    span: Span
    waits: Observations
    curve: KaplanMeier
    exponential: Exponential
    chosen: ReuseModel

    @property
    def mean_gap_s(self) -> float:
        return 1.0 / self.exponential.params_["rate_per_s"]


def default_length_s(span: Span) -> float:
    """Return the length of sliding windows: 1 h (KVCache Cache in the Wild), at most `span` / 5."""
    return min(DEFAULT_LENGTH_S, span.length_s / _LEAST_COUNT)


def sliding(span: Span, length_s: float) -> list[Span]:
    """Return windows within `span`, one every half length, or at most 96 at wider steps."""
    halves = int((span.length_s - length_s) / length_s * _PER_WINDOW * (1 + 1e-12)) + 1
    every = max(-(-halves // _MOST), 1)
    step_s = every * length_s / _PER_WINDOW
    starts = [span.start_s + at * step_s for at in range(-(-halves // every))]
    return [Span(start, start + length_s) for start in starts]


def over_windows(
    evidence: Evidence,
    span: Span,
    length_s: float,
    use: Mapping[str, str],
) -> tuple[WindowFits, tuple[StabilityFit, ...]]:
    """Return fits of all sliding windows, each on its own, and the stability of each category.

    `use` names the model of a category. A window's touches are censored at its end.
    Source: KVCache Cache in the Wild (ATC'25), Figures 15, 23 and 29.
    """
    spans = sliding(span, length_s)
    grid = log_grid(length_s)
    samples: dict[str, list[_WindowSample | None]] = {name: [] for name in use}
    for window in spans:
        for name, waits in zip(evidence.categories, evidence.waits(window), strict=True):
            if name in use:
                samples[name].append(_sample(window, waits, use[name]))
    step_s = spans[1].start_s - spans[0].start_s if len(spans) > 1 else length_s
    ahead = max(round(length_s / step_s), 1)
    fits: list[WindowFit] = []
    stability: list[StabilityFit] = []
    for name, row in samples.items():
        fits += _fits(name, row, ahead, grid)
        stability += _stability(name, row, ahead, step_s)
    return WindowFits(length_s, step_s, tuple(grid.tolist()), tuple(fits)), tuple(stability)


def _sample(span: Span, waits: Observations, use: str) -> _WindowSample | None:
    if not enough(waits):
        return None
    merged = waits.merged()
    curve = KaplanMeier().fit(merged, waits.effective)
    exponential = Exponential().fit(waits, curve, intervals=False)
    if use == Exponential.name:
        return _WindowSample(span, waits, curve, exponential, exponential)
    chosen = _KINDS[use]().fit(waits, curve, intervals=False)
    return _WindowSample(span, waits, curve, exponential, chosen)


def _fits(
    name: str, row: Sequence[_WindowSample | None], ahead: int, grid: Float64s
) -> Iterator[WindowFit]:
    for at, sample in enumerate(row):
        if sample is None:
            continue
        later = row[at + ahead] if at + ahead < len(row) else None
        yield WindowFit(
            category=name,
            start_s=sample.span.start_s,
            end_s=sample.span.end_s,
            n=sample.exponential.n_,
            censored=sample.exponential.censored_,
            runs=sample.waits.reused_runs,
            effective_n=sample.waits.effective,
            reuse_probability=sample.exponential.reuse_probability_,
            rate_per_s=sample.exponential.params_["rate_per_s"],
            ks=sample.exponential.ks_,
            next_ks=later.curve.distance(sample.exponential.reuse_within) if later else None,
            distance=later.curve.distance(sample.curve.reuse_within) if later else None,
            params={"reuse_probability": sample.chosen.reuse_probability_, **sample.chosen.params_},
            observed=tuple(sample.curve.reuse_within(grid).tolist()),
        )


def _stability(
    name: str, row: Sequence[_WindowSample | None], ahead: int, step_s: float
) -> Iterator[StabilityFit]:
    known = [sample for sample in row if sample]
    lags: tuple[tuple[Literal["window", "day"], int], ...]
    lags = ("window", ahead), ("day", round(DAY_S / step_s))
    for between, lag in lags:
        pairs = [(a, b) for a, b in zip(row, row[lag:], strict=False) if a and b]
        if not pairs:
            continue
        distances = [b.curve.distance(a.curve.reuse_within) for a, b in pairs]
        next_ks = [b.curve.distance(a.exponential.reuse_within) for a, b in pairs]
        distance = float(np.mean(distances))
        # The mean distance between the curves of two such samples of one distribution.
        by_chance = [
            _CHANCE * (1.0 / a.waits.effective_reused + 1.0 / b.waits.effective_reused) ** 0.5
            for a, b in pairs
        ]
        chance = float(np.mean(by_chance))
        by_chance_alone = _ALIKE < distance <= _SURELY * chance
        yield StabilityFit(
            category=name,
            between=between,
            pairs=len(pairs),
            distance=distance,
            largest_distance=max(distances),
            by_chance=chance,
            next_ks=float(np.mean(next_ks)),
            reuse_probability_variation=_variation(
                [sample.exponential.reuse_probability_ for sample in known]
            ),
            mean_gap_variation=_variation([sample.mean_gap_s for sample in known]),
            stable=None if by_chance_alone else distance <= _ALIKE,
        )


def _variation(values: Sequence[float]) -> float:
    mean = float(np.mean(values))
    return float(np.std(values)) / mean if mean else 0.0

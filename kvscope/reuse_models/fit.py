"""Fit all models to a stored trace: reuse by category and window, conversations, next prompts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvscope.characterize.distributions import log_grid
from kvscope.core.arrays import Float64s
from kvscope.core.errors import UsageError
from kvscope.core.percentiles import Quantiles
from kvscope.core.trace import Trace
from kvscope.reuse_models.base import P
from kvscope.reuse_models.conversation import NextPrompt, fit_conversations
from kvscope.reuse_models.distributions import Exponential
from kvscope.reuse_models.evidence import Evidence, Span, Turns, load_evidence
from kvscope.reuse_models.observations import Observations, enough, tolerance
from kvscope.reuse_models.results import (
    CategoryFit,
    Curve,
    Fit,
    ModelFit,
    NextPromptFit,
    NextTurnFit,
    StabilityFit,
    WindowFits,
)
from kvscope.reuse_models.selection import (
    Choice,
    choose,
    default_length_s,
    over_windows,
)
from kvscope.store.db import Store

_TURNS = 10  # turns with a row of their own


def fit(store: Store, trace: Trace, *, window_s: float | None = None, warmup: float = 0.0) -> Fit:
    """Return models fitted to `trace` without the first `warmup` of its requests (a share).

    Windows are `window_s` long; by default an hour, or a fifth of the span if less. For a trace of
    lengths only conversations can be fitted, if its lineage is known. Raises UsageError for a
    window longer than the trace after the warm-up.
    """
    evidence = load_evidence(store, trace)
    return fit_to(evidence, trace, window_s=window_s, warmup=warmup)


def fit_to(
    evidence: Evidence,
    trace: Trace,
    *,
    window_s: float | None = None,
    warmup: float = 0.0,
) -> Fit:
    """Return models fitted to the loaded `evidence`; the options are those of `fit`."""
    span = evidence.after(warmup)
    if window_s is not None and window_s > span.length_s:
        raise UsageError(
            "longer than the trace after the warmup",
            where="--window",
            remedy=f"give at most {span.length_s:.0f}s",
        )
    has_lineage = trace.lineage != "none"
    turns = evidence.turns(span)
    waits = evidence.waits(span) if trace.has_hashes else []
    named = list(zip(evidence.categories, waits, strict=False))
    choices = {name: choose(of) for name, of in named if enough(of)}
    use = {name: choice.chosen.name for name, choice in choices.items()}
    length_s = window_s or default_length_s(span)
    windows: WindowFits | None = None
    stability: tuple[StabilityFit, ...] = ()
    if use and length_s:  # all requests at one time leave no windows to compare
        windows, stability = over_windows(evidence, span, length_s, use)
    conversation = None
    if has_lineage and enough(turns.waits):
        conversation = fit_conversations(turns.waits, evidence.births(span), span.length_s)
    return Fit(
        trace=trace,
        notes=trace.notes,
        warmup=warmup,
        start_s=span.start_s,
        end_s=span.end_s,
        categories=tuple(_category(name, of, choices.get(name)) for name, of in named),
        models=tuple(
            model
            for name, of in named
            if name in choices
            for model in _models(name, of, span, choices[name])
        ),
        windows=windows,
        stability=stability,
        conversation=conversation,
        next_turns=tuple(_next_turns(evidence, turns)) if has_lineage else (),
        next_prompt_tokens=tuple(_next_prompts(evidence, span)) if has_lineage else (),
    )


def _category(name: str, of: Observations, choice: Choice | None) -> CategoryFit:
    few = (
        f"too few gaps: {of.reused_runs:,} runs of reuse,"
        f" as much as {of.effective_reused:.0f} independent blocks"
    )
    return CategoryFit(
        category=name,
        n=round(of.total),
        censored=round(of.total - of.total_reused),
        runs=of.reused_runs,
        effective_n=of.effective,
        model=choice.chosen.name if choice else None,
        fits=choice.fits if choice else None,
        tolerance=tolerance(of) if choice else None,
        verdict=choice.verdict if choice else few,
        curve=_curve(choice) if choice else None,
    )


def _curve(choice: Choice) -> Curve:
    grid = log_grid(choice.reference.reach_s)
    return Curve(
        at_s=_tuple(grid),
        observed=_tuple(choice.reference.reuse_within(grid)),
        by_model={model.name: _tuple(model.reuse_within(grid)) for model in choice.models},
    )


def _tuple(values: Float64s) -> tuple[float, ...]:
    return tuple(values.tolist())


def _models(name: str, of: Observations, span: Span, choice: Choice) -> Iterator[ModelFit]:
    for model in choice.models:
        yield ModelFit(
            category=name,
            model=model.name,
            start_s=span.start_s,
            end_s=span.end_s,
            params=model.params_,
            interval=model.interval_,
            n=model.n_,
            censored=model.censored_,
            runs=of.reused_runs,
            effective_n=model.effective_n_,
            reuse_probability=model.reuse_probability_,
            ks=model.ks_,
            aic=model.aic_,
            converged=model.converged_,
            chosen=model is choice.chosen,
        )


def _next_turns(evidence: Evidence, turns: Turns) -> Iterator[NextTurnFit]:
    for number, name in enumerate(evidence.categories):
        yield _next_turn(turns.of(turns.category == number), name, None)
    for turn in range(1, _TURNS + 1):
        picked = turns.turn == turn
        if np.any(picked):
            yield _next_turn(turns.of(picked), None, turn)


def _next_turn(of: Observations, category: str | None, turn: int | None) -> NextTurnFit:
    model = Exponential().fit(of) if enough(of) else None
    return NextTurnFit(
        category=category,
        turn=turn,
        requests=len(of.weight),
        continued=of.reused_runs,
        probability=model.reuse_probability_ if model else None,
        interval=model.interval_[P] if model else None,
    )


def _next_prompts(evidence: Evidence, span: Span) -> Iterator[NextPromptFit]:
    tokens, category = evidence.next_prompts(span)
    if len(tokens):
        yield _next_prompt(None, tokens)
    for number, name in enumerate(evidence.categories):
        of = tokens[category == number]
        if len(of):
            yield _next_prompt(name, of)


def _next_prompt(category: str | None, tokens: Float64s) -> NextPromptFit:
    prompt = NextPrompt().fit(tokens)
    quantiles = Quantiles(*(prompt.quantile(rank) for rank in (0.5, 0.8, 0.9, 0.99)))
    return NextPromptFit(category, prompt.n_, prompt.mean_, quantiles, _tuple(prompt.values_))

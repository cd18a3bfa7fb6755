"""Prediction against measurement: the verdict, every run, and the measured engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from kvscope.core import units
from kvscope.deployment.deployment import Deployment
from kvscope.replay.policy_options import format_value
from kvscope.report import style, ttft
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import SECONDS, count, counted, percentiles, share, significant
from kvscope.validate.result import RunFacts, StoredValidation, Validation, ValidationFacts

_LISTED = 20  # mismatched requests
_PREDICTED = {"color": style.GREY, "width": 5}  # below, in every policy's chart
_MARKS = {True: "ok:", False: "NOT:", None: "?:"}
_OUTPUTS = {
    True: "outputs were forced to match what later turns carry.",
    False: "outputs were the engine's own; the tokens of them in later turns count as misses.",
}
_OPENING = {
    "confirmed": "Confirmed: the engine behaves as predicted.",
    "not confirmed": "Not confirmed: the engine does not behave as predicted.",
    "inconclusive": "Inconclusive: too little was measured to tell.",
}


def sections(validation: Validation) -> list[Section]:
    """Return the verdict, every run, and the engine."""
    after = f"requests after the first {validation.warmup:,}, which fill the cache"
    checks = [f"{_MARKS[check.passed]} {check.words}" for check in validation.checks]
    verdict = Section.of(f"Validation: {validation.verdict}", *_opening(validation), *checks)
    return [verdict, _runs(validation, after), _engine(validation)]


def stored(validation: StoredValidation) -> list[Section]:
    """Return a stored validation: the verdict, every run, and the engine."""
    verdict = Section.of(
        f"{validation.created_at:%Y-%m-%d %H:%M} UTC: {validation.verdict}",
        *_opening(validation),
        *_engine_in_words(validation),
        f"Requests were sent {validation.pace}; {_OUTPUTS[validation.forced_outputs]}",
        f"TTFT predicted with {validation.latency}; tolerance {validation.tolerance:.0%}.",
    )
    return [verdict, _runs(validation, "requests after the warm-up")]


def _opening(facts: ValidationFacts) -> list[str]:
    return [_OPENING[facts.verdict], *([f"It ended early: {facts.ended}."] if facts.ended else [])]


def _runs(facts: ValidationFacts, which: str) -> Section:
    runs, slo_s = facts.runs, facts.slo_s
    slo = "" if slo_s is None else f"; SLO {units.duration_in_words(slo_s)}"
    sides = [
        (f"{_called(run)} {side}", getattr(run, side))
        for run in runs
        for side in ("predicted", "measured")
    ]
    compared = tabulate(
        "Predicted and measured",
        sides,
        {
            "run": lambda row: row[0],
            "hit tokens": lambda row: count(row[1].hit_tokens),
            "hit rate": lambda row: share(row[1].token_hit_rate),
            "TTFT p50 (ms)": lambda row: significant(row[1].ttft_ms.p50),
            **percentiles("p90 p95 p99", lambda row: row[1].ttft_ms, significant),
            "TEL (s)": lambda row: SECONDS.cell(row[1].tel_ms and row[1].tel_ms / 1e3),
            "over SLO": lambda row: count(row[1].violations),
        },
        note=f"{which}{slo}",
    )

    def as_predicted(run: RunFacts) -> str:
        mismatched = run.mismatched_requests
        return "not reported" if mismatched is None else count(run.counted.sum() - mismatched)

    by_request = tabulate(
        "Request by request",
        runs,
        {
            "run": _called,
            "counted": lambda run: count(run.counted.sum()),
            "hits as predicted": as_predicted,
            "mismatched": lambda run: count(run.mismatched_requests),
            "tokens off": lambda run: count(run.mismatched_tokens),
            "no answer": lambda run: count(len(run.failed)),
        },
    )
    worst = _mismatches(runs)
    policies = dict.fromkeys(run.policy for run in runs if run.counted.any())
    charts = (partial(distributions_chart, runs, slo_s, policy) for policy in policies)
    return Section.of("Runs", compared, by_request, worst if worst.rows else None, *charts)


def _mismatches(runs: Sequence[RunFacts]) -> Table:
    """Return the requests whose hits differ from the prediction, the largest difference first."""
    differences = []
    for run in runs:
        if not run.mismatched_requests:
            continue
        predicted = run.predicted_hit_tokens[run.counted]
        measured = run.measured_hit_tokens[run.counted]
        for at in map(int, np.flatnonzero(measured - predicted)):
            differences.append((_called(run), at, int(predicted[at]), int(measured[at])))
    differences.sort(key=lambda row: -abs(row[3] - row[2]))
    more = f"; the {_LISTED} largest differences" if len(differences) > _LISTED else ""
    return tabulate(
        "Requests with other hits than predicted",
        differences[:_LISTED],
        {
            "run": lambda row: row[0],
            "request": lambda row: count(row[1] + 1),
            "predicted hits": lambda row: count(row[2]),
            "measured hits": lambda row: count(row[3]),
            "off by": lambda row: f"{row[3] - row[2]:+,d}",
        },
        note=f"request: its number among those counted; hits in tokens{more}",
    )


def _called(run: RunFacts) -> str:
    return f"{run.policy} {run.repeat + 1}" + (" (incomplete)" if run.ended else "")


def _with_params(run: RunFacts) -> str:
    finite = {name: value for name, value in run.params.items() if math.isfinite(value)}
    params = [f"{name}={format_value(name, value)}" for name, value in finite.items()]
    return " ".join([run.policy, f"leaves={run.leaves}", *params])


def _engine(validation: Validation) -> Section:
    sample = validation.sample
    sent = "would have been sent" if validation.ended else "were sent"
    words = [
        *_engine_in_words(validation),
        f"{len(sample.prompts.leaf):,} of {sample.total:,} requests {sent}, {validation.pace}.",
        f"TTFT predicted with the latency profile {validation.latency}.",
        _OUTPUTS[validation.forced_outputs].capitalize(),
    ]
    reasons = {
        "in conversations outside the sample": sample.outside_sample,
        "beyond the request limit": sample.beyond_limit,
        "too long for the engine": sample.too_long,
    }
    if left_out := [f"{number:,} {why}" for why, number in reasons.items() if number]:
        words.append(f"Left out: {', '.join(left_out)}.")
    words += [f"{_with_params(run)}: {' '.join(run.flags)}" for run in validation.runs if run.flags]
    return Section.of("Measured on", *dict.fromkeys(words))


def _engine_in_words(facts: ValidationFacts) -> list[str]:
    engine = facts.engine
    version = f" {engine.version}" if engine.version else ""
    where = f" on {engine.device}" if engine.device else ""
    pool = f"{counted(engine.blocks, 'block')} of {engine.block_size} tokens"
    words = [f"{engine.name}{version}{where}, model {engine.model}, {pool}."]
    if facts.deployment is not None:
        words.append(f"Deployment: {Deployment(**facts.deployment).in_words}.")
    return [*words, f"Started with {' '.join(engine.flags)}"] if engine.flags else words


def distributions_chart(runs: Sequence[RunFacts], slo_s: float | None, policy: str) -> style.Figure:
    """Draw predicted and measured TTFT distributions (CDF) of one policy."""
    runs = [run for run in runs if run.policy == policy]
    predicted, measured = (
        np.concatenate([getattr(run, f"{side}_ttft_s")[run.counted] for run in runs]) * 1e3
        for side in ("predicted", "measured")
    )
    sides = (
        ttft.distribution("predicted", policy, predicted, _PREDICTED),
        ttft.distribution("measured", policy, measured),
    )
    return ttft.distributions_chart(f"TTFT with {policy}", sides, slo_s)

"""Prediction against measurement: the verdict, every run, and the engine it was measured on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.replay.policy_options import format_value
from kvscope.report import html, style
from kvscope.report.runs import policy_line
from kvscope.report.section import Section, Table
from kvscope.report.words import NONE, counted, significant, trace_in_words
from kvscope.validate.result import EngineFacts, Figures, RunFacts, StoredValidation, Validation

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LISTED = 20  # mismatched requests
_POINTS = 400
_PREDICTED = {"color": style.GREY, "width": 5}  # below, in every policy's chart
_MARKS = {True: "ok:", False: "NOT:", None: "?:"}
_OPENING = {
    "confirmed": "Confirmed: the engine behaves as predicted.",
    "not confirmed": "Not confirmed: the engine does not behave as predicted.",
    "inconclusive": "Inconclusive: too little was measured to tell.",
}


def sections(validation: Validation) -> list[Section]:
    """Return the verdict, every run, and what it was measured on."""
    after = f"requests after the first {validation.warmup:,}, which fill the cache"
    checks = [f"{_MARKS[check.passed]} {check.words}" for check in validation.checks]
    verdict = Section(
        f"Validation: {validation.verdict}",
        (*_opening(validation.verdict, validation.ended), *checks),
    )
    return [verdict, _runs(validation.runs, validation.slo_s, after), _engine(validation)]


def stored(validation: StoredValidation) -> list[Section]:
    """Return a validation of the store: the verdict, every run, and the engine."""
    words = (
        *_opening(validation.verdict, validation.ended),
        *_engine_in_words(validation.engine),
        f"Requests were sent {validation.pace}; {_outputs_in_words(validation.forced_outputs)}",
        f"TTFT predicted with {validation.latency}; tolerance {validation.tolerance:.0%}.",
    )
    title = f"{validation.created_at:%Y-%m-%d %H:%M} UTC: {validation.verdict}"
    runs = _runs(validation.runs, validation.slo_s, "requests after the warm-up")
    return [Section(title, words), runs]


def html_report(trace: Trace, validation: Validation) -> str:
    """Return the validation as one self-contained HTML page, both distributions overlaid."""
    title = f"kvscope validate: {trace.name}"
    return html.page(title, trace_in_words(trace), sections(validation))


def _opening(verdict: str, ended: str) -> list[str]:
    return [_OPENING[verdict], *([f"It ended early: {ended}."] if ended else [])]


def _runs(runs: Sequence[RunFacts], slo_s: float | None, which: str) -> Section:
    rows: list[tuple[str, ...]] = []
    for run in runs:
        rows += [_row(run, "predicted", run.predicted), _row(run, "measured", run.measured)]
    columns = (
        *("run", "hit tokens", "hit rate", "TTFT p50 (ms)", "p90", "p95", "p99"),
        *("TEL (s)", "over SLO"),
    )
    slo = "" if slo_s is None else f"; SLO {units.duration_in_words(slo_s)}"
    compared = Table("Predicted and measured", columns, tuple(rows), note=f"{which}{slo}")
    mismatches = Table(
        "Request by request",
        ("run", "counted", "hits as predicted", "mismatched", "tokens off", "no answer"),
        tuple(_mismatch(run) for run in runs),
    )
    worst = _mismatches(runs)
    policies = dict.fromkeys(run.policy for run in runs if run.counted.any())
    figures = tuple(partial(distributions_chart, runs, slo_s, policy) for policy in policies)
    tables = (compared, mismatches) if worst is None else (compared, mismatches, worst)
    return Section("Runs", tables=tables, figures=figures)


def _mismatches(runs: Sequence[RunFacts]) -> Table | None:
    """Return the requests whose hits differ from the prediction, the largest difference first."""
    differences = []
    for run in runs:
        if not run.mismatched_requests:
            continue
        predicted = run.predicted_hit_tokens[run.counted]
        off = run.measured_hit_tokens[run.counted] - predicted
        differences += [(int(off[at]), int(at), run) for at in np.flatnonzero(off)]
    if not differences:
        return None
    differences.sort(key=lambda difference: -abs(difference[0]))
    rows = [
        (
            _called(run),
            units.format_count(at + 1),
            units.format_count(int(run.predicted_hit_tokens[run.counted][at])),
            units.format_count(int(run.measured_hit_tokens[run.counted][at])),
            f"{off:+,d}",
        )
        for off, at, run in differences[:_LISTED]
    ]
    more = f"; the {_LISTED} largest differences" if len(differences) > _LISTED else ""
    return Table(
        "Requests with other hits than predicted",
        ("run", "request", "predicted hits", "measured hits", "off by"),
        tuple(rows),
        note=f"request: its number among those counted; hits in tokens{more}",
    )


def _row(run: RunFacts, side: str, figures: Figures) -> tuple[str, ...]:
    times = figures.ttft_ms
    return (
        f"{_called(run)} {side}",
        units.format_count(figures.hit_tokens),
        units.format_share(figures.token_hit_rate),
        *(significant(value) for value in (times.p50, times.p90, times.p95, times.p99)),
        NONE if figures.tel_ms is None else significant(figures.tel_ms / 1e3),
        NONE if figures.violations is None else units.format_count(figures.violations),
    )


def _called(run: RunFacts) -> str:
    return f"{run.policy} {run.repeat + 1}" + (" (incomplete)" if run.ended else "")


def _with_params(run: RunFacts) -> str:
    params = [
        f"{name}={format_value(name, value)}"
        for name, value in run.params.items()
        if math.isfinite(value)
    ]
    return " ".join([run.policy, f"leaves={run.leaves}", *params])


def _mismatch(run: RunFacts) -> tuple[str, ...]:
    total = int(run.counted.sum())
    if run.mismatched_requests is None or run.mismatched_tokens is None:
        cells = ("not reported", NONE, NONE)
    else:
        cells = (
            units.format_count(total - run.mismatched_requests),
            units.format_count(run.mismatched_requests),
            units.format_count(run.mismatched_tokens),
        )
    return _called(run), units.format_count(total), *cells, units.format_count(len(run.failed))


def _engine(validation: Validation) -> Section:
    sample = validation.sample
    sent = "would have been sent" if validation.ended else "were sent"
    words = [
        *_engine_in_words(validation.engine),
        f"{len(sample.prompts.leaf):,} of {sample.total:,} requests {sent}, {validation.pace}.",
        f"TTFT predicted with the latency profile {validation.latency}.",
        _outputs_in_words(validation.forced_outputs).capitalize(),
    ]
    left_out = [
        f"{count:,} {why}"
        for count, why in (
            (sample.outside_sample, "in conversations outside the sample"),
            (sample.beyond_limit, "beyond the request limit"),
            (sample.too_long, "too long for the engine"),
        )
        if count
    ]
    if left_out:
        words.append(f"Left out: {', '.join(left_out)}.")
    words += [f"{_with_params(run)}: {' '.join(run.flags)}" for run in validation.runs if run.flags]
    return Section("Measured on", tuple(dict.fromkeys(words)))


def _engine_in_words(engine: EngineFacts) -> list[str]:
    version = f" {engine.version}" if engine.version else ""
    where = f" on {engine.device}" if engine.device else ""
    pool = f"{counted(engine.blocks, 'block')} of {engine.block_size} tokens"
    words = [f"{engine.name}{version}{where}, model {engine.model}, {pool}."]
    return [*words, f"Started with {' '.join(engine.flags)}"] if engine.flags else words


def _outputs_in_words(forced: bool) -> str:
    if forced:
        return "outputs were forced to match what later turns carry."
    return "outputs were the engine's own; the tokens of them in later turns count as misses."


def distributions_chart(runs: Sequence[RunFacts], slo_s: float | None, policy: str) -> go.Figure:
    """Build the share of requests with a TTFT up to each value, as predicted and as measured.

    At least one request of the policy was counted.
    """
    runs = [run for run in runs if run.policy == policy]
    chart = style.figure(f"TTFT with {policy}", "TTFT (ms)", "share of requests")
    share = np.linspace(0, 1, _POINTS)
    sides = (
        ("predicted", [run.predicted_ttft_s[run.counted] for run in runs], _PREDICTED),
        ("measured", [run.measured_ttft_s[run.counted] for run in runs], policy_line(policy)),
    )
    for name, times, line in sides:
        chart.add_scatter(
            x=(np.quantile(np.concatenate(times), share, method="inverted_cdf") * 1e3).tolist(),
            y=share.tolist(),
            name=name,
            mode="lines",
            line=line,
            hovertemplate="%{y:.1%} of the requests within %{x:.3~g} ms",
        )
    if slo_s is not None:
        style.mark(chart, slo_s * 1e3, "SLO")
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%")
    return chart

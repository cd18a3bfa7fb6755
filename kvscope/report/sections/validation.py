"""Prediction beside measurement, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.replay.policy_options import format_value
from kvscope.report import html
from kvscope.report.report import trace_in_words
from kvscope.report.section import Section, Table
from kvscope.report.sections.run_cells import in_ms, in_s
from kvscope.report.words import counted
from kvscope.validate.result import EngineFacts, Figures, Kept, RunFacts, Validation

_LISTED = 20  # mismatched requests
_PASSED = {True: "yes", False: "no", None: "cannot tell"}
_OPENING = {
    "confirmed": "Confirmed: the engine does what was predicted.",
    "not confirmed": "Not confirmed: the engine does not do what was predicted.",
    "inconclusive": "Inconclusive: too little was measured to tell.",
}


def sections(found: Validation) -> list[Section]:
    """The verdict, every run, and what it was measured on."""
    after = f"of the requests after the first {found.warmup:,}, which fill the cache"
    return [_verdict(found), _runs(found.runs, found.slo_s, after), _engine(found)]


def kept(found: Kept) -> list[Section]:
    """A validation as the store has it: the verdict, every run, and the engine."""
    words = [_OPENING[found.verdict]]
    if found.ended:
        words.append(f"It ended early: {found.ended}.")
    words += [
        *_engine_in_words(found.engine),
        f"Requests were sent {found.pace}; {_outputs_in_words(found.forced_outputs)}",
        f"TTFT was predicted with {found.latency}; {found.tolerance:.0%} off is tolerated.",
    ]
    title = f"{found.created_at:%Y-%m-%d %H:%M} UTC: {found.verdict}"
    runs = _runs(found.runs, found.slo_s, "of the counted requests")
    return [Section(title, tuple(words)), runs]


def html_report(trace: Trace, found: Validation) -> str:
    """The validation as one self-contained HTML page, both distributions overlaid."""
    return html.page(f"kvscope validate: {trace.name}", trace_in_words(trace), sections(found))


def _verdict(found: Validation) -> Section:
    words = [_OPENING[found.verdict]]
    if found.ended:
        words.append(f"It ended early: {found.ended}.")
    rows = tuple((check.words, _PASSED[check.passed]) for check in found.checks)
    return Section(
        f"Validation: {found.verdict}",
        (*words, *(f"{_mark(passed)} {words}" for words, passed in rows)),
    )


def _mark(passed: str) -> str:
    return {"yes": "ok:", "no": "NOT:", "cannot tell": "?:"}[passed]


def _runs(runs: Sequence[RunFacts], slo_s: float | None, counted_ones: str) -> Section:
    from kvscope.report.charts import validation as charts

    rows: list[tuple[str, ...]] = []
    for run in runs:
        rows += [_row(run, "predicted", run.predicted), _row(run, "measured", run.measured)]
    columns = ("run", "hit tokens", "hit rate", "TTFT p50", "p90", "p95", "p99", "TEL", "over SLO")
    mismatches = Table(
        "Request by request",
        ("run", "counted", "hit as predicted", "mismatched", "tokens off", "no answer"),
        tuple(_mismatch(run) for run in runs),
    )
    slo = "" if slo_s is None else f"; SLO {units.format_duration(slo_s)}"
    table = Table(
        "Prediction beside measurement",
        columns,
        tuple(rows),
        note=f"{counted_ones}{slo}",
    )
    names = dict.fromkeys(run.policy for run in runs if run.counted.any())
    figures = tuple(partial(charts.distributions, runs, slo_s, name) for name in names)
    listed = _mismatches(runs)
    tables = (table, mismatches, listed) if listed is not None else (table, mismatches)
    return Section("Runs", tables=tables, figures=figures)


def _mismatches(runs: Sequence[RunFacts]) -> Table | None:
    """The requests whose hits are not those that were predicted, the farthest off first."""
    found = []
    for run in runs:
        if not run.mismatched_requests:
            continue
        predicted = run.predicted_hit_tokens[run.counted]
        measured = run.measured_hit_tokens[run.counted]
        off = measured - predicted
        found += [(int(off[at]), int(at), run) for at in np.flatnonzero(off)]
    if not found:
        return None
    found.sort(key=lambda one: -abs(one[0]))
    rows = [
        (
            _called(run),
            units.format_count(at + 1),
            units.format_count(int(run.predicted_hit_tokens[run.counted][at])),
            units.format_count(int(run.measured_hit_tokens[run.counted][at])),
            f"{off:+,d}",
        )
        for off, at, run in found[:_LISTED]
    ]
    more = f", the {_LISTED} that are farthest off" if len(found) > _LISTED else ""
    return Table(
        "Requests with other hits than predicted",
        ("run", "request", "predicted hits", "measured hits", "off by"),
        tuple(rows),
        note=f"request: the how manieth of those counted; hits in tokens{more}",
    )


def _row(run: RunFacts, side: str, figures: Figures) -> tuple[str, ...]:
    times = figures.ttft_ms
    return (
        f"{_called(run)} {side}",
        units.format_count(figures.hit_tokens),
        units.format_share(figures.token_hit_rate),
        *(in_ms(one) for one in (times.p50, times.p90, times.p95, times.p99)),
        "–" if figures.tel_ms is None else in_s(figures.tel_ms),
        "–" if figures.violations is None else units.format_count(figures.violations),
    )


def _called(run: RunFacts) -> str:
    return f"{run.policy} {run.repeat + 1}" + (" (not whole)" if run.ended else "")


def _with_params(run: RunFacts) -> str:
    told = [
        f"{name}={format_value(name, value)}"
        for name, value in run.params.items()
        if math.isfinite(value)
    ]
    return " ".join([run.policy, f"leaves={run.leaves}", *told])


def _mismatch(run: RunFacts) -> tuple[str, ...]:
    total = int(run.counted.sum())
    if run.mismatched_requests is None or run.mismatched_tokens is None:
        told = ("not told", "–", "–")
    else:
        told = (
            units.format_count(total - run.mismatched_requests),
            units.format_count(run.mismatched_requests),
            units.format_count(run.mismatched_tokens),
        )
    return _called(run), units.format_count(total), *told, units.format_count(len(run.failed))


def _engine(found: Validation) -> Section:
    part, sent = found.part, "to be sent" if found.ended else "sent"
    words = [
        *_engine_in_words(found.engine),
        f"{len(part.prompts.leaf):,} of {part.of:,} requests were {sent}, {found.pace}.",
        f"TTFT was predicted with the latency profile {found.latency}.",
        _outputs_in_words(found.forced_outputs).capitalize(),
    ]
    left = [
        f"{count:,} {why}"
        for count, why in (
            (part.not_drawn, "of conversations that were not drawn"),
            (part.later, "came later"),
            (part.too_long, "were too long for the engine"),
        )
        if count
    ]
    if left:
        words.append(f"Left out: {', '.join(left)}.")
    for run in found.runs:
        if run.flags:
            words.append(f"{_with_params(run)}: {' '.join(run.flags)}")
    return Section("Measured on", tuple(dict.fromkeys(words)))


def _engine_in_words(engine: EngineFacts) -> list[str]:
    version = f" {engine.version}" if engine.version else ""
    where = f" on {engine.device}" if engine.device else ""
    pool = f"{counted(engine.blocks, 'block')} of {engine.block_size} tokens"
    words = [f"{engine.name}{version}{where}, model {engine.model}, {pool}."]
    return [*words, f"Started with {' '.join(engine.flags)}"] if engine.flags else words


def _outputs_in_words(forced: bool) -> str:
    if forced:
        return "outputs were forced to be those that later turns carry."
    return "outputs were the engine's own: what later turns carry of them counts as not hit."

"""Prediction beside measurement, in words and tables."""

from __future__ import annotations

from functools import partial

from kvscope import units
from kvscope.facts import Trace
from kvscope.show import html
from kvscope.show.report import trace_in_words
from kvscope.show.section import Section
from kvscope.show.sections.run_cells import in_ms, in_s
from kvscope.show.table import Table
from kvscope.show.words import counted
from kvscope.validate.facts import Figures, RunFacts, Validation

_PASSED = {True: "yes", False: "no", None: "cannot tell"}
_OPENING = {
    "confirmed": "Confirmed: the engine does what was predicted.",
    "not confirmed": "Not confirmed: the engine does not do what was predicted.",
    "inconclusive": "Inconclusive: too little was measured to tell.",
}


def sections(found: Validation) -> list[Section]:
    """The verdict, every run, and what it was measured on."""
    return [_verdict(found), _runs(found), _engine(found)]


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


def _runs(found: Validation) -> Section:
    from kvscope.show.charts import validation as charts

    rows: list[tuple[str, ...]] = []
    for run in found.runs:
        rows += [_row(run, "predicted", run.predicted), _row(run, "measured", run.measured)]
    columns = ("run", "hit tokens", "hit rate", "TTFT p50", "p90", "p95", "p99", "TEL", "over SLO")
    mismatches = Table(
        "Request by request",
        ("run", "counted", "hit as predicted", "mismatched", "tokens off", "no answer"),
        tuple(_mismatch(run) for run in found.runs),
    )
    slo = "" if found.slo_s is None else f"; SLO {units.format_duration(found.slo_s)}"
    table = Table(
        "Prediction beside measurement",
        columns,
        tuple(rows),
        note=f"of the requests after the first {found.warmup:,}, which fill the cache{slo}",
    )
    names = dict.fromkeys(run.policy for run in found.runs)
    figures = tuple(partial(charts.distributions, found, name) for name in names)
    return Section("Runs", tables=(table, mismatches), figures=figures)


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
    engine, part = found.engine, found.part
    version = f" {engine.version}" if engine.version else ""
    where = f" on {engine.device}" if engine.device else ""
    pool = f"{counted(engine.blocks, 'block')} of {engine.block_size} tokens"
    words = [
        f"{engine.name}{version}{where}, model {engine.model}, {pool}.",
        f"{len(part.prompts.leaf):,} of {part.of:,} requests were sent, {found.pace}.",
        f"TTFT was predicted with the latency profile {found.latency}.",
        "Outputs were forced to be those that later turns carry."
        if found.forced_outputs
        else "Outputs were the engine's own: what later turns carry of them counts as not hit.",
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
    if engine.flags:
        words.append(f"Started with {' '.join(engine.flags)}")
    for run in found.runs:
        if run.flags:
            words.append(f"{run.policy}: {' '.join(run.flags)}")
    return Section("Measured on", tuple(dict.fromkeys(words)))

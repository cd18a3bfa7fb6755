"""Measure how soon each page of the dashboard answers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.processes import ProcessRun, interleaved, measure, median_of, note, worker
from benchmarks.table import Table
from benchmarks.traces import TraceFile
from benchmarks.workers.browser import (
    BESIDE_A_JOB,
    EMPTY,
    EMPTY_BESIDE_IT,
    FIRST_OPEN,
    FRESH,
)


@dataclass(frozen=True, slots=True)
class Target:
    """Seconds within which a page is to answer, on a trace of a size."""

    name: str
    within_s: float


TARGETS = {"t03": Target("300,000 accesses", 1.0), "t6": Target("6 million accesses", 3.0)}
COLUMNS = (
    *("page", "first visit", "all of it", "another visit", "a change"),
    *("in Chromium", "again there", "a change there", "target"),
)
FIRST_OPEN_S = 3.0
BESIDE_TIMES = 1.5  # what a fresh open takes at most beside a job, as a multiple of one without
KINDS = ("first_s", "whole_s", "again_s", "change_s", "opened_s", "seen_s", "moved_s")


def tables(traces: Sequence[TraceFile], rounds: int) -> list[Table]:
    """Return a table per trace: medians over `rounds`, each in a fresh process with a new store."""
    commands = {trace.name: worker("dashboard", trace.path) for trace in traces}
    note("dashboard: one run to compile the kernels")
    measure(commands[traces[0].name])
    contenders = {name: partial(measure, command) for name, command in commands.items()}
    runs = interleaved(contenders, rounds)
    return [_table(name, trace_runs) for name, trace_runs in runs.items()]


def _table(name: str, runs: list[ProcessRun]) -> Table:
    trace, target = runs[0].document["trace"], TARGETS[name]
    browser = "" if shutil.which("chromium") else " (there is none here)"
    rows = [
        [
            page,
            *(_seconds(runs, page, kind) for kind in KINDS),
            _target(runs, page, target),
        ]
        for page in runs[0].document["pages"]
    ]
    description = (
        f"{trace['requests']:,} requests, {trace['accesses']:,} accesses. Seconds of the page's"
        " script: first visit with nothing analyzed (the page then shows progress), until complete,"
        f" second visit, change of a widget. In Chromium{browser}, from click to last chart: first"
        " visit in a fresh dashboard, second visit, change of a slider, tab or model. First open:"
        " from the address to the Overview's first answer. Fresh open: the page of runs in a new"
        " session, and an app that draws one heading, without a job and while `tune` runs, in turn."
        " Replays and fits are excluded."
    )
    return Table(f"Dashboard, {target.name}", description, COLUMNS, rows)


def _target(runs: list[ProcessRun], page: str, target: Target) -> str:
    if page in {FRESH, EMPTY, EMPTY_BESIDE_IT}:
        return "-"
    if page == BESIDE_A_JOB:
        return f"{BESIDE_TIMES * float(_seconds(runs, FRESH, 'opened_s')):.2f} s"
    return f"{FIRST_OPEN_S if page == FIRST_OPEN else target.within_s:g} s"


def _seconds(runs: list[ProcessRun], page: str, kind: str) -> str:
    if runs[0].document["pages"][page].get(kind) is None:
        return "-"
    return f"{median_of(runs, lambda run: run.document['pages'][page][kind]):.2f}"

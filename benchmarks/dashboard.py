"""The dashboard's pages on traces of 300,000 and of 6 million accesses: how soon each answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.measure import Run, interleaved, measure, middle, note, python
from benchmarks.table import Table
from benchmarks.traces import TraceFile


@dataclass(frozen=True, slots=True)
class Aim:
    """Seconds within which a page is to answer, on a trace of so many accesses."""

    name: str
    within_s: float


AIMS = {"t03": Aim("300,000 accesses", 1.0), "t6": Aim("6 million accesses", 3.0)}
COLUMNS = (
    *("page", "first visit", "all of it", "another visit", "a change"),
    *("in Chromium", "again there", "a change there", "aim"),
)
KINDS = ("first_s", "whole_s", "again_s", "change_s", "opened_s", "seen_s", "moved_s")


def tables(traces: Sequence[TraceFile], rounds: int) -> list[Table]:
    """A table a trace: medians over `rounds`, each in a fresh process with a new store."""
    commands = {trace.name: python("work_dashboard", trace.path) for trace in traces}
    note("dashboard: one run to compile the kernels")
    measure(commands[traces[0].name])
    contenders = {name: _measuring(command) for name, command in commands.items()}
    runs = interleaved(contenders, rounds)
    return [_table(name, each) for name, each in runs.items()]


def _measuring(command: list[str]) -> Callable[[], Run]:
    return lambda: measure(command)


def _table(name: str, runs: list[Run]) -> Table:
    trace, aim = runs[0].answer["trace"], AIMS[name]
    browser = "" if shutil.which("chromium") else " (there is none here)"
    rows = [
        [
            page,
            *(_seconds(runs, page, kind) for kind in KINDS),
            f"{aim.within_s:g} s",
        ]
        for page in runs[0].answer["pages"]
    ]
    done = (
        f"{trace['requests']:,} requests, {trace['accesses']:,} accesses. Seconds of the page's"
        " script: first visit with nothing analyzed (the page then shows progress), until complete,"
        f" second visit, change of a widget. In Chromium{browser}, from click to last chart: first"
        " visit in a fresh dashboard, second visit, change of a slider, tab or model. Replays and"
        " fits are excluded."
    )
    return Table(f"Dashboard, {aim.name}", done, COLUMNS, rows)


def _seconds(runs: list[Run], page: str, kind: str) -> str:
    if runs[0].answer["pages"][page].get(kind) is None:
        return "-"
    return f"{middle(runs, lambda run: run.answer['pages'][page][kind]):.2f}"

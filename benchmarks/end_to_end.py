"""kvscope alone against its limits: a trace from file to characterized, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.measure import Run, cpu_s, interleaved, measure, middle, note, python, wall_s
from benchmarks.table import Table
from benchmarks.traces import TraceFile

GIB = 2**30
LIMITED = ("parse", "build", "load", "characterize")
"""The phases that a limit is of: a process starts and ends besides."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What an analysis of a trace may take on two cores, from parse to characterized."""

    wall_s: float
    peak_bytes: int


LIMITS = {"t6": Limit(3.0, 1 * GIB), "t63": Limit(45.0, 4 * GIB)}


def tables(traces: list[TraceFile], rounds: int) -> list[Table]:
    """The limits and the phases; a first run of each, not counted, compiles the kernels."""
    commands = {trace.name: python("work_analyze", trace.path) for trace in traces}
    note("kvscope analyze: one run to compile the kernels")
    measure(commands[traces[0].name])
    contenders = {
        name: (lambda command=command: measure(command)) for name, command in commands.items()
    }
    runs = interleaved(contenders, rounds)
    done = "`kvscope analyze TRACE --json` in a fresh process, new store, kernels compiled before."
    return [
        Table(
            "kvscope analyze, whole",
            done,
            (
                "trace",
                "requests",
                "accesses",
                "s",
                "CPU s",
                "parse to characterized, s",
                "of its limit",
                "peak GiB",
                "of its limit",
            ),
            [_whole(name, each) for name, each in runs.items()],
        ),
        _phases(runs),
    ]


def _whole(name: str, runs: list[Run]) -> list[str]:
    trace = runs[0].answer["trace"]
    took, peak = middle(runs, _limited_s), middle(runs, lambda run: run.peak_bytes)
    limit = LIMITS.get(name)
    return [
        name,
        f"{trace['requests']:,}",
        f"{trace['accesses']:,}",
        f"{middle(runs, wall_s):.2f}",
        f"{middle(runs, cpu_s):.2f}",
        f"{took:.2f}",
        f"{took / limit.wall_s:.2f} × {limit.wall_s:g} s" if limit else "",
        f"{peak / GIB:.2f}",
        f"{peak / limit.peak_bytes:.2f} × {limit.peak_bytes / GIB:g} GiB" if limit else "",
    ]


def _limited_s(run: Run) -> float:
    return float(sum(run.answer["phases_s"].get(name, 0.0) for name in LIMITED))


def _phases(runs: dict[str, list[Run]]) -> Table:
    names = list(dict.fromkeys(n for each in runs.values() for n in each[0].answer["phases_s"]))
    beside = list(dict.fromkeys(n for each in runs.values() for n in each[0].answer["beside_s"]))
    rows = []
    for trace, each in runs.items():
        outside = [run.wall_s - sum(run.answer["phases_s"].values()) for run in each]
        seconds = [*_medians(each, "phases_s", names), *_medians(each, "beside_s", beside)]
        rows.append([trace, *(f"{x:.2f}" for x in (median(outside), *seconds))])
    return Table(
        "kvscope analyze, phases in seconds",
        "`start` is the interpreter's start and end; medians, which need not add up."
        " Columns in parentheses run in a second thread and do not add.",
        ("trace", "start", *names, *(f"({name})" for name in beside)),
        rows,
    )


def _medians(runs: list[Run], kind: str, names: list[str]) -> list[float]:
    return [median(run.answer[kind].get(name, 0.0) for run in runs) for name in names]

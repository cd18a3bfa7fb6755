"""Measure `kvscope analyze TRACE` against its limits of time and memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.processes import (
    ProcessRun,
    cpu_s,
    interleaved,
    measure,
    median_of,
    note,
    wall_s,
)
from benchmarks.table import Table
from benchmarks.traces import TraceFile

GIB = 2**30
FEW_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class Limit:
    """What the analysis of a trace may take on two cores, process start excluded."""

    wall_s: float
    peak_bytes: int


LIMITS = {"t6": Limit(3.0, 1 * GIB), "t63": Limit(45.0, 4 * GIB)}


def table(traces: list[TraceFile], rounds: int) -> Table:
    """Return a row per trace; a first, uncounted run compiles the kernels."""
    with TemporaryDirectory() as folder:
        start = Path(folder) / "start.jsonl"
        with traces[0].path.open(encoding="utf-8") as lines:
            start.write_text("".join(islice(lines, FEW_REQUESTS)), encoding="utf-8")
        paths = {"start": start} | {trace.name: trace.path for trace in traces}
        note("kvscope analyze: one run to compile the kernels")
        analyze(paths[traces[0].name])
        runs = interleaved({name: partial(analyze, path) for name, path in paths.items()}, rounds)
    start_s = median_of(runs.pop("start"), wall_s)
    return Table(
        "kvscope analyze",
        "`kvscope analyze TRACE --json` in a fresh process with a new store, kernels compiled."
        f" `without start`: less the same command on the first {FEW_REQUESTS} requests.",
        (
            *("trace", "requests", "accesses", "s", "CPU s"),
            *("without start, s", "of its limit", "peak GiB", "of its limit"),
        ),
        [_row(name, trace_runs, start_s) for name, trace_runs in runs.items()],
    )


def analyze(trace: Path) -> ProcessRun:
    """Run `kvscope analyze` on a trace file with a new store."""
    with TemporaryDirectory() as folder:
        store = Path(folder) / "store.duckdb"
        words = ("analyze", str(trace), "--db", str(store), "--json")
        return measure([sys.executable, "-m", "kvscope", *words])


def _row(name: str, runs: list[ProcessRun], start_s: float) -> list[str]:
    trace = runs[0].document["trace"]
    seconds, peak = median_of(runs, wall_s), median_of(runs, lambda run: run.peak_bytes)
    work_s = seconds - start_s
    limit = LIMITS.get(name)
    return [
        name,
        f"{trace['requests']:,}",
        f"{trace['accesses']:,}",
        f"{seconds:.2f}",
        f"{median_of(runs, cpu_s):.2f}",
        f"{work_s:.2f}",
        f"{work_s / limit.wall_s:.2f} × {limit.wall_s:g} s" if limit else "",
        f"{peak / GIB:.2f}",
        f"{peak / limit.peak_bytes:.2f} × {limit.peak_bytes / GIB:g} GiB" if limit else "",
    ]

"""Measure whole commands of this checkout against those of another one, interleaved."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.processes import (
    ProcessRun,
    cpu_s,
    interleaved,
    measure,
    median_of,
    note,
    peak_mib,
    ratio,
    wall_s,
)
from benchmarks.table import Table
from benchmarks.traces import TraceFile

COMMANDS = {
    "analyze": ("--json",),
    "simulate": ("--capacity-blocks", "20k", "--slo", "200ms", "--json"),
}


def table(traces: list[TraceFile], before: Path, rounds: int) -> Table:
    """Return a row per command and trace; `before` is the root of the other checkout.

    Every run has a new store, so that nothing is reused; first, uncounted runs compile the kernels.
    """
    contenders = {
        (f"{command} {trace.name}", tree): partial(_run, command, trace.path, root)
        for trace in traces
        for command in COMMANDS
        for tree, root in (("before", before), ("now", ROOT))
    }
    note("first runs, to compile the kernels")
    for run in contenders.values():
        run()
    runs = interleaved({" ".join(key): run for key, run in contenders.items()}, rounds)
    rows = []
    for command in dict.fromkeys(command for command, _ in contenders):
        earlier, now = runs[f"{command} before"], runs[f"{command} now"]
        row = [f"`kvscope {command}`"]
        for quantity, digits in ((wall_s, 2), (cpu_s, 2), (peak_mib, 0)):
            row += [f"{median_of(same, quantity):,.{digits}f}" for same in (earlier, now)]
            row.append(f"{1 / ratio(now, earlier, quantity):.2f}")
        rows.append(row)
    return Table(
        "Whole commands, before and after the redesign of the source tree",
        "Whole processes with a new store each, kernels compiled; ratios are now / before.",
        (
            "command",
            *("s before", "now", "ratio"),
            *("CPU s before", "now", "ratio"),
            *("peak MiB before", "now", "ratio"),
        ),
        rows,
    )


def _run(command: str, trace: Path, root: Path) -> ProcessRun:
    with TemporaryDirectory() as folder:
        store = ("--db", str(Path(folder) / "store.duckdb"))
        words = (command, str(trace), *COMMANDS[command], *store)
        return measure([sys.executable, "-m", "kvscope", *words], root)

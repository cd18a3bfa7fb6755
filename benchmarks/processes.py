"""Measure whole processes: wall time, CPU time, peak memory, interleaved over rounds.

Import nothing heavy here, nor in a module that calls it: until a child has started its program,
Linux counts the parent's memory towards the child's peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ROOT

PEAK_UNIT_BYTES = 1024 if sys.platform != "darwin" else 1


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """Wall and CPU seconds of a process, its peak memory in bytes and what it printed.

    CPU seconds include its child processes; the peak is that of the largest process, not the sum.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str

    @property
    def document(self) -> Any:
        """Return the JSON document that the process printed."""
        return json.loads(self.output)


def measure(
    command: Sequence[str], folder: Path = ROOT, exit_codes: Sequence[int] = (0,)
) -> ProcessRun:
    """Run `command` in `folder`. Raise RuntimeError with its last output on another exit code."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in exit_codes:
            err.seek(0)
            last = err.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{last}")
        out.seek(0)
        cpu_s = usage.ru_utime + usage.ru_stime
        return ProcessRun(wall_s, cpu_s, usage.ru_maxrss * PEAK_UNIT_BYTES, out.read().decode())


def worker(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of `benchmarks.workers` with this interpreter."""
    return [sys.executable, "-m", f"benchmarks.workers.{name}", *map(str, arguments)]


def interleaved(
    contenders: Mapping[str, Callable[[], ProcessRun]], rounds: int
) -> dict[str, list[ProcessRun]]:
    """Run every contender once per round, in turn, so that a noisy spell hits all alike."""
    runs: dict[str, list[ProcessRun]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            note(f"  round {number + 1} of {rounds}: {name}")
            runs[name].append(contender())
    return runs


def median_of(runs: Sequence[ProcessRun], quantity: Callable[[ProcessRun], float]) -> float:
    """Return the median of `quantity` over the runs."""
    return median(quantity(run) for run in runs)


def ratio(
    ours: Sequence[ProcessRun],
    theirs: Sequence[ProcessRun],
    quantity: Callable[[ProcessRun], float],
) -> float:
    """Return the median of theirs / ours over the rounds, each round with its own pair."""
    return median(quantity(t) / quantity(o) for o, t in zip(ours, theirs, strict=True))


def wall_s(run: ProcessRun) -> float:
    """Return the seconds from start to end."""
    return run.wall_s


def cpu_s(run: ProcessRun) -> float:
    """Return the CPU seconds on all cores, child processes included."""
    return run.cpu_s


def peak_mib(run: ProcessRun) -> float:
    """Return the peak memory in MiB."""
    return run.peak_bytes / 2**20


def note(text: str) -> None:
    """Print progress to stderr; stdout is for the tables."""
    print(text, file=sys.stderr, flush=True)

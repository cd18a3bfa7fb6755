"""Runs commands in fresh processes and takes their wall time and peak memory, turn by turn.

Nothing heavy may be imported here, nor by whatever calls it: Linux counts the memory of the parent
towards a child's peak until the child has started its program.
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
from statistics import median
from typing import Any

from benchmarks import ROOT

PEAK_UNIT_BYTES = 1024 if sys.platform != "darwin" else 1


@dataclass(frozen=True, slots=True)
class Run:
    """One process, from start to end: seconds on the wall and on all cores, peak bytes, output.

    Where a command starts processes of its own, the peak is that of the largest, not their sum.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str

    @property
    def answer(self) -> Any:
        """The JSON document that the process printed."""
        return json.loads(self.output)


def measure(command: Sequence[str]) -> Run:
    """Run `command` once. Raises RuntimeError with its last words if it fails."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            err.seek(0)
            last = err.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{last}")
        out.seek(0)
        cpu_s = usage.ru_utime + usage.ru_stime
        return Run(wall_s, cpu_s, usage.ru_maxrss * PEAK_UNIT_BYTES, out.read().decode())


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs a module of the benchmarks with this interpreter."""
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]


Contender = Callable[[], Run]


def interleaved(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[Run]]:
    """Let each contender run once a round, in turn, so that a noisy spell hits all alike."""
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            note(f"  round {number + 1} of {rounds}: {name}")
            runs[name].append(contender())
    return runs


def middle(runs: Sequence[Run], quantity: Callable[[Run], float]) -> float:
    """The median over runs."""
    return median(quantity(run) for run in runs)


def ratio(ours: Sequence[Run], theirs: Sequence[Run], quantity: Callable[[Run], float]) -> float:
    """How many times ours goes into theirs: the median over rounds, each with its own pair."""
    return median(quantity(t) / quantity(o) for o, t in zip(ours, theirs, strict=True))


def wall_s(run: Run) -> float:
    """Seconds from start to end."""
    return run.wall_s


def cpu_s(run: Run) -> float:
    """Seconds on all cores together, the processes that it started included."""
    return run.cpu_s


def peak_mib(run: Run) -> float:
    """Peak memory in MiB."""
    return run.peak_bytes / 2**20


def note(words: str) -> None:
    """Say on stderr what is going on; stdout is for the tables."""
    print(words, file=sys.stderr, flush=True)

"""Measure datasets: time, disk, and the memory of all processes together against `--memory`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from benchmarks.processes import ProcessRun, measure, note
from benchmarks.table import Table
from benchmarks.traces import TraceFile

MEMORY = "2.5GiB"
WORKERS = (1, 2)
GIB = 2**30
_EVERY_S = 0.2


def table(traces: list[TraceFile], folder: Path) -> Table:
    """Return a row per trace, number of workers and command; one run of each."""
    rows: list[list[str]] = []
    for trace in traces:
        for workers in WORKERS:
            rows += _rows(trace, workers, folder)
    return Table(
        "datasets",
        f"`kvscope ingest TRACE --into DIR --memory {MEMORY} --workers N`, then `kvscope analyze"
        f" DIR --memory {MEMORY} --json`, each once. Peak: the proportional set size (PSS) of all"
        f" its processes together, every {_EVERY_S:g} s.",
        ("trace", "accesses", "command", "workers", "s", "CPU s", "peak GiB", "folder GiB"),
        rows,
    )


def _rows(trace: TraceFile, workers: int, folder: Path) -> Iterator[list[str]]:
    with TemporaryDirectory(dir=folder) as temporary:
        into = str(Path(temporary) / "dataset")
        in_processes = ("--workers", str(workers), "--into", into)
        for words in (
            ("ingest", str(trace.path), *in_processes, "--memory", MEMORY, "--json"),
            ("analyze", into, "--memory", MEMORY, "--json"),
        ):
            note(f"kvscope {words[0]}: {trace.name}, {workers} workers")
            run, peak_bytes = measure_together([sys.executable, "-m", "kvscope", *words])
            size = sum(file.stat().st_size for file in Path(into).rglob("*") if file.is_file())
            yield [
                trace.name,
                f"{run.document['trace']['accesses']:,}",
                words[0],
                str(workers) if words[0] == "ingest" else "",
                f"{run.wall_s:.1f}",
                f"{run.cpu_s:.1f}",
                f"{peak_bytes / GIB:.2f}",
                f"{size / GIB:.2f}",
            ]


def measure_together(command: list[str]) -> tuple[ProcessRun, int]:
    """Run a command; return also the peak PSS of this process's children all together (Linux)."""
    ended = Event()

    def watch() -> int:
        peak = 0
        while not ended.wait(_EVERY_S):
            peak = max(peak, sum(map(_pss_bytes, _descendants())))
        return peak

    with ThreadPoolExecutor(1) as watching:
        peak = watching.submit(watch)
        try:
            run = measure(command)
        finally:
            ended.set()
        return run, peak.result()


def _descendants() -> list[int]:
    """Return the processes that this one has started, and those that they have."""
    children = defaultdict[int, list[int]](list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        children[int(fields[1])].append(int(stat.parent.name))
    own = int(Path("/proc/self").readlink().name)
    started = list(children[own])
    for process in started:
        started += children[process]
    return started


def _pss_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))

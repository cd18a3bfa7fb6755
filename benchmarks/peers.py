"""Measure kvscope against kvcache-simulator: the same file in, the same LRU hit rates out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.analyze import analyze
from benchmarks.processes import (
    cpu_s,
    interleaved,
    measure,
    median_of,
    note,
    peak_mib,
    ratio,
    wall_s,
    worker,
)
from benchmarks.table import Table
from benchmarks.traces import TraceFile

MODEL = "llama-3.1-8b"
"""Only sets how many blocks a GiB holds."""
TOLERANCE = 1e-12
TARGET_RATIO = 5.0
TARGET_SHARE, TARGET_GIB = 0.1, 0.4
PASSES = 4
"""Passes in one process; the first one is not counted."""


def compare(trace: TraceFile, rounds: int) -> list[str]:
    """Return the table's row for one trace. Raise RuntimeError if the hit rates differ."""
    note(f"kvcache-simulator and kvscope on {trace.name}")
    words = _peer_arguments(trace)
    peer = [str(Path(sys.executable).with_name("kvcache-simulator")), *words]
    points = measure(peer).document["points"]  # also compiles its C++ part
    capacities = [point["cacheBlocks"] for point in points]
    own = worker("lru", trace.path, "--capacities", ",".join(map(str, capacities)))
    theirs = [point["results"]["lru"]["hitRate"] for point in points]
    largest = _agree(capacities, measure(own).document["hit_rates"], theirs)
    runs = interleaved(
        {"kvcache-simulator": lambda: measure(peer), "kvscope": lambda: measure(own)}, rounds
    )
    kvscope, simulator = runs["kvscope"], runs["kvcache-simulator"]
    own_work = _seconds_per_pass([*own, "--passes", str(PASSES)])
    their_work = _seconds_per_pass(worker("kvcache_simulator", PASSES, *words))
    return [
        trace.name,
        str(len(capacities)),
        f"{largest:.0e}" if largest else "0",
        f"{median_of(simulator, wall_s):.2f}",
        f"{median_of(kvscope, wall_s):.2f}",
        f"{ratio(kvscope, simulator, wall_s):.1f}",
        f"{ratio(kvscope, simulator, cpu_s):.1f}",
        f"{their_work:.2f}",
        f"{own_work:.2f}",
        f"{their_work / own_work:.1f}",
        f"{median_of(simulator, peak_mib):.0f}",
        f"{median_of(kvscope, peak_mib):.0f}",
        f"{ratio(kvscope, simulator, peak_mib):.2f}",
    ]


def table(traces: list[TraceFile], rounds: int) -> Table:
    """Return a row per trace."""
    return Table(
        "kvcache-simulator, end to end",
        "LRU alone, from file to hit rates in a fresh process; target: a time ratio of at least"
        f" {TARGET_RATIO:g}. `work`: the same in a running process, first pass excluded.",
        (
            "trace",
            "capacities",
            "largest difference of hit rates",
            "kvcache-simulator s",
            "kvscope s",
            "time ratio",
            "CPU ratio",
            "kvcache-simulator work s",
            "kvscope work s",
            "work ratio",
            "kvcache-simulator MiB",
            "kvscope MiB",
            "memory ratio",
        ),
        [compare(trace, rounds) for trace in traces],
    )


def analysis_table(traces: list[TraceFile], rounds: int) -> Table:
    """Return a row for the whole analysis, for LRU in kvcache-simulator and for a parser alone."""
    return Table(
        "kvscope analyze, against kvcache-simulator's LRU",
        "Whole processes: from the file to a stored trace and all figures of `kvscope analyze`, and"
        " from the file to LRU's hit rates alone. `share`: of the peer's CPU time in the same"
        f" round; target: {TARGET_SHARE:g}, and {TARGET_GIB:g} GiB.",
        ("trace", "program", "CPU s", "share", "peak GiB"),
        [row for trace in traces for row in _analysis_rows(trace, rounds)],
    )


TABLES = {"peers": table, "analysis": analysis_table}
"""By the name of the part."""


def _analysis_rows(trace: TraceFile, rounds: int) -> Iterator[list[str]]:
    peer = [str(Path(sys.executable).with_name("kvcache-simulator")), *_peer_arguments(trace)]
    note(f"kvcache-simulator, kvscope analyze and msgspec on {trace.name}")
    measure(peer)  # also compiles its C++ part
    analyze(trace.path)
    runs = interleaved(
        {
            "kvcache-simulator, LRU at 12 capacities": lambda: measure(peer),
            "kvscope analyze": lambda: analyze(trace.path),
            "msgspec alone, every line decoded": lambda: measure(worker("parser", trace.path)),
        },
        rounds,
    )
    simulator = next(iter(runs.values()))
    for name, own in runs.items():
        cpu, peak = median_of(own, cpu_s), median_of(own, peak_mib) / 1024
        share = 1 / ratio(own, simulator, cpu_s)
        yield [trace.name, name, f"{cpu:.2f}", f"{share:.3f}", f"{peak:.2f}"]


def _peer_arguments(trace: TraceFile) -> list[str]:
    words = ["--trace", trace.path, "--block-size", trace.block_tokens, "--model", MODEL]
    return ["run", *map(str, words), "--policies", "lru", "--format", "json"]


def _seconds_per_pass(command: list[str]) -> float:
    """Return the median seconds of the passes after the first one."""
    seconds: list[float] = measure(command).document["passes_s"]
    return median(seconds[1:])


def _agree(capacities: list[int], ours: list[float], theirs: list[float]) -> float:
    """Return the largest difference of the hit rates; it must be one of rounding."""
    if not capacities:
        raise RuntimeError("kvcache-simulator filled no capacity: nothing to compare")
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    if max(differences) > TOLERANCE:
        rates = json.dumps(list(zip(capacities, ours, theirs, strict=True)))
        raise RuntimeError(f"hit rates differ (capacity, kvscope, kvcache-simulator): {rates}")
    return max(differences)

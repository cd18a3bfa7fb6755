"""kvscope against kvcache-simulator, end to end: the same file in, the same LRU hit rates out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

from benchmarks.measure import (
    cpu_s,
    interleaved,
    measure,
    middle,
    note,
    peak_mib,
    python,
    ratio,
    wall_s,
)
from benchmarks.table import Table
from benchmarks.traces import TraceFile

MODEL = "llama-3.1-8b"
"""Only sets how many blocks a GiB holds."""
AGREEMENT = 1e-12
AIM = 5.0
PASSES = 4
"""Of the work in one process; the first one is not counted."""


def compare(trace: TraceFile, rounds: int) -> list[list[str]]:
    """The rows of the table for one trace. Raises RuntimeError if the two disagree."""
    note(f"kvcache-simulator and kvscope on {trace.name}")
    words = _asked_of_peer(trace)
    peer = [str(Path(sys.executable).with_name("kvcache-simulator")), *words]
    points = measure(peer).answer["points"]  # also compiles its C++ part
    capacities = [point["cacheBlocks"] for point in points]
    own = python("work_lru", trace.path, "--capacities", ",".join(map(str, capacities)))
    theirs = [point["results"]["lru"]["hitRate"] for point in points]
    furthest = _agree(capacities, measure(own).answer["hit_rates"], theirs)
    runs = interleaved(
        {"kvcache-simulator": lambda: measure(peer), "kvscope": lambda: measure(own)}, rounds
    )
    kvscope, simulator = runs["kvscope"], runs["kvcache-simulator"]
    own_work = _work_alone([*own, "--passes", str(PASSES)])
    their_work = _work_alone(python("work_simulator", PASSES, *words))
    return [
        [
            trace.name,
            str(len(capacities)),
            f"{furthest:.0e}" if furthest else "0",
            f"{middle(simulator, wall_s):.2f}",
            f"{middle(kvscope, wall_s):.2f}",
            f"{ratio(kvscope, simulator, wall_s):.1f}",
            f"{ratio(kvscope, simulator, cpu_s):.1f}",
            f"{their_work:.2f}",
            f"{own_work:.2f}",
            f"{their_work / own_work:.1f}",
            f"{middle(simulator, peak_mib):.0f}",
            f"{middle(kvscope, peak_mib):.0f}",
            f"{ratio(kvscope, simulator, peak_mib):.2f}",
        ]
    ]


def table(traces: list[TraceFile], rounds: int) -> Table:
    """Everything about this peer."""
    return Table(
        "kvcache-simulator, end to end",
        "LRU alone, from file to hit rates in a fresh process; aim: a time ratio of at least"
        f" {AIM:g}. `work`: the same in a running process, first pass excluded.",
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
        [row for trace in traces for row in compare(trace, rounds)],
    )


def _asked_of_peer(trace: TraceFile) -> list[str]:
    words = ["--trace", trace.path, "--block-size", trace.block_tokens, "--model", MODEL]
    return ["run", *map(str, words), "--policies", "lru", "--format", "json"]


def _work_alone(command: list[str]) -> float:
    """Median seconds of the passes after the first one."""
    seconds: list[float] = measure(command).answer["passes_s"]
    return median(seconds[1:])


def _agree(capacities: list[int], ours: list[float], theirs: list[float]) -> float:
    """The largest difference, which has to be one of rounding."""
    if not capacities:
        raise RuntimeError("kvcache-simulator fills no capacity before its window; nothing to see")
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    if max(differences) > AGREEMENT:
        told = json.dumps(list(zip(capacities, ours, theirs, strict=True)))
        raise RuntimeError(f"hit rates differ (capacity, kvscope, kvcache-simulator): {told}")
    return max(differences)

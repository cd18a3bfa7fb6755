"""Every policy's replay, and libCacheSim's beside it where that has the policy."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.curve import prepared
from benchmarks.measure import interleaved, measure, note, python
from benchmarks.table import Table
from benchmarks.traces import TraceFile

SHARE = 0.1
"""Capacity as a share of the trace's blocks."""
EXACT = ("lru", "fifo", "lfu", "belady")
"""Where both follow the same definition to the letter; the others differ in details."""
AGREEMENT = 1e-12
AIMS_M_PER_S = {"lru": 100, "fifo": 250, "s3fifo": 100, "belady": 90, "tlru": 60, "wa": 40}
LEAST_AIM_M_PER_S = 20
AIMS_RATIO = {"lru": 5, "s3fifo": 10, "belady": 10}


def table(trace: TraceFile, folder: Path, rounds: int) -> Table:
    """Rows of all policies. Raises RuntimeError where equal definitions give unequal hits."""
    note(f"replays on {trace.name}")
    store, accesses = prepared(trace, folder)
    own = python("work_replays", store, SHARE)
    first = measure(own).answer
    blocks, capacity = first["blocks"], first["capacity_blocks"]
    peer = python("work_libcachesim", accesses, capacity, blocks, *first["flat"])
    _agree(first["flat"], measure(peer).answer)
    runs = interleaved(
        {"libCacheSim": lambda: measure(peer), "kvscope": lambda: measure(own)}, rounds
    )
    ours = [run.answer for run in runs["kvscope"]]
    theirs = [run.answer for run in runs["libCacheSim"]]
    rows = [_row(name, ours, theirs) for name in first["prefix"]]
    shared = median(run["history_cpu_s"] for run in ours)
    return Table(
        f"Replays of {trace.name} at {capacity:,} blocks",
        f"One core, in memory. Prefixes: {first['accesses']:,} block accesses, outputs included,"
        f" after {shared:.3f} s that all replays of a trace share. Flat:"
        f" {first['flat_accesses']:,} accesses one by one, as libCacheSim does; hits are checked to"
        f" be equal for {', '.join(EXACT)}.",
        (
            "policy",
            "prefix ms",
            "prefix M/s",
            "aim M/s",
            "flat M/s",
            "libCacheSim M/s",
            "ratio, flat",
            "ratio, prefix",
            "aim",
        ),
        rows,
    )


def _agree(ours: Any, theirs: Any) -> None:
    for name in EXACT:
        if abs(ours[name]["hit_rate"] - theirs[name]["hit_rate"]) > AGREEMENT:
            raise RuntimeError(f"{name}: kvscope {ours[name]}, libCacheSim {theirs[name]}")


def _row(name: str, ours: list[Any], theirs: list[Any]) -> list[str]:
    count, flat_count = ours[0]["accesses"], ours[0]["flat_accesses"]
    seconds = [run["prefix"][name]["cpu_s"] for run in ours]
    speed = count / median(seconds) / 1e6
    aim = AIMS_M_PER_S.get(name, LEAST_AIM_M_PER_S)
    own = [name, f"{median(seconds) * 1e3:.0f}", f"{speed:.0f}", str(aim)]
    if name not in theirs[0]:
        return [*own, "", "", "", "", ""]
    flat = [run["flat"][name]["cpu_s"] for run in ours]
    peer = [run[name]["cpu_s"] for run in theirs]
    like = median(p / f for f, p in zip(flat, peer, strict=True))
    per_access = median((p / flat_count) / (s / count) for s, p in zip(seconds, peer, strict=True))
    return [
        *own,
        f"{flat_count / median(flat) / 1e6:.0f}",
        f"{flat_count / median(peer) / 1e6:.1f}",
        f"{like:.1f}",
        f"{per_access:.1f}",
        str(AIMS_RATIO.get(name, "")),
    ]

"""Measure the replay of every policy, and of the peers that have the policy."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lru_curve import converted
from benchmarks.processes import interleaved, measure, note, worker
from benchmarks.table import Table
from benchmarks.traces import TraceFile

SHARE = 0.1
"""Capacity as a share of the trace's blocks."""
EXACT = ("lru", "fifo", "lfu", "belady")
"""Policies of one definition on both sides; the others differ in details."""
TOLERANCE = 1e-12
TARGETS_M_PER_S = {"lru": 100, "fifo": 250, "s3fifo": 100, "belady": 90, "tlru": 60, "wa": 40}
LEAST_TARGET_M_PER_S = 20
TARGET_RATIOS = {"lru": 5, "s3fifo": 10, "belady": 10}


def tables(trace: TraceFile, folder: Path, rounds: int) -> list[Table]:
    """Return one table per peer. Raise RuntimeError if equal definitions give unequal hits."""
    note(f"replays on {trace.name}")
    store, accesses = converted(trace, folder)
    setting = measure(worker("replays", store, SHARE, "--describe")).document
    blocks, capacity = setting["blocks"], setting["capacity_blocks"]
    runs = interleaved(
        {
            "libCacheSim": lambda: measure(
                worker("libcachesim", accesses, capacity, blocks, *setting["flat"])
            ),
            "kvcache-simulator": lambda: measure(
                worker("kvcache_simulator_core", trace.path, trace.block_tokens, capacity)
            ),
            "kvscope": lambda: measure(worker("replays", store, SHARE)),
        },
        rounds,
    )
    ours, theirs, simulator = (
        [run.document for run in runs[name]]
        for name in ("kvscope", "libCacheSim", "kvcache-simulator")
    )
    _check_rates(ours[0]["flat"], theirs[0])
    _check_tokens(ours[0]["simulator"], simulator[0])
    return [
        _policies(trace, ours, theirs, capacity),
        _simulator(trace, ours, simulator, capacity),
    ]


def _policies(trace: TraceFile, ours: list[Any], theirs: list[Any], capacity: int) -> Table:
    shared = median(run["history_cpu_s"] for run in ours)
    return Table(
        f"Replays of {trace.name} at {capacity:,} blocks",
        f"One core, in memory. Prefixes: {ours[0]['accesses']:,} block accesses, outputs included;"
        f" {shared:.3f} s of preparation, shared by all replays, excluded. Flat:"
        f" {ours[0]['flat_accesses']:,} accesses block by block, as libCacheSim; hits are equal for"
        f" {', '.join(EXACT)}.",
        (
            "policy",
            "prefix ms",
            "prefix M/s",
            "target M/s",
            "flat M/s",
            "libCacheSim M/s",
            "ratio, flat",
            "ratio, prefix",
            "target",
        ),
        [_row(name, ours, theirs) for name in ours[0]["prefix"]],
    )


def _simulator(trace: TraceFile, ours: list[Any], theirs: list[Any], capacity: int) -> Table:
    rows = []
    for name in theirs[0]:
        own = [run["simulator"][name]["cpu_s"] for run in ours]
        peer = [run[name]["cpu_s"] for run in theirs]
        ratio = median(p / o for o, p in zip(own, peer, strict=True))
        checked = "yes" if theirs[0][name]["hit_tokens"] is not None else "never full"
        rows.append(
            [name, f"{median(own) * 1e3:.0f}", f"{median(peer) * 1e3:.0f}", f"{ratio:.1f}", checked]
        )
    return Table(
        f"kvcache-simulator's C++ core, replays of {trace.name} at {capacity:,} blocks",
        "One core; reading the trace and shared preparation are excluded on both sides.",
        ("policy", "kvscope ms", "kvcache-simulator ms", "ratio", "equal hits"),
        rows,
    )


def _check_rates(ours: Any, theirs: Any) -> None:
    for name in EXACT:
        if abs(ours[name]["hit_rate"] - theirs[name]["hit_rate"]) > TOLERANCE:
            raise RuntimeError(f"{name}: kvscope {ours[name]}, libCacheSim {theirs[name]}")


def _check_tokens(ours: Any, theirs: Any) -> None:
    for name, peer in theirs.items():
        if peer["hit_tokens"] not in (None, ours[name]["hit_tokens"]):
            raise RuntimeError(f"{name}: kvscope {ours[name]}, kvcache-simulator {peer}")


def _row(name: str, ours: list[Any], theirs: list[Any]) -> list[str]:
    count, flat_count = ours[0]["accesses"], ours[0]["flat_accesses"]
    seconds = [run["prefix"][name]["cpu_s"] for run in ours]
    speed = count / median(seconds) / 1e6
    target = TARGETS_M_PER_S.get(name, LEAST_TARGET_M_PER_S)
    own = [name, f"{median(seconds) * 1e3:.0f}", f"{speed:.0f}", str(target)]
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
        str(TARGET_RATIOS.get(name, "")),
    ]

"""LRU's exact curve against libCacheSim's LRU at one capacity, on the same accesses."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.measure import interleaved, measure, note, python
from benchmarks.table import Table
from benchmarks.traces import TraceFile
from kvscope.store.db import migrations

CAPACITY_BLOCKS = 50_000
AIM = 5.0
AIM_PER_S = 100e6
AGREEMENT = 1e-12


def prepared(trace: TraceFile, folder: Path) -> tuple[Path, Path]:
    """The trace as a kvscope store, and its accesses in libCacheSim's format."""
    name = trace.path.name.split(".", maxsplit=1)[0]
    newest, _ = migrations()[-1]
    kept = folder / f"schema-{newest}"  # a store of an older one cannot be read
    store, accesses = kept / f"{name}.duckdb", kept / f"{name}.oracleGeneral"
    if not accesses.exists():
        kept.mkdir(parents=True, exist_ok=True)
        measure(python("work_accesses", trace.path, kept))
    return store, accesses


def table(trace: TraceFile, folder: Path, rounds: int) -> Table:
    """Everything about this peer. Raises RuntimeError if the two disagree."""
    note(f"libCacheSim and kvscope's curve on {trace.name}")
    store, accesses = prepared(trace, folder)
    own = python("work_curve", store, CAPACITY_BLOCKS)
    peer = python("work_libcachesim", accesses, CAPACITY_BLOCKS, CAPACITY_BLOCKS, "lru")
    ours, theirs = measure(own).answer["flat_hit_rate"], measure(peer).answer["lru"]["hit_rate"]
    if abs(ours - theirs) > AGREEMENT:
        raise RuntimeError(f"hit rates differ: kvscope {ours}, libCacheSim {theirs}")
    runs = interleaved(
        {"libCacheSim": lambda: measure(peer), "kvscope": lambda: measure(own)}, rounds
    )
    told = [run.answer for run in runs["kvscope"]]
    replays = [run.answer["lru"]["cpu_s"] for run in runs["libCacheSim"]]
    count = told[0]["accesses"]
    return Table(
        "libCacheSim, LRU on the same accesses",
        f"One thread, in memory, files already read; both hit {ours:.4%} of the blocks at"
        f" {CAPACITY_BLOCKS:,} blocks, block by block. Aims: {AIM_PER_S / 1e6:g} M accesses/s"
        f" for the curve, a ratio of at least {AIM:g}.",
        ("what", "CPU s", "M accesses/s", "ratio to libCacheSim"),
        [
            _row("libCacheSim's LRU, one capacity", replays, replays, count),
            _row(
                "kvscope's curve, every capacity", [x["curve_cpu_s"] for x in told], replays, count
            ),
            _row("of which stack distances", [x["distances_cpu_s"] for x in told], replays, count),
        ],
    )


def _row(what: str, seconds: list[float], peer: list[float], accesses: int) -> list[str]:
    times = median(theirs / ours for ours, theirs in zip(seconds, peer, strict=True))
    took = median(seconds)
    return [what, f"{took:.3f}", f"{accesses / took / 1e6:.1f}", f"{times:.1f}"]

"""Measure LRU's exact curve against libCacheSim's LRU at one capacity, on the same accesses."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.processes import interleaved, measure, note, worker
from benchmarks.table import Table
from benchmarks.traces import TraceFile
from kvscope.store.db import migrations

CAPACITY_BLOCKS = 50_000
TARGET_RATIO = 5.0
TARGET_PER_S = 100e6
TOLERANCE = 1e-12


def converted(trace: TraceFile, folder: Path) -> tuple[Path, Path]:
    """Return the trace as a kvscope store and its accesses in libCacheSim's format, made once."""
    name = trace.path.name.split(".", maxsplit=1)[0]
    newest, _ = migrations()[-1]
    schema_folder = folder / f"schema-{newest}"  # a store with an older schema cannot be read
    store, accesses = schema_folder / f"{name}.duckdb", schema_folder / f"{name}.oracleGeneral"
    if not accesses.exists():
        schema_folder.mkdir(parents=True, exist_ok=True)
        measure(worker("convert", trace.path, schema_folder))
    return store, accesses


def table(trace: TraceFile, folder: Path, rounds: int) -> Table:
    """Return the comparison. Raise RuntimeError if the hit rates differ."""
    note(f"libCacheSim and kvscope's curve on {trace.name}")
    store, accesses = converted(trace, folder)
    own = worker("curve", store, CAPACITY_BLOCKS)
    peer = worker("libcachesim", accesses, CAPACITY_BLOCKS, CAPACITY_BLOCKS, "lru")
    ours = measure(own).document["flat_hit_rate"]
    theirs = measure(peer).document["lru"]["hit_rate"]
    if abs(ours - theirs) > TOLERANCE:
        raise RuntimeError(f"hit rates differ: kvscope {ours}, libCacheSim {theirs}")
    runs = interleaved(
        {"libCacheSim": lambda: measure(peer), "kvscope": lambda: measure(own)}, rounds
    )
    documents = [run.document for run in runs["kvscope"]]
    peer_s = [run.document["lru"]["cpu_s"] for run in runs["libCacheSim"]]
    curve_s = [document["curve_cpu_s"] for document in documents]
    distances_s = [document["distances_cpu_s"] for document in documents]
    count = documents[0]["accesses"]
    return Table(
        "libCacheSim, LRU on the same accesses",
        f"One thread, in memory, files already read; both hit {ours:.4%} of the blocks at"
        f" {CAPACITY_BLOCKS:,} blocks, block by block. Targets: {TARGET_PER_S / 1e6:g} M"
        f" accesses/s for the curve, a ratio of at least {TARGET_RATIO:g}.",
        ("what", "CPU s", "M accesses/s", "ratio to libCacheSim"),
        [
            _row("libCacheSim's LRU, one capacity", peer_s, peer_s, count),
            _row("kvscope's curve, every capacity", curve_s, peer_s, count),
            _row("of which stack distances", distances_s, peer_s, count),
        ],
    )


def _row(what: str, seconds: list[float], peer_s: list[float], accesses: int) -> list[str]:
    ratio = median(theirs / ours for ours, theirs in zip(seconds, peer_s, strict=True))
    cpu_s = median(seconds)
    return [what, f"{cpu_s:.3f}", f"{accesses / cpu_s / 1e6:.1f}", f"{ratio:.1f}"]

"""Measure the fits of learned tables: they grow with requests, not with the time between them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.lru_curve import converted
from benchmarks.processes import interleaved, measure, note, worker
from benchmarks.table import Table
from benchmarks.traces import TraceFile

POLICIES = ("wa", "etlru", "gittins")
LIMITS = {("week", "gittins"): (0.5, 30)}
"""CPU s, and MB above what the process had."""
COLUMNS = (
    "trace",
    "policy",
    "requests",
    "hours",
    "tables",
    "CPU s",
    "limit",
    "LRU replay, CPU s",
    "ratio",
    "peak MB",
    "limit",
)


def table(traces: list[TraceFile], folder: Path, rounds: int) -> Table:
    """Return CPU time and memory of every learner's fit to the traces."""
    rows = []
    for trace in traces:
        note(f"fits to {trace.name}")
        store, _ = converted(trace, folder)
        fits = {name: partial(measure, worker("fits", store, name)) for name in POLICIES}
        runs = interleaved(fits, rounds)
        for name in POLICIES:
            rows.append(_row(trace, name, [run.document for run in runs[name]]))
    return Table(
        "Fits of learned tables",
        "All tables of a replay, one for each interval with requests; guards choose later, by"
        " replays. One core; kernels compiled and the trace loaded before. Memory: the fit's peak"
        " above the process's peak before it.",
        COLUMNS,
        rows,
    )


def _row(trace: TraceFile, policy: str, documents: list[dict[str, float]]) -> list[str]:
    first = documents[0]
    limit_s, limit_mb = LIMITS.get((trace.name, policy), ("", ""))
    cpu_s, lru_s = (median(each[name] for each in documents) for name in ("cpu_s", "lru_cpu_s"))
    ratio = median(each["cpu_s"] / each["lru_cpu_s"] for each in documents)
    peak_mb = median(each["peak_bytes"] for each in documents) / 1e6
    return [
        trace.name,
        policy,
        f"{first['requests']:,}",
        f"{first['span_s'] / 3600:.1f}",
        f"{first['tables']:,}",
        f"{cpu_s:.3f}",
        str(limit_s),
        f"{lru_s:.4f}",
        f"{ratio:.1f}",
        f"{peak_mb:.1f}",
        str(limit_mb),
    ]

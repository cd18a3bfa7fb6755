"""Measure how the cost of a replay grows with the trace."""

from __future__ import annotations

from statistics import median

from benchmarks.processes import interleaved, measure, note, worker
from benchmarks.table import Table

POLICIES = ["lru", "fifo", "s3fifo", "tlru", "lfu", "belady"]


def table(largest: int, rounds: int) -> Table:
    """Return nanoseconds per access, from 100,000 accesses to `largest`."""
    note(f"replays of up to {largest:,} accesses")
    runs = interleaved({"scaling": lambda: measure(worker("scaling", largest, *POLICIES))}, rounds)[
        "scaling"
    ]
    peak_gib = max(run.peak_bytes for run in runs) / 2**30
    documents = [run.document for run in runs]
    rows = []
    for at, size in enumerate(documents[0]):
        accesses = size["accesses"]
        costs = [median(sizes[at]["cpu_s"][name] for sizes in documents) for name in POLICIES]
        shared = median(sizes[at]["shared_s"] for sizes in documents)
        rows.append([f"{accesses:,}", *(f"{x / accesses * 1e9:.1f}" for x in (shared, *costs))])
    return Table(
        "Nanoseconds per access, by size",
        f"Generated chats at a tenth of their blocks, one core; {peak_gib:.1f} GiB at most.",
        ("accesses", "shared by all", *POLICIES),
        rows,
    )

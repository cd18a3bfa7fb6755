"""What a sweep takes, what the second core and a warm start give it, and how replays grow."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.curve import prepared
from benchmarks.measure import interleaved, measure, middle, note, python, wall_s
from benchmarks.table import Table
from benchmarks.traces import TraceFile

SWEPT = ["lru", "fifo", "lfu", "s3fifo", "sieve", "slru", "tlru", "wa", "belady", "tail-belady"]
POINTS = 20
GROWING = ["lru", "fifo", "s3fifo", "tlru", "lfu", "belady"]
AIM_SWEEP_S, AIM_START_S, AIM_EFFICIENCY = 30.0, 1.0, 0.85


def limits(trace: TraceFile, folder: Path, rounds: int) -> Table:
    """A sweep of ten policies, its use of two cores, and the start of a process."""
    note(f"sweep on {trace.name}")
    store, _ = prepared(trace, folder)
    starts = {name: python("work_start", *which) for name, which in _STARTS.items()}
    for start in starts.values():  # compile whatever is not compiled
        measure(start)
    runs = interleaved(
        {name: lambda start=start: measure(start) for name, start in starts.items()}
        | {"sweep": lambda: measure(python("work_sweep", store, POINTS, *SWEPT))},
        rounds,
    )
    told = [run.answer for run in runs["sweep"]]
    gain = median(one["one_core_s"] / one["two_cores_s"] for one in told)
    spin = median(2 * one["spin_s"] / one["two_spins_s"] for one in told)
    share = median(
        one["one_core_s"] / one["two_cores_s"] * one["two_spins_s"] / (2 * one["spin_s"])
        for one in told
    )
    sweep_s = median(one["whole_s"] for one in told)
    return Table(
        f"A sweep over {trace.name}, and process start",
        f"{len(SWEPT)} policies at {POINTS} capacities, {told[0]['runs']} runs with complete"
        " results; two cores against one on every fourth capacity, beside a spin loop in the same"
        " process. Starts are whole processes with compiled kernels.",
        ("what", "measured", "aim"),
        [
            ["sweep on two cores, s", f"{sweep_s:.1f}", f"{AIM_SWEEP_S:g}"],
            ["second core's gain", f"{gain:.2f}", ""],
            ["a spin loop's gain", f"{spin:.2f}", ""],
            ["of what a spin loop gains", f"{share:.2f}", f"{AIM_EFFICIENCY:g}"],
            *(
                [f"start, {name}, s", f"{middle(runs[name], wall_s):.2f}", f"{AIM_START_S:g}"]
                for name in starts
            ),
        ],
    )


_STARTS = {"one policy": ["lru"], "all ten": SWEPT}


def growth(largest: int, rounds: int) -> Table:
    """Cost an access from 100,000 accesses to `largest`."""
    note(f"replays of up to {largest:,} accesses")
    runs = interleaved(
        {"growth": lambda: measure(python("work_growth", largest, *GROWING))}, rounds
    )["growth"]
    peak = max(run.peak_bytes for run in runs)
    told = [run.answer for run in runs]
    rows = []
    for at, size in enumerate(told[0]):
        count = size["accesses"]
        costs = [median(one[at]["cpu_s"][name] for one in told) for name in GROWING]
        shared = median(one[at]["shared_s"] for one in told)
        rows.append([f"{count:,}", *(f"{x / count * 1e9:.1f}" for x in (shared, *costs))])
    return Table(
        "Nanoseconds an access, by size",
        f"Generated chats at a tenth of their blocks, one core; {peak / 2**30:.1f} GiB at most.",
        ("accesses", "shared by all", *GROWING),
        rows,
    )

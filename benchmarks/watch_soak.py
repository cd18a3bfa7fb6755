"""Feed `kvscope watch` generated requests for long, in this process, and print its memory.

Memory is resident memory after each replay of the window; the growth is that of the last half.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import msgspec

from benchmarks import ROOT
from benchmarks.generate import records
from benchmarks.table import Table, record
from kvscope.app.watch import Watch, WatchOptions, WatchRequest, measure

PAGE = ROOT / "docs" / "evidence" / "recording.md"
MIB = 1 << 20


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--accesses", type=int, default=4_000_000)
    parser.add_argument("--window", type=int, default=10_000)
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    table = soak(options.accesses, options.window)
    print(table.markdown())
    if options.record:
        record(PAGE, table.markdown(), "watch-soak")


def soak(accesses: int, window: int) -> Table:
    """Return requests, accesses and resident memory at each tenth of the accesses."""
    request = WatchRequest(WatchOptions(window_requests=window, every=0.0, capacity_blocks=20_000))
    watch, rows = Watch(request), list[list[str]]()
    memory_mib: list[float] = []
    done = 0
    began_s = time.process_time()
    requests = records(accesses // 20, seed=1)  # more than enough
    while chunk := list(itertools.islice(requests, max(window // 2, 1))):
        watch.add(map(msgspec.json.encode, chunk))
        done += sum(len(each["hash_ids"]) for each in chunk)
        measure(watch.window, request)
        memory_mib.append(_resident_mib())
        if done >= accesses * (len(rows) + 1) / 10:
            spent_s = time.process_time() - began_s
            rows.append(
                [f"{watch.requests:,}", f"{done:,}", f"{spent_s:.0f}", f"{memory_mib[-1]:.0f}"]
            )
        if done >= accesses:
            break
    half = memory_mib[len(memory_mib) // 2 :]
    description = (
        f"`python -m benchmarks.watch_soak --accesses {accesses} --window {window}`: the window"
        f" is replayed after every {window // 2:,} requests, {len(memory_mib)} times. In the later"
        f" half resident memory was between {min(half):.0f} and {max(half):.0f} MiB."
    )
    columns = ("requests", "accesses", "CPU s", "resident MiB")
    return Table("Memory over millions of accesses", description, columns, rows)


def _resident_mib() -> float:
    """Return this process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MIB


if __name__ == "__main__":
    main()

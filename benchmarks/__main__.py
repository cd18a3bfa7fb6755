"""`python -m benchmarks`: everything that is measured, as markdown tables on stdout."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
from importlib.metadata import version
from pathlib import Path

from benchmarks import ROOT, curve, dashboard, end_to_end, peers, replays, scaling, traces
from benchmarks.table import Table, record

EVIDENCE = ROOT / "docs" / "evidence"
PAGE = EVIDENCE / "benchmarks.md"
PARTS = ("end-to-end", "peers", "curve", "replays", "scaling", "dashboard")
PAGES = {"dashboard": EVIDENCE / "dashboard.md"}  # parts that have a page of their own
PACKAGES = ("kvscope", "duckdb", "polars", "numpy", "numba", "kvcache-simulator", "libcachesim")


def main() -> None:
    """The command line: each part is printed, and recorded if so wished, as soon as it is done."""
    told = _parser().parse_args()
    for part in told.only or PARTS:
        tables = "\n".join(table.markdown() for table in _measured(part, told))
        words = f"{_circumstances(part, told)}\n\n{tables}"
        print(words, flush=True)
        if told.record:
            record(PAGES.get(part, PAGE), words, part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part (repeat for more; default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, interleaved")
    parser.add_argument(
        "--t63", action="store_true", help="also the trace ten times as long (0.9 GB of disk)"
    )
    parser.add_argument(
        "--largest", type=int, default=10**7, help="accesses that replays grow to (10^8: 7 GB)"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "benchmarks", help="keeps generated traces"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="also write the tables into docs/evidence/",
    )
    return parser


def _measured(part: str, told: argparse.Namespace) -> list[Table]:
    folder = told.folder.resolve()
    t6 = traces.t6(folder)
    if part == "dashboard":
        return dashboard.tables([traces.t03(folder), t6], told.rounds)
    if part == "peers":
        return [peers.table([traces.published(folder), t6], told.rounds)]
    if part == "curve":
        return [curve.table(t6, folder, told.rounds)]
    if part == "replays":
        named = traces.published(folder)
        beside = [replays.tables(one, folder, told.rounds) for one in (named, t6)]
        return [table for both in beside for table in both]
    if part == "scaling":
        return [
            scaling.limits(t6, folder, told.rounds),
            scaling.growth(told.largest, told.rounds),
        ]
    large = [traces.t63(folder)] if told.t63 else []
    return end_to_end.tables([t6, *large], told.rounds)


def _circumstances(part: str, told: argparse.Namespace) -> str:
    """When, where, with what and how: without these a figure says nothing."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    asked = ["--t63"] * (told.t63 and part == "end-to-end")
    if part == "scaling":
        asked.append(f"--largest {told.largest}")
    command = " ".join([f"python -m benchmarks --only {part}", *asked, f"--rounds {told.rounds}"])
    day = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    machine = f"{_cores()} cores of {_processor()}, {platform.system()}"
    python = f"Python {platform.python_version()}"
    lines = (
        f"{day}, {machine}, {python}; medians of {told.rounds} interleaved rounds.",
        f"{packages}.",
        f"`{command}`",
    )
    return "  \n".join(lines)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


if __name__ == "__main__":
    main()

"""Measure kvscope's speed and memory and print markdown tables: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
from importlib.metadata import version
from pathlib import Path

from benchmarks import (
    ROOT,
    analyze,
    dashboard,
    datasets,
    fits,
    hashing,
    lru_curve,
    peers,
    replays,
    sampling,
    start,
    traces,
    versions,
)
from benchmarks.table import Table, record

EVIDENCE = ROOT / "docs" / "evidence"
PAGE = EVIDENCE / "benchmarks.md"
PARTS = (
    "analyze",
    "start",
    "peers",
    "analysis",
    "curve",
    "replays",
    "fits",
    "dashboard",
    "hash",
    "datasets",
    "sampling",
)
VERSIONS = "versions"  # needs --before
PAGES = {
    "dashboard": EVIDENCE / "dashboard.md",
    "sampling": EVIDENCE / "sampling.md",
}
"""Parts with a page of their own."""
ONCE = {"datasets", "sampling"}
"""Parts that run each thing once: no rounds."""
PACKAGES = ("kvscope", "duckdb", "polars", "numpy", "numba", "kvcache-simulator", "libcachesim")


def main() -> None:
    """Run the command line: print every part, and record it with --record, as soon as it ends."""
    options = _parser().parse_args()
    for part in options.only or PARTS:
        tables = "\n".join(table.markdown() for table in _tables(part, options))
        text = f"{_circumstances(part, options)}\n\n{tables}"
        print(text, flush=True)
        if options.record:
            record(PAGES.get(part, PAGE), text, part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=(*PARTS, VERSIONS),
        help="one part (repeat for more; default: all)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, interleaved")
    parser.add_argument(
        "--t63", action="store_true", help="analyze also a trace ten times as long (0.9 GB of disk)"
    )
    parser.add_argument(
        "--before", type=Path, help="root of another checkout, for the parts start and versions"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="model's folder, for the part hash",
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "benchmarks", help="for generated traces"
    )
    parser.add_argument(
        "--record", action="store_true", help="also write the tables into docs/evidence/"
    )
    return parser


def _tables(part: str, options: argparse.Namespace) -> list[Table]:
    """Measure a part."""
    folder, rounds = options.folder.resolve(), options.rounds
    match part:
        case "start":
            tables = [start.table(rounds, options.before)]
        case "versions":
            if options.before is None:
                raise SystemExit("python -m benchmarks: the part versions needs --before CHECKOUT")
            measured = [traces.published(folder), traces.t6(folder)]
            tables = [versions.table(measured, options.before.resolve(), rounds)]
        case "curve":
            tables = [lru_curve.table(traces.t6(folder), folder, rounds)]
        case "fits":
            tables = [fits.table([traces.week(folder), traces.t6(folder)], folder, rounds)]
        case "hash":
            tables = [hashing.table(options.tokenizer, rounds)]
        case "datasets":
            large = [traces.t63(folder)] if options.t63 else []
            tables = [datasets.table([traces.t6(folder), *large], folder)]
        case "sampling":
            tables = [sampling.table([*traces.real(folder), traces.t6(folder)])]
        case "dashboard":
            tables = dashboard.tables([traces.t03(folder), traces.t6(folder)], rounds)
        case "peers" | "analysis":
            small = [traces.published(folder)] if part == "peers" else []
            tables = [peers.TABLES[part]([*small, traces.t6(folder)], rounds)]
        case "replays":
            both = (traces.published(folder), traces.t6(folder))
            tables = [table for trace in both for table in replays.tables(trace, folder, rounds)]
        case _:
            large = [traces.t63(folder)] if options.t63 else []
            tables = [analyze.table([traces.t6(folder), *large], rounds)]
    return tables


def _circumstances(part: str, options: argparse.Namespace) -> str:
    """Return date, machine, versions and command: without these a figure says nothing."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    words = ["--t63"] * (options.t63 and part in {"analyze", "datasets"})
    words += [f"--rounds {options.rounds}"] * (part not in ONCE)
    command = " ".join([f"python -m benchmarks --only {part}", *words])
    day = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    machine = f"{_cores()} cores of {_processor()}, {platform.system()}"
    python = f"Python {platform.python_version()}"
    lines = (
        f"{day}, {machine}, {python}"
        + ("." if part in ONCE else f"; medians of {options.rounds} interleaved rounds."),
        f"{packages}.",
        f"`{command}`",
    )
    return "  \n".join(lines)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()

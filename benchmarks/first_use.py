"""Measure the first use of each command on a machine, when no kernel is compiled, and the next one.

`python -m benchmarks.first_use [--before CHECKOUT]` prints CPU seconds and peak memory of whole
processes, each command with an empty cache of kernels and then with the one that it filled.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.processes import ProcessRun, measure, note
from benchmarks.table import Table

SAMPLE = ROOT / "sample_traces" / "to-c.jsonl.gz"
_DEPLOYMENT = ["--gpu", "h100", "--model", "llama3-8b"]
_HYBRID = ["--gpu", "h100", "--model", "gpt-oss-20b"]
_BYTES = ["--model", "qwen2-7b", "--capacity", "20GiB"]
_TIERS = ["--model", "qwen2-7b", "--tiers", "hbm=20GiB,dram=40GiB"]
COMMANDS = {
    "analyze": ["analyze", "to-c"],
    "explain": ["explain", "to-c", "--capacity-blocks", "20000"],
    "simulate, 4 policies": ["simulate", "to-c", "--points", "4"],
    "simulate, engine": [
        *["simulate", "to-c", *_BYTES, "--capacity-model", "engine"],
        *["--policy", "lru,tlru"],
    ],
    "simulate, engine's CPU tier": ["simulate", "to-c", *_TIERS],
    "tune": ["tune", "to-c", "--slo", "200ms", "--view", "unloaded"],
    "tune of a deployment": ["tune", "to-c", "--slo", "350ms", *_DEPLOYMENT],
    "tune --compare-tiers": ["tune", "to-c", "--slo", "350ms", *_DEPLOYMENT, "--compare-tiers"],
    "fleet, queues": ["fleet", "to-c", "--slo", "400ms", *_DEPLOYMENT, "--time-model", "queue"],
    "fleet": ["fleet", "to-c", "--slo", "400ms", *_DEPLOYMENT],
    "simulate, SGLang": ["simulate", "to-c", *_DEPLOYMENT, "--engine", "sglang"],
    "simulate, hybrid model": ["simulate", "to-c", *_HYBRID],
    "fleet, hybrid model": ["fleet", "to-c", "--slo", "400ms", *_HYBRID],
}


def table(trees: dict[str, Path], commands: list[str]) -> Table:
    """Return the figures of each command in each checkout."""
    rows = []
    with TemporaryDirectory() as folder:
        for tree, root in trees.items():
            _kvscope(["ingest", str(SAMPLE)], root, Path(folder) / tree)
        for name in commands:
            row = [name]
            for tree, root in trees.items():
                note(f"  {name}: {tree}")
                first, again = _both(COMMANDS[name], root, Path(folder) / tree)
                row += [
                    f"{first.cpu_s:.1f}",
                    f"{again.cpu_s:.1f}",
                    f"{max(first.peak_bytes, again.peak_bytes) / 2**20:.0f}",
                ]
            rows.append(row)
    units = ("first, CPU s", "again, CPU s", "peak MiB")
    columns = [f"{tree}: {unit}" for tree in trees for unit in units]
    return Table(
        "First use of commands, no kernel compiled",
        "Whole processes; the trace (sample `to-c`, 2,000 requests) is stored.",
        ("command", *columns),
        rows,
    )


def _both(words: list[str], root: Path, folder: Path) -> tuple[ProcessRun, ProcessRun]:
    """Run a command with an empty cache of kernels, and again."""
    with TemporaryDirectory() as cache:
        os.environ["KVSCOPE_CACHE_DIR"] = cache
        return _kvscope(words, root, folder), _kvscope(words, root, folder)


def _kvscope(words: list[str], root: Path, folder: Path) -> ProcessRun:
    folder.mkdir(exist_ok=True)
    os.environ["PYTHONPATH"] = str(root)
    store = ["--db", str(folder / "traces.duckdb")]
    return measure([sys.executable, "-m", "kvscope", *words, *store], folder, exit_codes=(0,))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="root of another checkout to compare with")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    trees = {"before": options.before} if options.before else {}
    print(table(trees | {"now": ROOT}, options.only).markdown())


if __name__ == "__main__":
    main()

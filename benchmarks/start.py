"""Measure how quickly short commands answer, alone or against another checkout of kvscope."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.processes import ProcessRun, cpu_s, interleaved, measure, median_of, wall_s
from benchmarks.table import Table

TARGETS_CPU_S = {"--help": 0.2, "wrong option": 0.4, "wrong trace": 0.4, "stored trace": 1.0}
SAMPLE = ROOT / "sample_traces" / "to-c.jsonl.gz"


def table(rounds: int, before: Path | None) -> Table:
    """Return medians of whole processes, kernels compiled; `before` is the root of a checkout."""
    trees = {"now": ROOT} | ({"before": before} if before else {})
    with TemporaryDirectory() as folder:
        contenders = {}
        for tree, root in trees.items():
            store = str(Path(folder) / f"{tree}.duckdb")
            commands = {
                "--help": ["--help"],
                "wrong option": ["analyze", "to-c", "--capasity", "1GiB"],
                "wrong trace": ["analyze", "to-d", "--db", store],
                "stored trace": ["analyze", "to-c", "--db", store],
            }
            _kvscope(["analyze", str(SAMPLE), "--db", store], root)
            for name, words in commands.items():
                contenders[f"{name}: {tree}"] = partial(_kvscope, words, root)
        runs = interleaved(contenders, rounds)
    columns = [f"{tree}: {unit}" for tree in trees for unit in ("CPU s", "s")]
    rows = []
    for name, target in TARGETS_CPU_S.items():
        row = [f"kvscope {name}" if name == "--help" else name, f"{target:g}"]
        for tree in trees:
            same = runs[f"{name}: {tree}"]
            row += [f"{median_of(same, cpu_s):.2f}", f"{median_of(same, wall_s):.2f}"]
        rows.append(row)
    return Table(
        "How quickly a command answers",
        "Whole processes of `kvscope analyze`, kernels compiled; the stored trace has 2,000"
        " requests (sample `to-c`).",
        ("command", "target, CPU s", *columns),
        rows,
    )


def _kvscope(words: list[str], root: Path) -> ProcessRun:
    return measure([sys.executable, "-m", "kvscope", *words], root, exit_codes=(0, 2, 3))

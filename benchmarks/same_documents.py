"""Compare the JSON documents of two source trees of kvscope, field by field.

    git worktree add /tmp/before REVISION
    python -m benchmarks.same_documents --before /tmp/before [--quick] [TRACE ...]

Every command runs as a whole process, once from each tree, in a folder and with a store of its own.
A difference that is meant belongs in EXPECTED, with its reason; any other makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT

MODEL = ("--model", "qwen2-7b")
SAMPLES = ("birth-death", "to-b", "to-c", "regime-change", "agent")

COMMANDS: dict[str, tuple[str, ...]] = {
    "analyze": ("analyze", *MODEL, "--hbm", "80GiB"),
    "fit": ("fit",),
    "simulate": ("simulate", *MODEL, "--policies", "all", "--points", "3", "--slo", "200ms"),
    "simulate engine": ("simulate", "--capacity-model", "engine", "--points", "2"),
    "simulate tiers": ("simulate", *MODEL, "--tiers", "hbm=4GiB,dram=16GiB:ttl=10m"),
    "tune": (
        *("tune", *MODEL, "--slo", "400ms", "--view", "unloaded"),
        *("--explain", "--output", "tuned.toml"),
    ),
    "tune deployment": ("tune", *MODEL, "--gpu", "h100", "--slo", "2s", "--output", "tuned.toml"),
    "tune queued": ("tune", "--slo", "2s", "--view", "queued", "--output", "tuned.toml"),
}
QUICK = ("analyze", "fit", "simulate", "tune")

# Pattern of a field's path -> why it may differ.
EXPECTED = {
    r"flags": "launch flags name the plugin's new module",
    r"\.created_at$": "time of the run",
    r"\.why$": "wording",
    r"\.model\.notes$": "a model has the same fields in every document",
    r"\[\d+ (lfu|slru)\]": "lfu and slru make room before they insert, as SGLang does",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs: its path and both values."""

    path: str
    before: Any
    after: Any

    @property
    def reason(self) -> str | None:
        """The reason why this field may differ; None if it may not."""
        return next((why for path, why in EXPECTED.items() if re.search(path, self.path)), None)


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield every leaf at which two JSON values differ; types have to match too."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            missing = "(no such field)"
            pair = before.get(key, missing), after.get(key, missing)
            yield from differences(*pair, f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            policy = pair[0].get("policy") if isinstance(pair[0], dict) else None
            yield from differences(*pair, f"{path}[{index}{f' {policy}' if policy else ''}]")
    elif isinstance(before, float) and isinstance(after, float):
        # Sums over columns are taken in parallel: their order differs from run to run.
        if not math.isclose(before, after, rel_tol=1e-12):
            yield Difference(path, before, after)
    elif type(before) is not type(after) or before != after:
        yield Difference(path, before, after)


def document(tree: Path, command: tuple[str, ...], trace: Path) -> tuple[Any, int]:
    """Return what `command --json` of a tree prints for a trace, and the exit status.

    Where a command prints no JSON, its words come back as {"text": ...}.
    """
    name, *options = command
    kernels = Path(tempfile.gettempdir()) / f"kvscope-kernels-{tree.name}"
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-m", "kvscope", name, str(trace), *options, "--json"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(tree), "KVSCOPE_CACHE_DIR": str(kernels)},
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        return json.loads(process.stdout), process.returncode
    except json.JSONDecodeError:
        return {"text": process.stdout + process.stderr[-500:]}, process.returncode


def compare(label: str, before: tuple[Any, int], after: tuple[Any, int]) -> int:
    """Print how two documents compare; return the number of unexpected differences."""
    fields = list(differences(list(before), list(after)))
    unexpected = [field for field in fields if field.reason is None]
    expected = Counter(field.reason for field in fields if field.reason)
    meant = "".join(f"; {count} expected: {reason}" for reason, count in expected.items())
    verdict = f"{len(unexpected)} DIFFERENCES" if unexpected else "same"
    size = len(json.dumps(before[0]))
    print(f"{label}: exit {before[1]}, {size:,} bytes, {verdict}{meant}", flush=True)
    for field in unexpected[:8]:
        print(f"    {field.path}: {str(field.before)[:90]!r} -> {str(field.after)[:90]!r}")
    return len(unexpected)


def main() -> None:
    """Compare all commands on all traces; exit with 1 if anything differs unexpectedly."""
    parser = argparse.ArgumentParser(description="Compare the JSON documents of two source trees.")
    parser.add_argument("--before", type=Path, required=True, help="source tree to compare with")
    parser.add_argument("--after", type=Path, default=ROOT, help="source tree (default: this one)")
    parser.add_argument("--quick", action="store_true", help="four commands on two samples")
    parser.add_argument("traces", nargs="*", type=Path, help="traces (default: the samples)")
    options = parser.parse_args()
    samples = [ROOT / "sample_traces" / f"{name}.jsonl.gz" for name in SAMPLES]
    traces = options.traces or samples[: 2 if options.quick else None]
    trees = options.before.resolve(), options.after.resolve()
    unexpected = 0
    for trace in traces:
        for label in QUICK if options.quick else COMMANDS:
            before, after = (document(tree, COMMANDS[label], trace.resolve()) for tree in trees)
            unexpected += compare(f"{trace.name}: {label}", before, after)
    sys.exit(unexpected > 0)


if __name__ == "__main__":
    main()

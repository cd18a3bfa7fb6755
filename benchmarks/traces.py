"""Provide the traces to measure: generated once and kept, or named by KVSCOPE_TRACES."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import measure, note

T6_REQUESTS, WEEK_REQUESTS = 265_002, 7_000
WEKA = "weka_agent_sessions.jsonl.gz"
SAMPLES = Path(__file__).parents[1] / "sample_traces"
MOONCAKE = "mooncake_conversation.jsonl.gz"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace on disk, its name in the tables and its block size in tokens."""

    name: str
    path: Path
    block_tokens: int


def t6(folder: Path) -> TraceFile:
    """Return the generated trace of 265,002 requests, 6.4 M accesses."""
    return _generated(folder, "t6", T6_REQUESTS)


def t63(folder: Path) -> TraceFile:
    """Return a trace ten times as long as t6, at the same rate."""
    return _generated(folder, "t63", 10 * T6_REQUESTS)


def t03(folder: Path) -> TraceFile:
    """Return a twentieth of t6: 300,000 accesses."""
    return _generated(folder, "t03", T6_REQUESTS // 20)


def week(folder: Path) -> TraceFile:
    """Return a generated trace of 7,000 requests, spread over a week."""
    return _generated(folder, "week", WEEK_REQUESTS, WEEK_REQUESTS / (7 * 86_400))


def published(folder: Path) -> TraceFile:
    """Return the Mooncake conversation trace if KVSCOPE_TRACES names its folder, else t03."""
    traces = os.environ.get("KVSCOPE_TRACES")
    if traces and (Path(traces) / MOONCAKE).is_file():
        return TraceFile("mooncake", Path(traces) / MOONCAKE, 512)
    note(f"no {MOONCAKE} in the folder KVSCOPE_TRACES: a generated trace stands in for it")
    return t03(folder)


def real(folder: Path) -> list[TraceFile]:
    """Return the samples to-c and to-b, Mooncake's conversations and the Weka agent sessions.

    The last two only where KVSCOPE_TRACES names their folder.
    """
    samples = [TraceFile(name, SAMPLES / f"{name}.jsonl.gz", 16) for name in ("to-c", "to-b")]
    weka = Path(os.environ.get("KVSCOPE_TRACES", "")) / WEKA
    agents = [TraceFile("weka", weka, 64)] if weka.is_file() else []
    return [*samples, published(folder), *agents]


def _generated(
    folder: Path, name: str, requests: int, requests_per_s: float | None = None
) -> TraceFile:
    path = folder / f"{name}.jsonl"
    if not path.exists():
        note(f"generating {path} ({requests:,} requests), once")
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.generate", str(path)]
        rate = ["--requests-per-s", str(requests_per_s)] if requests_per_s else []
        measure([*command, "--requests", str(requests), *rate])
    return TraceFile(name, path, 16)

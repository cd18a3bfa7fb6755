"""The traces that are measured: generated once and kept, or named by KVSCOPE_TRACES."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import measure, note, python

T6_REQUESTS = 265_002
MOONCAKE = "mooncake_conversation.jsonl.gz"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace on disk, its name in the tables, and the tokens of its blocks."""

    name: str
    path: Path
    block_tokens: int


def t6(folder: Path) -> TraceFile:
    """About 6.4 M accesses of 265,002 requests."""
    return _generated(folder, "t6", T6_REQUESTS)


def t63(folder: Path) -> TraceFile:
    """Ten times t6: ten times as long, at the same rate."""
    return _generated(folder, "t63", 10 * T6_REQUESTS)


def t03(folder: Path) -> TraceFile:
    """About 320,000 accesses: a twentieth of t6."""
    return _generated(folder, "t03", T6_REQUESTS // 20)


def published(folder: Path) -> TraceFile:
    """The Mooncake conversation trace if KVSCOPE_TRACES names its folder, else a small stand-in."""
    named = os.environ.get("KVSCOPE_TRACES")
    if named and (Path(named) / MOONCAKE).is_file():
        return TraceFile("mooncake", Path(named) / MOONCAKE, 512)
    note(f"no {MOONCAKE} in the folder KVSCOPE_TRACES: a generated trace stands in for it")
    return t03(folder)


def _generated(folder: Path, name: str, requests: int) -> TraceFile:
    path = folder / f"{name}.jsonl"
    if not path.exists():
        note(f"generating {path} ({requests:,} requests), once")
        folder.mkdir(parents=True, exist_ok=True)
        measure(python("generate", path, "--requests", requests))
    return TraceFile(name, path, 16)

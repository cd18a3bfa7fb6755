"""Ingest keeps what a trace is made of, never its text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PEAK = """
import resource, sys, tracemalloc
from kvscope.ingest.formats.base import ReadOptions, Rejects
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats.mooncake import Mooncake
from kvscope.ingest.source import Source

source = Source(sys.argv[1])
reader, columns = Mooncake.reader(ReadOptions()), Columns(512, ReadOptions(), Rejects(""))
chunks = iter(reader.records(source))
columns.add(next(chunks))  # kernels are loaded, the first tables are there
tracemalloc.start()
for records in chunks:
    columns.add(records)
print(tracemalloc.get_traced_memory()[1], len(columns))
"""


def peak_bytes(path: Path, megabytes: int) -> int:
    """Return what reading a trace of so many megabytes of the same long prompt takes at most."""
    prompt = {
        "input_length": 512 * 2_000,
        "output_length": 1,
        "hash_ids": list(range(10**6, 10**6 + 2_000)),
    }
    line = json.dumps({"timestamp": 0} | prompt) + "\n"
    count = megabytes * 2**20 // len(line)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(line)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True
    )
    peak, requests = map(int, done.stdout.split())
    assert requests == count
    return peak


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Three times the text of the same prompts takes no more memory than some megabytes."""
    small, large = (peak_bytes(tmp_path / "a.jsonl", size) for size in (16, 48))
    assert large < small + 4 * 2**20

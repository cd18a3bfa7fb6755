"""A tiny trace and a profile whose replays can be worked out by hand, and the command over them."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

from kvscope.core.files import data_folder
from tests.cli.shell import Streams, document

BLOCK = 512
PROFILE = """schema = 1
name = "by hand"
source = "10 ms and 1 ms a token"
base_ms = 10
per_token_ms = 1
"""


def write_trace(folder: Path, name: str = "tiny") -> Path:
    """Two blocks, a stranger's block, the two again with two more."""
    rows = ((0, 2, [1, 2]), (1000, 1, [3]), (3000, 4, [1, 2, 4, 5]))
    path = folder / f"{name}.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(
                {
                    "timestamp": at_ms,
                    "input_length": blocks * BLOCK,
                    "output_length": 10,
                    "hash_ids": ids,
                }
            )
            for at_ms, blocks, ids in rows
        )
    )
    return path


def write_short(folder: Path, requests: int = 500, sample: str = "to-c") -> str:
    """Write the first requests of a sample."""
    path = folder / "short.jsonl"
    with gzip.open(data_folder("sample_traces") / f"{sample}.jsonl.gz", "rt") as lines:
        path.write_text("".join(islice(lines, requests)))
    return str(path)


def write_profile(folder: Path) -> Path:
    """TTFT = 10 ms + 1 ms for each uncached token."""
    path = folder / "latency.toml"
    path.write_text(PROFILE)
    return path


def simulated(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the JSON document of `kvscope simulate` with these arguments."""
    return document(capsys, "simulate", *arguments)

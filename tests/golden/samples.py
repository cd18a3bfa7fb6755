"""The sample traces, ingested once per process."""

from __future__ import annotations

import gzip
from functools import cache
from itertools import islice
from pathlib import Path

from kvscope.core.files import data_folder
from kvscope.core.trace import Prompts
from kvscope.ingest.pipeline import ingest
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts

SAMPLES = ("to-c", "to-b", "agent", "birth-death", "regime-change")
_FOLDER = data_folder("sample_traces")
SHARES_PERCENT = (1, 2, 5, 10, 20, 35, 60, 100)


@cache
def sample(name: str) -> Prompts:
    """Return the requests of a sample."""
    with open_store(MEMORY) as store:
        return load_prompts(store, ingest(store, str(_FOLDER / f"{name}.jsonl.gz")).trace)


def capacities(prompts: Prompts) -> list[int]:
    """Return eight capacities in blocks, as shares of the distinct blocks."""
    blocks = len(prompts.block_parent) - 1
    return [blocks * percent // 100 for percent in SHARES_PERCENT]


def write_beginnings(folder: Path, requests: int) -> None:
    """Write the first requests of each sample into a new folder, under the samples' names."""
    folder.mkdir()
    for path in _FOLDER.glob("*.jsonl.gz"):
        with gzip.open(path) as lines:
            short = gzip.compress(b"".join(islice(lines, requests)), 1)
        (folder / path.name).write_bytes(short)

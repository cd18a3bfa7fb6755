"""Anchors of the Mooncake conversation trace; skipped where KVSCOPE_TRACES does not lead to it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kvscope.core.hits import KVCACHE_SIMULATOR, LIBCACHESIM
from kvscope.core.trace import Prompts
from kvscope.ingest.pipeline import ingest
from kvscope.policies.registry import by_name
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts

FILE = Path(os.environ.get("KVSCOPE_TRACES", "/nowhere")) / "mooncake_conversation.jsonl.gz"

pytestmark = pytest.mark.skipif(
    not FILE.is_file(), reason="KVSCOPE_TRACES names no folder with this trace"
)


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    """Return the trace, ingested once."""
    with open_store(MEMORY) as store:
        return load_prompts(store, ingest(store, str(FILE)).trace)


@pytest.mark.parametrize(
    ("policy", "capacity", "percent"),
    [("lru", 5_637, 13.15), ("lru", 22_550, 31.66), ("belady", 5_637, 37.28),
     ("belady", 22_550, 39.81)],
)  # fmt: skip
def test_as_kvcache_simulator(prompts: Prompts, policy: str, capacity: int, percent: float) -> None:
    """Token-weighted hit rates of the last half of the requests, partial blocks kept."""
    done = replay(traffic(prompts, KVCACHE_SIMULATOR), by_name(policy)(), capacity)
    counted = slice(len(prompts.leaf) // 2, None)
    hit = np.minimum(done.hit_blocks.astype(np.int64) * prompts.block_size, prompts.input_tokens)
    rate = hit[counted].sum() / prompts.input_tokens[counted].sum(dtype=np.int64)
    assert round(100 * float(rate), 2) == percent


@pytest.mark.parametrize(
    ("policy", "capacity", "percent"),
    [("lru", 5_637, 12.93), ("lru", 22_550, 29.95), ("belady", 5_637, 35.01),
     ("belady", 22_550, 36.64)],
)  # fmt: skip
def test_as_libcachesim(prompts: Prompts, policy: str, capacity: int, percent: float) -> None:
    """Block-weighted hit rates, every access being an object of its own."""
    flat = traffic(prompts, LIBCACHESIM)
    done = replay(flat, by_name(policy)(), capacity, mandatory=True)
    assert round(100 * int(done.hit_blocks.sum()) / len(flat.leaf), 2) == percent

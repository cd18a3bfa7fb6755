"""Published numbers of the Mooncake conversation trace; skipped where the trace is not to hand.

The environment variable KVSCOPE_TRACES names the folder that holds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvscope.core.hits import HitDefinition, compatible
from kvscope.core.trace import Prompts, Trace
from kvscope.ingest import lineage
from kvscope.ingest.pipeline import ingest
from kvscope.replay.curve import lru_curve
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts

FILE = Path(os.environ.get("KVSCOPE_TRACES", "/nowhere")) / "mooncake_conversation.jsonl.gz"
KVCACHE_SIMULATOR = compatible("kvcache-simulator")
TOKENS = HitDefinition("kept", partial=True, last_token_rule=False, outputs="ignored")
FLAT = compatible("libcachesim")

pytestmark = pytest.mark.skipif(
    not FILE.is_file(), reason="KVSCOPE_TRACES names no folder with this trace"
)


@pytest.fixture(scope="module")
def stored() -> Iterator[tuple[Store, Trace]]:
    """Return the trace, ingested once."""
    with open_store(MEMORY) as store:
        yield store, ingest(store, str(FILE)).trace


@pytest.fixture(scope="module")
def prompts(stored: tuple[Store, Trace]) -> Prompts:
    """Return what the curves walk."""
    return load_prompts(*stored)


def test_sizes(stored: tuple[Store, Trace]) -> None:
    """Requests, accesses and distinct blocks as every tool counts them."""
    trace = stored[1]
    assert (trace.requests, trace.accesses, trace.distinct_blocks) == (12_031, 288_500, 182_790)
    assert (trace.bad_lines, trace.block_size, trace.lineage) == (0, 512, "inferred")


def test_lineage(
    prompts: Prompts, stored: tuple[Store, Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard against shared heads spares 7,551 false continuations."""
    turns = np.array([row["turn"] for row in _requests(stored)])
    assert np.count_nonzero(turns > 1) == 3_107
    cut = prompts.blocks > prompts.full_blocks
    full_leaf = np.where(cut, prompts.block_parent[prompts.leaf], prompts.leaf)
    monkeypatch.setattr(lineage, "SHARED_HEAD_CONTINUATIONS", 10**9)
    unguarded = lineage.parents_by_prefix(
        prompts.block_parent, full_leaf, prompts.input_tokens, prompts.output_tokens
    )
    assert np.count_nonzero(unguarded >= 0) == 10_658


@pytest.mark.parametrize(
    ("definition", "capacity", "percent"),
    [
        (KVCACHE_SIMULATOR, 5_637, 13.15),
        (KVCACHE_SIMULATOR, 22_550, 31.66),
        (FLAT, 5_637, 12.93),
        (FLAT, 22_550, 29.95),
        (FLAT, 10**9, 36.64),
        (TOKENS, 10**9, 37.36),
    ],
)
def test_anchors(
    prompts: Prompts, definition: HitDefinition, capacity: int, percent: float
) -> None:
    """LRU's hit rates as the peers publish them."""
    assert round(100 * float(lru_curve(prompts, definition).rate(capacity)), 2) == percent


def _requests(stored: tuple[Store, Trace]) -> list[dict[str, int]]:
    store, trace = stored
    return store.rows(
        "ingest/export_requests",
        trace_id=trace.trace_id,
        first=0,
        after=trace.requests,
        own_ids=False,
    )

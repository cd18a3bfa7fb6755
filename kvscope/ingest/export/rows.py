"""Requests out of a store as export formats want them: a chunk at a time, paths written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvscope.facts import Trace
from kvscope.prefix import paths
from kvscope.store.db import Store
from kvscope.store.prompts import load_block_parents

REQUESTS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One request; its blocks are named by their numbers in the trie, unique in the trace.

    Chat ids are the trace's own if they name every request, otherwise request numbers.
    """

    arrival_s: float
    chat_id: int
    parent_chat_id: int | None
    user_id: int | None
    type: str
    turn: int
    input_tokens: int
    output_tokens: int
    hash_ids: list[int]


def rows(store: Store, trace: Trace) -> Iterator[list[Row]]:
    """All requests of `trace` in order of arrival, in chunks."""
    block_parent = load_block_parents(store, trace)
    own_ids = store.row("ingest/export_own_ids", trace_id=trace.trace_id)["own_ids"]
    for first in range(0, trace.requests, REQUESTS_AT_ONCE):
        found = store.rows(
            "ingest/export_requests",
            trace_id=trace.trace_id,
            first=first,
            after=first + REQUESTS_AT_ONCE,
            own_ids=own_ids,
        )
        leaf = np.array([row.pop("leaf") for row in found], dtype=np.int32)
        blocks = np.array([row.pop("blocks") for row in found], dtype=np.int32)
        starts, ids = paths(block_parent, leaf, blocks)
        yield [
            Row(**row, hash_ids=ids[start:end].tolist())
            for row, (start, end) in zip(found, pairwise(starts), strict=True)
        ]

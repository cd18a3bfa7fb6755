"""From columns in file order to a trace in order of arrival: lineage, carried outputs, reuse."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.core.trace import Lineage, PromptPaths
from kvscope.ingest import lineage
from kvscope.ingest.columns import UNKNOWN_TYPE, Columns
from kvscope.ingest.identifiers import NO_ID, ROOT
from kvscope.ingest.reuse import Reuse, trace_reuse
from kvscope.ingest.trie import Trie


@dataclass(frozen=True, slots=True)
class Built:
    """A trace ready for the store: `requests` holds a column a field, in order of arrival.

    The column `type` holds positions in `types`; ids that were not given are NO_ID, parents -1.
    """

    block_size: int
    requests: dict[str, NDArray[Any]]
    types: tuple[str, ...]
    trie: Trie
    reuse: Reuse
    lineage: Lineage
    out_of_order: int
    notes: tuple[str, ...]

    def paths(self) -> PromptPaths:
        """What the store would give as the trace's paths."""
        told = {each.name for each in fields(PromptPaths)} & self.requests.keys()
        return PromptPaths(
            block_size=self.block_size,
            block_parent=self.trie.parent,
            **{name: self.requests[name] for name in told},
        )


def build(columns: Columns, reader_notes: list[str]) -> Built:
    """Sort by arrival (stably), settle who continues whom, carry outputs, follow reuse."""
    columns_in_file_order = columns.arrays()
    arrival = columns_in_file_order["arrival_s"]
    order = np.argsort(arrival, kind="stable")
    given = {name: values[order] for name, values in columns_in_file_order.items()}
    size, trie = columns.block_size, columns.trie
    inputs, outputs, blocks, leaf = (
        given[name] for name in ("input_tokens", "output_tokens", "blocks", "leaf")
    )
    full_blocks = np.minimum(blocks, inputs // size)
    full_leaf = np.where(blocks > full_blocks, trie.parent[leaf], leaf)

    parent, kind = _lineage(columns, order, given, full_leaf)
    conversation, turn = lineage.conversations(parent)
    carried_leaf, carried_blocks = lineage.carried(
        trie.parent, size, parent, full_leaf, full_blocks, inputs, outputs
    )
    found = trace_reuse(trie.parent, size, inputs, full_blocks, carried_leaf, carried_blocks)
    # The last sampled token has no KV; a prompt's own blocks are computed whatever follows.
    cached = np.maximum((inputs.astype(np.int64) + outputs - 1) // size, inputs // size)
    arrived = given["arrival_s"]
    requests = given | {
        "request": np.arange(len(order), dtype=np.int32),
        "arrival_s": arrived - arrived[0],
        "turn": np.where(given["turn"] > 0, given["turn"], turn),
        "parent": parent,
        "conversation": conversation,
        "full_blocks": full_blocks,
        "cached_blocks": cached.astype(np.int32),
        "carried_leaf": carried_leaf,
        "carried_blocks": carried_blocks,
        "ideal_blocks": found.ideal_blocks,
    }
    return Built(
        block_size=size,
        requests=requests,
        types=tuple(columns.types),
        trie=trie,
        reuse=found,
        lineage=kind,
        out_of_order=int(np.count_nonzero(np.diff(arrival) < 0)),
        notes=(*reader_notes, *_notes(columns, kind)),
    )


def _lineage(
    columns: Columns,
    order: NDArray[np.int64],
    given: dict[str, NDArray[Any]],
    full_leaf: NDArray[np.int32],
) -> tuple[NDArray[np.int32], Lineage]:
    """Each request's parent (-1: none), and where that is known from."""
    if _sessions_are_told(columns):
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        before = np.frombuffer(columns.session_parent, dtype=np.int32)[order]
        parent = np.where(before >= 0, rank[before], -1)
        # Out of order within a session: a parent that comes later is none.
        return np.where(parent < np.arange(len(order)), parent, -1).astype(np.int32), "given"
    told = np.frombuffer(columns.parent_chat_id, np.int64)
    if (told[_telling(columns)] != NO_ID).any():
        parents = np.where(told == ROOT, NO_ID, told)[order]
        return lineage.given(given["chat_id"], parents, NO_ID), "given"
    if columns.trie.count > 1:
        inputs, outputs = given["input_tokens"], given["output_tokens"]
        return lineage.inferred(columns.trie.parent, full_leaf, inputs, outputs), "inferred"
    return np.full(len(order), -1, dtype=np.int32), "none"


def _telling(columns: Columns) -> NDArray[np.bool_]:
    """The requests that decide whether conversations are told: in a hashed trace, hashed ones.

    In file order. All others say nothing of reuse, and what they tell alone would keep it from
    being inferred.
    """
    hashed = np.frombuffer(columns.blocks, dtype=np.int32) > 0
    return hashed if hashed.any() else np.ones_like(hashed)


def _sessions_are_told(columns: Columns) -> bool:
    """Whether some session has two requests, or each request has its session."""
    telling = _telling(columns)
    follows = np.frombuffer(columns.session_parent, dtype=np.int32) >= 0
    in_session = np.frombuffer(columns.in_session, dtype=np.int8) > 0
    return bool(follows[telling].any() or in_session[telling].all())


def _notes(columns: Columns, kind: Lineage) -> list[str]:
    """What was missing from the trace and what was inferred, in words."""
    total = len(columns)
    notes = []
    if columns.untimed:
        notes.append(f"{columns.untimed:,} of {total:,} requests tell no arrival time")
    if columns.unhashed == total:
        notes.append("no block hashes: lengths and arrivals only, nothing about reuse")
    elif columns.unhashed:
        notes.append(f"{columns.unhashed:,} of {total:,} requests have no block hashes")
    if columns.short:
        notes.append(
            f"{columns.short:,} of {total:,} requests have hashes for a part of the prompt"
        )
    if kind == "inferred":
        notes.append("conversations are inferred from shared prefixes")
    if list(columns.types) == [UNKNOWN_TYPE]:
        notes.append("no request types: categories are by turn alone")
    return notes

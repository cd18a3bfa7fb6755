"""A built trace into the store's tables, column by column."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.facts import Trace
from kvscope.ingest.base import Rejects
from kvscope.ingest.build import Built
from kvscope.ingest.identifiers import NO_ID
from kvscope.store import traces
from kvscope.store.db import Store

NONE = -1
"""Stands for no request in the columns of parents and of first and last touches."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a trace comes from and what it is to be called."""

    name: str
    source: str
    source_bytes: int
    content_hash: str
    format: str


def write(store: Store, origin: Origin, built: Built, rejects: Rejects) -> Trace:
    """Write the trace; the caller holds a transaction."""
    requests = built.requests
    trace = traces.add(
        store,
        **asdict(origin),
        block_size=built.block_size,
        requests=len(requests["request"]),
        accesses=int(requests["blocks"].sum(dtype=np.int64)),
        distinct_blocks=built.trie.count - 1,
        span_s=float(requests["arrival_s"][-1]),
        input_tokens=int(requests["input_tokens"].sum(dtype=np.int64)),
        output_tokens=int(requests["output_tokens"].sum(dtype=np.int64)),
        lineage=built.lineage,
        has_users=bool((requests["user_id"] != NO_ID).any()),
        lines=rejects.accepted + rejects.count,
        bad_lines=rejects.count,
        out_of_order=built.out_of_order,
        notes=list(built.notes),
    )
    number = trace.trace_id
    store.append(
        "ingest/add_requests",
        requests,
        trace_id=number,
        types=list(built.types),
        no_id=NO_ID,
        no_parent=NONE,
    )
    store.append("ingest/add_blocks", _blocks(built), trace_id=number, no_request=NONE)
    store.append("ingest/add_reuses", _reuses(built), trace_id=number)
    if rejects.lines:
        numbers, reasons = map(list, zip(*rejects.lines, strict=True))
        store.run("ingest/add_bad_lines", trace_id=number, numbers=numbers, reasons=reasons)
    return trace


def _blocks(built: Built) -> dict[str, NDArray[Any]]:
    trie, found = built.trie, built.reuse
    return {
        "block": np.arange(1, trie.count, dtype=np.int32),
        "parent": trie.parent[1:],
        "depth": trie.depth[1:],
        "hash_id": trie.hash_id[1:],
        "first_request": found.first[1:],
        "last_request": found.last[1:],
        "reuses": found.reuses[1:],
    }


def _reuses(built: Built) -> dict[str, NDArray[Any]]:
    found, arrival_s = built.reuse, built.requests["arrival_s"]
    return {
        "request": found.request,
        "prev": found.prev,
        "depth": found.depth,
        "blocks": found.blocks,
        "gap_s": arrival_s[found.request] - arrival_s[found.prev],
    }

"""A built trace into the store's tables, through Arrow."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvscope.facts import Trace
from kvscope.ingest.base import Rejects
from kvscope.ingest.build import Built
from kvscope.ingest.columns import NO_ID
from kvscope.store import traces
from kvscope.store.db import Store


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
    constants = {"trace_id": trace.trace_id}
    store.insert("requests", _request_columns(built), **constants)
    store.insert("blocks", _block_columns(built), **constants)
    store.insert("reuses", _reuse_columns(built), **constants)
    if rejects.lines:
        lines, reasons = zip(*rejects.lines, strict=True)
        store.insert("bad_lines", {"line": lines, "reason": reasons}, **constants)
    return trace


def _request_columns(built: Built) -> dict[str, object]:
    columns: dict[str, object] = dict(built.requests)
    for name in ("chat_id", "user_id"):
        columns[name] = _null(built.requests[name], NO_ID)
    columns["parent"] = _null(built.requests["parent"], -1)
    kinds = pl.Series(built.types, dtype=pl.String)
    columns["type"] = kinds.gather(pl.Series(built.requests["type"]))
    return columns


def _block_columns(built: Built) -> dict[str, object]:
    trie, found = built.trie, built.reuse
    return {
        "block": np.arange(1, trie.count, dtype=np.int32),
        "parent": trie.parent[1:],
        "depth": trie.depth[1:],
        "hash_id": trie.hash_id[1:],
        "first_request": _null(found.first[1:], -1),
        "last_request": _null(found.last[1:], -1),
        "reuses": found.reuses[1:],
    }


def _reuse_columns(built: Built) -> dict[str, object]:
    found, arrival_s = built.reuse, built.requests["arrival_s"]
    return {
        "request": found.request,
        "prev": found.prev,
        "depth": found.depth,
        "blocks": found.blocks,
        "gap_s": arrival_s[found.request] - arrival_s[found.prev],
    }


def _null(values: NDArray[np.generic], none: int) -> pl.Series:
    """The column with NULL where `values` has the number that stands for none."""
    series = pl.Series(values)
    return pl.select(pl.when(series != none).then(series)).to_series()

"""A store with one trace small enough to work everything out by hand.

Blocks of 4 tokens. r0 and its continuation r1 are one conversation; b4 first appears as r0's output
and is known through r1; b3 is r0's partial last block, never cacheable.

    request  arrival  user  type    turn  input  output  full blocks    ideal blocks
    r0          0 s    1    chat      1      9       4   b1 b2          0
    r1         10 s    1    chat      2     17       3   b1 b2 b4 b5    3  (all of r0's)
    r2         20 s    2    search    1      8       1   b1 b6          1
    r3         40 s    1    chat      1      9       1   b1 b2          2
    r4        100 s    2    search    1      4      10   b1             0  (the last-token rule)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvscope.characterize.summary import Characterization, start_characterization
from kvscope.core.trace import Lineage, Trace
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import add

REQUESTS: dict[str, list[Any]] = {
    "request": [0, 1, 2, 3, 4],
    "arrival_s": [0.0, 10.0, 20.0, 40.0, 100.0],
    "user_id": [1, 1, 2, 1, 2],
    "type": ["chat", "chat", "search", "chat", "search"],
    "turn": [1, 2, 1, 1, 1],
    "parent": [None, 0, None, None, None],
    "conversation": [0, 0, 2, 3, 4],
    "input_tokens": [9, 17, 8, 9, 4],
    "output_tokens": [4, 3, 1, 1, 10],
    "blocks": [3, 4, 2, 2, 1],
    "full_blocks": [2, 4, 2, 2, 1],
    "leaf": [3, 5, 6, 2, 1],
    "cached_blocks": [3, 4, 2, 2, 3],
    "carried_leaf": [4, 5, 6, 2, 1],
    "carried_blocks": [3, 4, 2, 2, 1],
    "ideal_blocks": [0, 3, 1, 2, 0],
}
BLOCKS: dict[str, list[Any]] = {
    "block": [1, 2, 3, 4, 5, 6],
    "parent": [0, 1, 2, 2, 4, 1],
    "depth": [0, 1, 2, 2, 3, 1],
    "hash_id": [11, 12, 13, 14, 15, 16],
    "first_request": [0, 0, None, 0, 1, 2],
    "last_request": [4, 3, None, 1, 1, 2],
    "reuses": [4, 2, 0, 1, 0, 0],
}
REUSES: dict[str, list[Any]] = {
    "request": [1, 2, 3, 3, 4],
    "prev": [0, 1, 2, 1, 3],
    "depth": [0, 0, 0, 1, 0],
    "blocks": [3, 1, 1, 1, 1],
}
DECOY_REQUESTS = REQUESTS | {
    "arrival_s": [3 * at for at in REQUESTS["arrival_s"]],
    "user_id": [3, 3, 3, 4, 5],
    "type": ["decoy"] * 5,
    "input_tokens": [tokens + 100 for tokens in REQUESTS["input_tokens"]],
    "output_tokens": [tokens + 30 for tokens in REQUESTS["output_tokens"]],
    "ideal_blocks": [blocks + 2 for blocks in REQUESTS["ideal_blocks"]],
}
DECOY_BLOCKS = BLOCKS | {"reuses": [7, 7, 7, 7, 7, 7]}
DECOY_REUSES = REUSES | {"blocks": [9, 8, 7, 6, 5]}
CHAT_1, CHAT_2, SEARCH_1 = "chat 1", "chat 2", "search 1"
BLOCK_SIZE = 4


@contextmanager
def tiny_store(
    requests: Mapping[str, list[Any]] | None = None,
    blocks: Mapping[str, list[Any]] | None = None,
    reuses: Mapping[str, list[Any]] | None = None,
    **trace: Any,
) -> Iterator[tuple[Store, Trace]]:
    """Return a store in memory with the trace above or other rows; `trace` overrides its facts.

    Another trace with other numbers lies before it, so that a query that forgets which one was
    asked for is wrong.
    """
    with open_store(MEMORY) as store:
        _insert(store, "decoy", DECOY_REQUESTS, DECOY_BLOCKS, DECOY_REUSES, {})
        found = _insert(
            store,
            "tiny",
            REQUESTS if requests is None else requests,
            BLOCKS if blocks is None else blocks,
            REUSES if reuses is None else reuses,
            trace,
        )
        yield store, found


@contextmanager
def lengths_only(lineage: Lineage = "none") -> Iterator[tuple[Store, Trace]]:
    """Return the same requests of a trace without hashes and users."""
    zeros = [0] * 5
    requests = {
        **REQUESTS,
        **dict.fromkeys(
            (
                *("blocks", "full_blocks", "leaf", "cached_blocks"),
                *("carried_leaf", "carried_blocks", "ideal_blocks"),
            ),
            zeros,
        ),
        "type": ["unknown"] * 5,
    }
    del requests["user_id"]
    if lineage == "none":
        requests |= {"turn": [1] * 5, "conversation": [0, 1, 2, 3, 4]}
        del requests["parent"]
    with tiny_store(
        requests, {}, {}, accesses=0, distinct_blocks=0, lineage=lineage, has_users=False
    ) as opened:
        yield opened


@contextmanager
def one_request() -> Iterator[tuple[Store, Trace]]:
    """r0 alone: a trace without a span and without reuse."""
    requests = {name: values[:1] for name, values in REQUESTS.items()}
    requests |= {"carried_leaf": [2], "carried_blocks": [2]}
    blocks = {name: values[:3] for name, values in BLOCKS.items()}
    blocks |= {"last_request": [0, 0, None], "reuses": [0, 0, 0]}
    with tiny_store(requests, blocks, {}, accesses=3, distinct_blocks=3) as opened:
        yield opened


def _insert(
    store: Store,
    name: str,
    requests: Mapping[str, list[Any]],
    blocks: Mapping[str, list[Any]],
    reuses: Mapping[str, list[Any]],
    facts: Mapping[str, Any],
) -> Trace:
    about: dict[str, Any] = {
        "name": name,
        "content_hash": name,
        "source": f"{name}.jsonl",
        "source_bytes": 0,
        "format": "bailian",
        "block_size": BLOCK_SIZE,
        "requests": len(requests["request"]),
        "accesses": 12,
        "distinct_blocks": 6,
        "span_s": requests["arrival_s"][-1],
        "input_tokens": sum(requests["input_tokens"]),
        "output_tokens": sum(requests["output_tokens"]),
        "lineage": "given",
        "has_users": True,
        "lines": len(requests["request"]),
        "bad_lines": 0,
        "out_of_order": 0,
        "notes": [],
        "models": 0,
        "adapters": 0,
        "salts": 0,
        "tenants": 1,
        "workers": 0,
        "measured_requests": 0,
    }
    trace = add(store, **{**about, **facts})
    tables = {"requests": requests, "blocks": dict(blocks), "reuses": reuses}
    if blocks:
        names = ("first_request", "last_request", "reuses")
        spans = zip(*(blocks[each] for each in names), strict=True)
        groups = [(*span, 1) for span in spans if span[0] is not None]
        tables["block_groups"] = dict(
            zip((*names, "blocks"), zip(*groups, strict=True), strict=True)
        )
        for each in names[:2]:
            tables["blocks"].pop(each)
        tables["branches"] = {"block": blocks["block"], "parent": tables["blocks"].pop("parent")}
    for table, columns in tables.items():
        if columns:
            names = ", ".join(["trace_id", *columns])
            rows = [[trace.trace_id, *row] for row in zip(*columns.values(), strict=True)]
            marks = ", ".join("?" * (len(columns) + 1))
            statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608
            store._connection.executemany(statement, rows)
    return trace


def characterize(store: Store, trace: Trace) -> Characterization:
    """Return all facts of a trace, computed at once."""
    return start_characterization(store, trace)()

"""Random small traces with every feature: strategies, and helpers to build and store them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import strategies as st

from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Prompts, Tenants, Trace
from kvscope.ingest.build import Built, build
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats.base import ReadOptions, Records, Rejects, Request
from kvscope.ingest.hash_ids import NO_ID
from kvscope.ingest.pipeline import Origin, write
from kvscope.replay.misses import ideal_blocks, ideal_rate_of
from kvscope.store import traces
from kvscope.store.db import Store

SIZES = st.integers(1, 4)
# Each part of a request is one choice of Hypothesis: choices take most of a small test's time.
_NEW_IDS = st.sampled_from(
    [
        list(ids)
        for length in range(4)
        for ids in product(range(3), repeat=length)
        for _ in range(3 ** (3 - length))
    ]
)  # as many of each length
_UNHASHED = st.sampled_from([0, 0, 0, 0, 1, 2])


@st.composite
def requests(
    draw: st.DrawFn, size: int, *, most: int = 14, chats: bool = False, whole: bool = False
) -> list[Request]:
    """Draw requests in order of arrival, with ties, that branch off each other's prompts.

    `chats` gives chat ids and parents; `whole` gives every request all hashes of its prompt.
    """
    trace: list[Request] = []
    for number in range(draw(st.integers(1, most))):
        chosen = draw(st.integers(0, 2 * number))  # the upper half: a request to branch off
        base = trace[chosen - number - 1] if chosen > number else None
        head = list(base.hash_ids or ()) if base else []
        kept = draw(st.integers(0, 2 * len(head)))  # more than there are: all
        ids = head[:kept] + draw(_NEW_IDS)
        if whole and not ids:
            ids = [0]
        unhashed = 0 if whole else draw(_UNHASHED)
        request = Request(
            input_tokens=(max(len(ids), 1) - 1 + unhashed) * size + draw(st.integers(1, size)),
            output_tokens=draw(st.integers(0, 3 * size)),
            arrival_s=(trace[-1].arrival_s or 0.0) + draw(st.integers(0, 1)) if trace else 0.0,
            hash_ids=list(ids),
        )
        if chats:
            request.chat_id = number
            request.parent_chat_id = base.chat_id if base else None
        trace.append(request)
    return trace


def built(trace: Sequence[Request], size: int, options: ReadOptions | None = None) -> Built:
    """Return the trace as ingest builds it, each request a record of its own."""
    columns = Columns(size, options or ReadOptions(), Rejects("", strict=True))
    records = Records()
    for line, request in enumerate(trace, start=1):
        records.add(line, (request,))
    columns.add(records)
    return build(columns, [])


def parents(made: Built) -> list[int | None]:
    """Return each request's parent, or None."""
    return [None if parent < 0 else int(parent) for parent in made.requests["parent"]]


def prompts(made: Built) -> Prompts:
    """Return the columns that kernels walk, without a store in between."""
    columns = {
        name: np.asarray(made.requests[name])
        for name in Prompts.__struct_fields__
        if name in made.requests
    }
    named = [
        (made.names["type"][kind], _turn_bucket(turn))
        for kind, turn in zip(made.requests["type"], made.requests["turn"], strict=True)
    ]
    categories = sorted(set(named))
    users = made.requests["user_id"]
    known = np.unique(users[users != NO_ID])
    return Prompts(
        block_size=made.block_size,
        user=np.where(users == NO_ID, -1, np.searchsorted(known, users)).astype(np.int32),
        category=np.array([categories.index(category) for category in named], dtype=np.int32),
        categories=tuple(" ".join(category) for category in categories),
        block_parent=made.trie.parent.copy(),
        **columns,
    )


def tenants(made: Built) -> Tenants:
    """Return which model, adapter and salt each request has."""
    own = made.trie.hash_id.copy()
    for block, hash_id in made.own_hash_ids.items():
        own[block] = hash_id
    names = ("model", "adapter", "salt")
    return Tenants(*(np.asarray(made.requests[name]) for name in names), hash_id=own)


def _turn_bucket(turn: int) -> str:
    return str(turn) if turn <= 3 else "4-6" if turn <= 6 else "7+"


def path(made: Built, block: int) -> list[int]:
    """Return the hash ids from the root to `block`."""
    ids = []
    while block:
        ids.append(int(made.trie.hash_id[block]))
        block = int(made.trie.parent[block])
    return ids[::-1]


def blocks_to(prompts: Prompts, leaf: int) -> list[int]:
    """Return the blocks from the head to `leaf`."""
    blocks = []
    while leaf:
        blocks.append(int(leaf))
        leaf = int(prompts.block_parent[leaf])
    return blocks[::-1]


def stored(store: Store, trace: Sequence[Request], size: int) -> Trace:
    """Store the trace under a name of its own."""
    name = f"trace-{len(traces.all_traces(store))}"
    origin = Origin(name=name, source=name, source_bytes=0, content_hash=name, format="made")
    rejects = Rejects(name, accepted=len(trace))
    with store.transaction():
        return write(store, origin, built(trace, size), rejects)


def ideal_rate(prompts: Prompts, definition: HitDefinition) -> float:
    """Return the hit rate (0-1) of an infinite cache."""
    return ideal_rate_of(prompts, definition, ideal_blocks(prompts, definition))

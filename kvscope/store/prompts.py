"""The columns of one trace that kernels walk: requests in order of arrival over a prefix trie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvscope.core.trace import Trace

if TYPE_CHECKING:  # replays walk prompts from anywhere, and do without DuckDB
    from kvscope.store.db import Store


@dataclass(frozen=True, slots=True)
class PromptPaths:
    """Requests as paths in a trie, R requests and N blocks.

    A request's path is found from its `leaf` by following `block_parent` up to 0, the root.
    `parent` is the request whose conversation this one continues, -1 where there is none.
    All arrays but `block_parent` have R entries; `block_parent` has N + 1, entry 0 being the root.
    """

    block_size: int
    input_tokens: NDArray[np.int32]
    parent: NDArray[np.int32]
    blocks: NDArray[np.int32]
    full_blocks: NDArray[np.int32]
    leaf: NDArray[np.int32]
    cached_blocks: NDArray[np.int32]
    carried_leaf: NDArray[np.int32]
    carried_blocks: NDArray[np.int32]
    block_parent: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Prompts(PromptPaths):
    """The same with who asks, when, and how much is answered.

    `user` numbers the users from 0, -1 where the trace names none; `category` is an index into
    `categories`, the names of (type, turn bucket), which are ordered by type and turn.
    """

    arrival_s: NDArray[np.float64]
    output_tokens: NDArray[np.int32]
    conversation: NDArray[np.int32]
    user: NDArray[np.int32]
    category: NDArray[np.int32]
    categories: tuple[str, ...]


def load_prompts(store: Store, trace: Trace) -> Prompts:
    """The prompts of `trace`, in order of arrival."""
    requests = store.columns("ingest/prompts", trace_id=trace.trace_id)
    names = store.rows("ingest/category_names", trace_id=trace.trace_id)
    return Prompts(
        block_size=trace.block_size,
        categories=tuple(row["category"] for row in names),
        block_parent=load_block_parents(store, trace),
        **requests,
    )


def load_block_parents(store: Store, trace: Trace) -> NDArray[np.int32]:
    """The prefix trie of `trace`: each block's parent, entry 0 being the root's own 0."""
    parents = store.columns("ingest/block_parents", trace_id=trace.trace_id)["parent"]
    block_parent = np.zeros(len(parents) + 1, dtype=np.int32)
    block_parent[1:] = parents
    return block_parent

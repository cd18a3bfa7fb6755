"""The first requests of a trace as they were known then: no later request tells who continues whom.

Ingest looks at the whole trace. Where lineage is inferred, a path that later requests continue
becomes a shared head, and the ids of an output's blocks may come from a child that is judged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvscope.facts import Lineage
from kvscope.ingest.lineage import carried, conversations, inferred
from kvscope.simulate.subset import select
from kvscope.store.prompts import Prompts

_BUCKETS = np.array(["1", "2", "3", "4-6", "7+"])
_FIRST_TURNS = (2, 3, 4, 7)  # that the buckets after the first one begin with


def first_requests(prompts: Prompts, seen: int, lineage: Lineage) -> Prompts:
    """The first `seen` requests, as ingest would have had them if they were all there is."""
    leaf = np.where(
        prompts.blocks > prompts.full_blocks, prompts.block_parent[prompts.leaf], prompts.leaf
    )
    known = replace(prompts, carried_leaf=leaf, carried_blocks=prompts.full_blocks)
    cut = select(known, np.arange(seen))
    full_leaf = cut.carried_leaf
    parent = cut.parent
    if lineage == "inferred":
        parent = inferred(cut.block_parent, full_leaf, cut.input_tokens, cut.output_tokens)
    conversation, turn = conversations(parent)
    carried_leaf, carried_blocks = carried(
        cut.block_parent,
        cut.block_size,
        parent,
        full_leaf,
        cut.full_blocks,
        cut.input_tokens,
        cut.output_tokens,
    )
    category, categories = _categories(cut, turn)
    return replace(
        cut,
        parent=parent,
        conversation=conversation,
        carried_leaf=carried_leaf,
        carried_blocks=carried_blocks,
        category=category,
        categories=categories,
    )


def _categories(cut: Prompts, turn: NDArray[np.int32]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Category of each request, and their names, with turns as they are now if never told."""
    named = [name.rpartition(" ") for name in cut.categories]
    kinds, kind = np.unique([one[0] for one in named], return_inverse=True)
    bucket = np.searchsorted(_BUCKETS, [one[2] for one in named])[cut.category]
    if np.array_equal(bucket, _bucket(conversations(cut.parent)[1])):  # else the trace told them
        bucket = _bucket(turn)
    found, category = np.unique(kind[cut.category] * len(_BUCKETS) + bucket, return_inverse=True)
    names = (f"{kinds[one // len(_BUCKETS)]} {_BUCKETS[one % len(_BUCKETS)]}" for one in found)
    return category.astype(np.int32), tuple(names)


def _bucket(turn: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.searchsorted(_FIRST_TURNS, turn, side="right")

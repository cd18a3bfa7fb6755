"""Some of a trace's requests as a trace of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvscope.jit import kernel
from kvscope.store.prompts import Prompts

_BY_REQUEST = ("arrival_s", "input_tokens", "output_tokens", "user", "category")
_LENGTHS = ("blocks", "full_blocks", "cached_blocks", "carried_blocks")


def select(prompts: Prompts, requests: NDArray[np.int64]) -> Prompts:
    """The requests with these numbers (ascending), over the blocks that they need.

    Blocks, requests and conversations are numbered anew, in the same order; times, users and
    categories stay. A parent that was not selected is none.
    """
    needed = np.zeros(len(prompts.block_parent), dtype=np.bool_)
    needed[0] = True
    _mark_needed(prompts.block_parent, prompts.leaf[requests], needed)
    _mark_needed(prompts.block_parent, prompts.carried_leaf[requests], needed)
    block = (np.cumsum(needed) - 1).astype(np.int32)
    request = np.full(len(prompts.leaf) + 1, -1, dtype=np.int32)  # the last entry: no parent
    request[requests] = np.arange(len(requests), dtype=np.int32)
    _, first, conversation = np.unique(
        prompts.conversation[requests], return_index=True, return_inverse=True
    )
    columns = {name: getattr(prompts, name)[requests] for name in (*_BY_REQUEST, *_LENGTHS)}
    return replace(
        prompts,
        conversation=first[conversation].astype(np.int32),
        parent=request[prompts.parent[requests]],
        leaf=block[prompts.leaf[requests]],
        carried_leaf=block[prompts.carried_leaf[requests]],
        block_parent=block[prompts.block_parent[needed]],
        **columns,
    )


@kernel
def _mark_needed(
    block_parent: NDArray[np.int32], leaf: NDArray[np.int32], needed: NDArray[np.bool_]
) -> None:
    """Mark the blocks on the paths to these leaves, up to those that are marked, as the root is."""
    for last in leaf:
        block = last
        while not needed[block]:
            needed[block] = True
            block = block_parent[block]

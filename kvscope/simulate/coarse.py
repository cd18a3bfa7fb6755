"""The same trace at a larger block size: k blocks of a path as one.

All requests, times and paths stay, so that every policy and every figure by request means what it
meant; a cache of C blocks becomes one of C / k. What is lost is less than one large block a prompt.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import UsageError
from kvscope.jit import kernel
from kvscope.store.prompts import Prompts


def coarsened(prompts: Prompts, factor: int) -> Prompts:
    """The trace with blocks of `factor` times as many tokens, numbered anew in the same order.

    A partial last block is dropped, as vLLM does. Raises UsageError for a factor below 1.
    """
    if factor < 1:
        raise UsageError(f"{factor} blocks as one", remedy="give a whole number from 1 on")
    cut = prompts.blocks > prompts.full_blocks
    full_leaf = np.where(cut, prompts.block_parent[prompts.leaf], prompts.leaf)
    count, last = np.zeros((2, len(prompts.block_parent)), dtype=np.int32)
    _find_last_of_large(prompts.block_parent, factor, count, last)
    kept = np.flatnonzero(last == np.arange(len(last)))
    number = np.zeros(len(last), dtype=np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    return replace(
        prompts,
        block_size=prompts.block_size * factor,
        blocks=prompts.full_blocks // factor,
        full_blocks=prompts.full_blocks // factor,
        cached_blocks=prompts.cached_blocks // factor,
        carried_blocks=prompts.carried_blocks // factor,
        leaf=number[last[full_leaf]],
        carried_leaf=number[last[prompts.carried_leaf]],
        block_parent=number[last[prompts.block_parent[kept]]],
    )


@kernel
def _find_last_of_large(
    block_parent: NDArray[np.int32],
    factor: int,
    count: NDArray[np.int32],
    last: NDArray[np.int32],
) -> None:
    """Fill `last`: the deepest block on the path to each one that ends a large block, or 0.

    `count` are the blocks on the path to each.
    """
    for block in range(1, len(block_parent)):  # parents have lower numbers
        count[block] = count[block_parent[block]] + 1
        last[block] = block if count[block] % factor == 0 else last[block_parent[block]]

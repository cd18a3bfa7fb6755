"""Prefix paths for kernels: a trie of blocks gives each block's parent, and 0 is the root."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.jit import callable_in_kernels, kernel


@callable_in_kernels
def write_path(
    block_parent: NDArray[np.int32],
    leaf: int,
    path: NDArray[np.int32],
    start: int,
    end: int,
) -> None:
    """Write the path that ends at `leaf` into path[start:end], the head first.

    Its length is end - start; a path of no blocks ends at the root and writes nothing.
    """
    block = leaf
    for at in range(end - 1, start - 1, -1):
        path[at] = block
        block = block_parent[block]


@callable_in_kernels
def ancestor(block_parent: NDArray[np.int32], block: int, steps: int) -> int:
    """The block that many steps towards the root; `block` itself for none."""
    found = block
    for _ in range(steps):
        found = block_parent[found]
    return found


def paths(
    block_parent: NDArray[np.int32], leaf: NDArray[np.int32], blocks: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(starts, ids): path k, from its head to leaf[k], is ids[starts[k]:starts[k + 1]].

    `blocks` are their lengths.
    """
    starts = np.zeros(len(leaf) + 1, dtype=np.int64)
    np.cumsum(blocks, out=starts[1:])
    return starts, _paths(block_parent, leaf, starts)


@kernel
def _paths(
    block_parent: NDArray[np.int32], leaf: NDArray[np.int32], starts: NDArray[np.int64]
) -> NDArray[np.int32]:
    ids = np.empty(starts[-1], dtype=np.int32)
    for k in range(len(leaf)):
        write_path(block_parent, leaf[k], ids, starts[k], starts[k + 1])
    return ids

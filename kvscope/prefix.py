"""Prefix paths for kernels: a trie of blocks gives each block's parent, and 0 is the root."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.jit import callable_in_kernels


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

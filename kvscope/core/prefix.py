"""Prefix paths for kernels, in a trie of blocks: an array with each block's parent; 0: the root."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s, UInt32s
from kvscope.core.jit import callable_in_kernels, kernel


@callable_in_kernels
def write_path(
    block_parent: Int32s | UInt32s,
    leaf: int,
    path: Int32s | Int64s | UInt32s,
    start: int,
    end: int,
) -> None:
    """Write the path from the head to `leaf` into path[start:end].

    The path must have end - start blocks; nothing is written for the root, whose path has none.
    """
    block = leaf
    for at in range(end - 1, start - 1, -1):
        path[at] = block
        block = block_parent[block]


@callable_in_kernels
def ancestor(block_parent: Int32s | UInt32s, block: int, steps: int) -> int:
    """Return the ancestor of `block` that is `steps` levels above it; `block` itself for 0."""
    above = block
    for _ in range(steps):
        above = block_parent[above]
    return above


class Paths(NamedTuple):
    """Paths of blocks: path k, from its head to its end, is `blocks[starts[k]:starts[k + 1]]`."""

    starts: Int64s
    blocks: Int32s


def paths(block_parent: Int32s, leaf: Int32s, blocks: Int32s) -> Paths:
    """Return the paths that end at the entries of `leaf`; `blocks` are their lengths in blocks."""
    starts = np.zeros(len(leaf) + 1, dtype=np.int64)
    np.cumsum(blocks, out=starts[1:])
    written = np.empty(starts[-1], dtype=np.int32)
    _write_paths(block_parent, leaf, starts, written)
    return Paths(starts, written)


@kernel
def _write_paths(block_parent: Int32s, leaf: Int32s, starts: Int64s, written: Int32s) -> None:
    for k in range(len(leaf)):
        write_path(block_parent, leaf[k], written, starts[k], starts[k + 1])

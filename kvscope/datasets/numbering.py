"""Number the blocks of all shards as one trie of all files would.

A trie numbers blocks as paths add them, so the new blocks of a request follow each other. A block
is thus identified by the first request with it, its owner, and its depth; and the whole trie is
determined by the parent of each request's first new block.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.datasets.cuts import TRUNK
from kvscope.datasets.files import Arrays, load_array
from kvscope.ingest.columns import INT32_MAX

_OWNED = ("new", "above", "last")
_CARRIED = ("carried_request", "carried_owner", "carried_depth")


class NumberedPaths(NamedTuple):
    """Last blocks of R prompts (`leaf`) and of their cached paths (`carried_leaf`), in one trie.

    `blocks` has the first new block of each request that adds any, in order of the files, and
    `parents` its parent; the parent of any other block is the previous number.
    """

    leaf: Int32s
    carried_leaf: Int32s
    blocks: Int32s
    parents: Int32s


def owned_blocks(
    block_parent: Int32s, own: Bools, member: Int32s, leaf: Int32s, row: Int32s
) -> tuple[Int32s, Arrays]:
    """Return the owner of each block of a shard, and the arrays by name for `number_blocks`.

    A block's owner is the request that has it first in the order of the files; -1 for the root and
    for copies of the trunk's blocks, whose entry in `own` is False. The shard has K paths: path k
    ends at `leaf[k]`, and is that of request `member[k]` (a number by arrival), in row `row[k]` of
    the files. Arrays (K): "new", the number of blocks that the request owns here; "above", the
    owner of the block above these; "last", the owner of the path's last block.
    """
    owner = np.full(len(block_parent), -1, dtype=np.int32)
    new, above = np.zeros((2, len(leaf)), dtype=np.int32)
    _find_owners(block_parent, own, leaf, np.argsort(row), owner, new, above)
    request = np.append(member, np.int32(-1))
    return request[owner], {"new": new, "above": request[above], "last": request[owner[leaf]]}


@kernel
def _find_owners(
    block_parent: Int32s,
    own: Bools,
    leaf: Int32s,
    order: Int64s,
    owner: Int32s,
    new: Int32s,
    above: Int32s,
) -> None:
    """Fill each block's `owner`: the first path with it in `order`, -1 where `own` is False.

    Per path, fill the number of `new` blocks that it owns, and the owner of the block `above` them.
    """
    for k in order:
        block = leaf[k]
        while own[block] and owner[block] < 0:
            owner[block] = k
            new[k] += 1
            block = block_parent[block]
        above[k] = owner[block]


def number_blocks(
    folders: list[Path], reduced: list[Path], blocks: Int32s, order: Int64s
) -> NumberedPaths:
    """Return the ends of R paths in one trie of all blocks; all 0 for more than 2^31 - 1 blocks.

    `folders` are those of the shards (see `build_shard`) and `reduced` those that `reduce_shard`
    wrote, with the arrays of `owned_blocks`: both with the trunk's first, then the others by
    number. `blocks` (R) has the prompts' lengths in blocks and `order` (R) the row of each request
    in the files, both in order of arrival.
    """
    # How many blocks of each request are in the trunk, and new in it or below it.
    in_trunk, new_in_trunk, new_below = np.zeros((3, len(blocks)), dtype=np.int32)
    in_trunk[load_array(folders[TRUNK], "request")] = load_array(folders[TRUNK], "length")
    for shard, (folder, reduction) in enumerate(zip(folders, reduced, strict=True)):
        new = new_in_trunk if shard == TRUNK else new_below
        new[load_array(folder, "request")] = load_array(reduction, "new")
    total = new_in_trunk + new_below
    by_row = np.argsort(order)
    begin = np.zeros(len(blocks), dtype=np.int64)
    begin[by_row] = 1 + np.cumsum(total[by_row], dtype=np.int64) - total[by_row]
    leaf, carried_leaf, parent = np.zeros((3, len(blocks)), dtype=np.int32)
    if total.sum(dtype=np.int64) > INT32_MAX:
        return NumberedPaths(leaf, carried_leaf, leaf[:0], leaf[:0])
    # The block of an owner at depth d has the number first_new[owner] + d, in the trunk or below.
    first_in_trunk = begin - (in_trunk - new_in_trunk)
    first_below = begin + new_in_trunk - (blocks - new_below)
    for shard, (folder, reduction) in enumerate(zip(folders, reduced, strict=True)):
        first_new = first_in_trunk if shard == TRUNK else first_below
        member, length, split = (load_array(folder, x) for x in ("request", "length", "split"))
        new, above, last = (load_array(reduction, x) for x in _OWNED)
        depth = length - new  # of the first new block
        parent_here = leaf[member]  # the end in the trunk, where a path goes on below it
        inside = np.flatnonzero((new > 0) & (depth > split))
        parent_here[inside] = first_new[above[inside]] + depth[inside] - 1
        begins = (new > 0) & ((shard == TRUNK) | (new_in_trunk[member] == 0))
        parent[member[begins]] = parent_here[begins]
        leaf[member] = first_new[last] + length - 1
        carried, owner, carried_depth = (load_array(reduction, x) for x in _CARRIED)
        carried_leaf[carried] = first_new[owner] + carried_depth - 1
    branching = by_row[total[by_row] > 0]
    return NumberedPaths(leaf, carried_leaf, begin[branching].astype(np.int32), parent[branching])

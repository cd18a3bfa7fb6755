"""Prefix trie of blocks: it numbers each block of the paths of hash ids that it interns.

Two requests share a block only if everything before it is the same too, so a block is the pair
(parent block, hash id), both in content-hashed and in prefix-chained traces.
"""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Int32s, Int64s, UInt32s, unsigned
from kvscope.core.jit import callable_in_kernels, kernel

_FIRST_CAPACITY = 1 << 22  # 84 MB of address space; only what is written to takes memory
_FIRST_SLOTS = 1 << 16


class Trie:
    """A growing prefix trie; block 0 is the root, blocks are numbered from 1 as they appear.

    Most blocks have one child, so each block points to its first child, and only further children
    are in a hash table: on real traces one lookup in twelve.
    """

    request_bytes = 400
    """Memory (bytes) that linking and storing takes per request, besides the trie; measured."""

    def __init__(self) -> None:
        self.count = 1  # nodes, the root included
        self._elsewhere = 0  # nodes that are in the hash table
        self._parent = np.zeros(_FIRST_CAPACITY, dtype=np.int32)
        self._depth = np.zeros(_FIRST_CAPACITY, dtype=np.int32)
        self._hash_id = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._first_child = np.zeros(_FIRST_CAPACITY, dtype=np.int32)
        self._slots = np.zeros(_FIRST_SLOTS, dtype=np.int32)

    @property
    def parent(self) -> Int32s:
        """Each block's parent, entry 0 being the root's own 0."""
        return self._parent[: self.count]

    @property
    def depth(self) -> Int32s:
        """Each block's position in its prompt, from 0; entry 0 is the root's and means nothing."""
        return self._depth[: self.count]

    @property
    def hash_id(self) -> Int64s:
        """Each block's hash id, entry 0 being the root's and meaning nothing."""
        return self._hash_id[: self.count]

    def close(self) -> None:
        """Release the hash table: no path can be interned or matched from now on."""
        self._first_child = self._slots = np.zeros(0, dtype=np.int32)

    def intern(self, starts: Int64s, ids: Int64s) -> Int32s:
        """Add the paths ids[starts[k]:starts[k + 1]]; return each one's last block, 0 if empty."""
        self._reserve(len(ids))
        leaf = np.zeros(len(starts) - 1, dtype=np.int32)
        self.count, self._elsewhere = _intern(
            starts, ids, *self._blocks(), self._depth, self.count, self._elsewhere, leaf
        )
        return leaf

    def match(self, starts: Int64s, ids: Int64s) -> tuple[Int32s, Int32s]:
        """Return the last block of each path's longest prefix in the trie, and the prefix's length.

        Both are 0 where the trie lacks the path's first block. The length is in blocks.
        """
        last, depth = np.zeros((2, len(starts) - 1), dtype=np.int32)
        _match(starts, ids, *self._blocks(), last, depth)
        return last, depth

    def _blocks(self) -> tuple[UInt32s, Int64s, UInt32s, UInt32s]:
        """Return the arrays of blocks (parents, hash ids, first children) and the hash table."""
        parent, child, slots = map(unsigned, (self._parent, self._first_child, self._slots))
        return parent, self._hash_id, child, slots

    def _reserve(self, more: int) -> None:
        """Make room for `more` blocks, so that the kernel never has to grow anything."""
        if self.count + more > len(self._parent):
            capacity = max(2 * len(self._parent), self.count + more)
            for name in ("_parent", "_depth", "_hash_id", "_first_child"):
                old = getattr(self, name)
                new = np.zeros(capacity, dtype=old.dtype)
                new[: self.count] = old[: self.count]
                setattr(self, name, new)
        needed = 2 * (self._elsewhere + more)
        if needed > len(self._slots):
            slots = np.zeros(1 << int(needed - 1).bit_length(), dtype=np.int32)
            parent, hash_id, _, old = self._blocks()
            _rehash(old, unsigned(slots), parent, hash_id)
            self._slots = slots


@callable_in_kernels
def _slot(parent: np.uint32, hash_id: int) -> np.uint64:
    """Return a hash of (parent, hash id); modulo the table's size, it is where a search starts.

    Source: the finalizer of splitmix64 (Steele, Lea & Flood, OOPSLA 2014).
    """
    x = np.uint64(hash_id) * np.uint64(0x9E3779B97F4A7C15)
    x ^= (np.uint64(parent) + np.uint64(0x7F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(29))


@callable_in_kernels
def _find(
    above: np.uint32, own_id: int, parent: UInt32s, hash_id: Int64s, slots: UInt32s, mask: np.uint64
) -> np.uint64:
    """Return the index in `slots` of the block (above, own_id), or of a 0 where it would be."""
    at = _slot(above, own_id) & mask
    block = slots[at]
    while block != 0 and (hash_id[block] != own_id or parent[block] != above):
        at = (at + np.uint64(1)) & mask
        block = slots[at]
    return at


@kernel
def _intern(
    starts: Int64s,
    ids: Int64s,
    parent: UInt32s,
    hash_id: Int64s,
    first_child: UInt32s,
    slots: UInt32s,
    depth: Int32s,
    count: int,
    elsewhere: int,
    leaf: Int32s,
) -> tuple[int, int]:
    """Add new blocks, fill `leaf`; return (blocks, root included; blocks in the table `slots`)."""
    mask = np.uint64(len(slots) - 1)
    for k in range(len(starts) - 1):
        above = np.uint32(0)
        for i in range(starts[k], starts[k + 1]):
            own_id = ids[i]
            block = first_child[above]
            if block == 0:
                first_child[above] = count
            elif hash_id[block] != own_id:
                at = _find(above, own_id, parent, hash_id, slots, mask)
                block = slots[at]
                if block == 0:
                    slots[at] = count
                    elsewhere += 1
            if block == 0:
                block = np.uint32(count)
                parent[block] = above
                hash_id[block] = own_id
                depth[block] = i - starts[k]
                count += 1
            above = block
        leaf[k] = above
    return count, elsewhere


@kernel
def _match(
    starts: Int64s,
    ids: Int64s,
    parent: UInt32s,
    hash_id: Int64s,
    first_child: UInt32s,
    slots: UInt32s,
    last: Int32s,
    depth: Int32s,
) -> None:
    """Fill `last` and `depth` with the end and length of each path's prefix in the trie."""
    mask = np.uint64(len(slots) - 1)
    for k in range(len(starts) - 1):
        above = np.uint32(0)
        for i in range(starts[k], starts[k + 1]):
            own_id = ids[i]
            block = first_child[above]
            if block != 0 and hash_id[block] != own_id:
                block = slots[_find(above, own_id, parent, hash_id, slots, mask)]
            if block == 0:
                break
            above = block
            depth[k] += 1
        last[k] = above


@kernel
def _rehash(old: UInt32s, new: UInt32s, parent: UInt32s, hash_id: Int64s) -> None:
    """Move every block of the table `old` into the larger, empty table `new`."""
    mask = np.uint64(len(new) - 1)
    for block in old:
        if block != 0:
            at = _slot(parent[block], hash_id[block]) & mask
            while new[at] != 0:
                at = (at + np.uint64(1)) & mask
            new[at] = block

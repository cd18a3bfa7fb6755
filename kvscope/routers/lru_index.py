"""LRU lists of the blocks sent to each replica: a router's guess of N caches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.routers.base import mix32

_FREE = -1


class LruIndex(NamedTuple):
    """N LRU lists of up to C blocks each, and a hash table from (block, replica) to list place.

    List `replica` has the C + 1 places from replica * (C + 1) on, and `sizes` (N) has its number of
    blocks. Per place: its block in `blocks`, -1 for a free place, and the neighbouring places in
    the list, `newer` and `older`. The last place of a list is its sentinel, whose `older` is the
    most recent block's place and whose `newer` the least recent one's. `table` has the place of
    each (block, replica) at the index of its hash or behind it, -1 where free; its size is a power
    of 2.
    """

    table: Int32s
    blocks: Int32s
    newer: Int32s
    older: Int32s
    sizes: Int64s


def empty_index(replicas: int, capacity: int) -> LruIndex:
    """Return `replicas` empty lists with room for `capacity` blocks each."""
    places = replicas * (capacity + 1)
    own = np.arange(places, dtype=np.int32)
    table = np.full(1 << (2 * places).bit_length(), _FREE, dtype=np.int32)
    blocks = np.full(places, _FREE, dtype=np.int32)
    return LruIndex(table, blocks, own, own.copy(), np.zeros(replicas, dtype=np.int64))


def find(index: LruIndex, replica: int, block: int) -> int:
    """Return the index in `table` of a replica's block, or of the free entry where it belongs."""
    places = len(index.blocks) // len(index.sizes)
    last = len(index.table) - 1
    at = mix32(block * len(index.sizes) + replica) & last
    while index.table[at] != _FREE:
        place = index.table[at]
        if index.blocks[place] == block and place // places == replica:
            break
        at = (at + 1) & last
    return at


def holds(index: LruIndex, replica: int, block: int) -> bool:
    """Return whether a replica's list has a block."""
    return bool(index.table[find(index, replica, block)] != _FREE)


def touch(index: LruIndex, replica: int, block: int) -> None:
    """Make a block a replica's most recent one; drop the least recent one if there is no room."""
    capacity = len(index.blocks) // len(index.sizes) - 1
    first = replica * (capacity + 1)
    sentinel = first + capacity
    at = find(index, replica, block)
    place = int(index.table[at])
    if place != _FREE:
        _unlink(index, place)
    else:
        if index.sizes[replica] < capacity:
            place = first + int(index.sizes[replica])
            index.sizes[replica] += 1
        else:
            place = int(index.newer[sentinel])
            _unlink(index, place)
            _forget(index, find(index, replica, int(index.blocks[place])))
            at = find(index, replica, block)
        index.blocks[place] = block
        index.table[at] = place
    latest = index.older[sentinel]
    index.older[sentinel] = place
    index.newer[place] = sentinel
    index.older[place] = latest
    index.newer[latest] = place


def clear(index: LruIndex, replica: int) -> None:
    """Empty the list of a replica."""
    capacity = len(index.blocks) // len(index.sizes) - 1
    first = replica * (capacity + 1)
    sentinel = first + capacity
    for place in range(first, first + int(index.sizes[replica])):
        _forget(index, find(index, replica, int(index.blocks[place])))
    index.blocks[first:sentinel] = _FREE
    index.newer[sentinel] = index.older[sentinel] = sentinel
    index.sizes[replica] = 0


def _unlink(index: LruIndex, place: int) -> None:
    newer, older = index.newer[place], index.older[place]
    index.older[newer] = older
    index.newer[older] = newer


def _forget(index: LruIndex, at: int) -> None:
    """Free an entry of the table, and move entries that had collided with it closer to their hash.

    Source: Knuth, The Art of Computer Programming 3, section 6.4, algorithm R.
    """
    places = len(index.blocks) // len(index.sizes)
    last = len(index.table) - 1
    free = at
    while True:
        at = (at + 1) & last
        place = index.table[at]
        if place == _FREE:
            break
        block, replica = int(index.blocks[place]), place // places
        home = mix32(block * len(index.sizes) + replica) & last
        if ((at - home) & last) >= ((at - free) & last):
            index.table[free] = place
            free = at
    index.table[free] = _FREE

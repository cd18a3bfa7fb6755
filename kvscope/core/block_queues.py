"""Queues of blocks in arrays: doubly linked lists, and ring buffers, which are twice as fast.

Lists: `links` (int32) has a row for each block: AFTER and BEFORE, its neighbours; WHERE, its list,
or NOWHERE; MARK, a small number for the policy. Row -1 - k is the sentinel of list k: its AFTER is
the oldest block, its MARK the length.

Rings: blocks enter at the young end and leave at the old end. `rings` (int32) has a row for each
ring: YOUNG and OLD, the counts of slots filled and emptied so far; HOLES, the slots of forgotten
blocks in between; MASK, the number of slots (a power of two) less 1; then the slots. Row NOTES has
a number for each block: at least 0, it is the policy's own; below 0, it is -1 - the block's slot,
by which `ring_forget` removes the block from the middle.
"""

from __future__ import annotations

from kvscope.core.arrays import Int32s

AFTER, BEFORE, WHERE, MARK = 0, 1, 2, 3
NOWHERE = -1
YOUNG, OLD, HOLES, MASK, SLOTS = 0, 1, 2, 3, 4
NOTES = -1
_HOLE = -1


def push(links: Int32s, queue: int, block: int) -> None:
    """Put a block that is in no list at the young end of list `queue`."""
    close = -1 - queue
    last = links[close, BEFORE]
    links[last, AFTER] = block
    links[block, BEFORE] = last
    links[block, AFTER] = close
    links[block, WHERE] = queue
    links[close, BEFORE] = block
    links[close, MARK] += 1


def remove(links: Int32s, block: int) -> None:
    """Take a block out of the list that it is in."""
    before, after = links[block, BEFORE], links[block, AFTER]
    links[before, AFTER] = after
    links[after, BEFORE] = before
    links[-1 - links[block, WHERE], MARK] -= 1
    links[block, WHERE] = NOWHERE


def oldest(links: Int32s, queue: int) -> int:
    """Return the block at the old end of a list that is not empty."""
    return int(links[-1 - queue, AFTER])


def length(links: Int32s, queue: int) -> int:
    """Return the number of blocks in a list."""
    return int(links[-1 - queue, MARK])


def ring_push(rings: Int32s, queue: int, block: int) -> None:
    """Put a block at the young end of ring `queue`, which must have an empty slot."""
    young = rings[queue, YOUNG]
    rings[queue, YOUNG] = young + 1
    rings[queue, SLOTS + (young & rings[queue, MASK])] = block


def ring_remember(rings: Int32s, queue: int, block: int) -> None:
    """Put a block at the young end of a ring (a full one loses its holes); note its slot."""
    if rings[queue, YOUNG] - rings[queue, OLD] > rings[queue, MASK]:
        _close_up(rings, queue)
    rings[NOTES, block] = -1 - (rings[queue, YOUNG] & rings[queue, MASK])
    ring_push(rings, queue, block)


def ring_forget(rings: Int32s, queue: int, block: int) -> None:
    """Remove a block that `ring_remember` put into the ring; set its number in NOTES to 0."""
    rings[queue, SLOTS - 1 - rings[NOTES, block]] = _HOLE
    rings[queue, HOLES] += 1
    rings[NOTES, block] = 0


def ring_take(rings: Int32s, queue: int) -> int:
    """Take the oldest block out of a ring that is not empty; its number in NOTES stays as it is."""
    block = _empty_slot(rings, queue)
    while block == _HOLE:
        rings[queue, HOLES] -= 1
        block = _empty_slot(rings, queue)
    return block


def ring_length(rings: Int32s, queue: int) -> int:
    """Return the number of blocks in a ring."""
    return int(rings[queue, YOUNG] - rings[queue, OLD] - rings[queue, HOLES])


def _empty_slot(rings: Int32s, queue: int) -> int:
    """Empty the oldest slot and return its block, `_HOLE` if the block was forgotten."""
    old = rings[queue, OLD]
    rings[queue, OLD] = old + 1
    return int(rings[queue, SLOTS + (old & rings[queue, MASK])])


def _close_up(rings: Int32s, queue: int) -> None:
    """Remove the holes of forgotten blocks from a ring: push every block again, in order."""
    for _ in range(rings[queue, YOUNG] - rings[queue, OLD]):
        block = _empty_slot(rings, queue)
        if block == _HOLE:
            rings[queue, HOLES] -= 1
        else:
            rings[NOTES, block] = -1 - (rings[queue, YOUNG] & rings[queue, MASK])
            ring_push(rings, queue, block)

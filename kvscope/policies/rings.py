"""Queues of blocks in arrays, for the policies that take blocks from the old end alone.

Twice as fast as linked lists, which can also give a block from the middle. `rings` (int32) has a
row a queue, then a last one with a number a block, the policy's own: at least 0, or below that the
place of a block in a queue that can forget it. A queue's row has YOUNG and OLD, how often a slot
was filled and given up; HOLES, how many slots in between were forgotten; MASK, the slots less one,
as many as a power of two; then the slots, which are filled round and round.
"""

from __future__ import annotations

from kvscope.policies.base import Ints

YOUNG, OLD, HOLES, MASK, SLOTS = 0, 1, 2, 3, 4
NOTES = -1
_HOLE = -1


def push(rings: Ints, queue: int, block: int) -> None:
    """Put a block at the young end of `queue`."""
    young = rings[queue, YOUNG]
    rings[queue, YOUNG] = young + 1
    rings[queue, SLOTS + (young & rings[queue, MASK])] = block


def remember(rings: Ints, queue: int, block: int) -> None:
    """The same in a queue that may forget blocks; until then its number is below 0."""
    if rings[queue, YOUNG] - rings[queue, OLD] > rings[queue, MASK]:
        _close_up(rings, queue)
    rings[NOTES, block] = -1 - (rings[queue, YOUNG] & rings[queue, MASK])
    push(rings, queue, block)


def forget(rings: Ints, queue: int, block: int) -> None:
    """Take a remembered block out, wherever it is; its number is 0 again."""
    rings[queue, SLOTS - 1 - rings[NOTES, block]] = _HOLE
    rings[queue, HOLES] += 1
    rings[NOTES, block] = 0


def take(rings: Ints, queue: int) -> int:
    """Take the oldest block out of a queue that is not empty."""
    block = _give_up(rings, queue)
    while block == _HOLE:
        rings[queue, HOLES] -= 1
        block = _give_up(rings, queue)
    return block


def length(rings: Ints, queue: int) -> int:
    """How many blocks a queue has."""
    return int(rings[queue, YOUNG] - rings[queue, OLD] - rings[queue, HOLES])


def _give_up(rings: Ints, queue: int) -> int:
    """What was in the oldest slot: a block or a hole."""
    old = rings[queue, OLD]
    rings[queue, OLD] = old + 1
    return int(rings[queue, SLOTS + (old & rings[queue, MASK])])


def _close_up(rings: Ints, queue: int) -> None:
    """Push every block again, so that the holes that forgotten ones have left are gone."""
    for _ in range(rings[queue, YOUNG] - rings[queue, OLD]):
        block = _give_up(rings, queue)
        if block == _HOLE:
            rings[queue, HOLES] -= 1
        else:
            rings[NOTES, block] = -1 - (rings[queue, YOUNG] & rings[queue, MASK])
            push(rings, queue, block)

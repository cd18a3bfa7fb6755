"""Doubly linked lists of blocks, for the policies that are queues.

`links` (int32) has a row a block: AFTER and BEFORE, the neighbours; WHERE, the list that it is in,
or NOWHERE; MARK, a small number that is the policy's own. List k is closed by row -1 - k, whose
AFTER is the oldest block and whose MARK is the length.
"""

from __future__ import annotations

from kvscope.policies.base import Ints

AFTER, BEFORE, WHERE, MARK = 0, 1, 2, 3
NOWHERE = -1


def push(links: Ints, queue: int, block: int) -> None:
    """Put a block that is in no list at the young end of `queue`."""
    close = -1 - queue
    last = links[close, BEFORE]
    links[last, AFTER] = block
    links[block, BEFORE] = last
    links[block, AFTER] = close
    links[block, WHERE] = queue
    links[close, BEFORE] = block
    links[close, MARK] += 1


def remove(links: Ints, block: int) -> None:
    """Take a block out of the list that it is in."""
    before, after = links[block, BEFORE], links[block, AFTER]
    links[before, AFTER] = after
    links[after, BEFORE] = before
    links[-1 - links[block, WHERE], MARK] -= 1
    links[block, WHERE] = NOWHERE


def oldest(links: Ints, queue: int) -> int:
    """The block at the old end of a list that is not empty."""
    return int(links[-1 - queue, AFTER])


def length(links: Ints, queue: int) -> int:
    """How many blocks a list has."""
    return int(links[-1 - queue, MARK])

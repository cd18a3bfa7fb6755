"""Published algorithms on queues of blocks, which know nothing of prefixes."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.block_queues import (
    AFTER,
    MARK,
    NOTES,
    WHERE,
    length,
    oldest,
    push,
    remove,
    ring_forget,
    ring_length,
    ring_push,
    ring_remember,
    ring_take,
)
from kvscope.core.parameters import Parameter
from kvscope.policies.base import QueuePolicy

_ALL = 0


class Fifo(QueuePolicy):
    """Evict the block that was inserted first, touched or not."""

    name = "fifo"
    summary = "first in, first out"
    source = "classic"
    rings = 1

    @staticmethod
    def hit(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Change nothing."""

    @staticmethod
    def insert(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Put the block at the end of the queue."""
        ring_push(links, _ALL, block)

    @staticmethod
    def evict(links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> int:
        """Evict the head of the queue."""
        return ring_take(links, _ALL)


_HAND = 0


class Sieve(QueuePolicy):
    """Sweep a hand from old to young: it spares visited blocks once and evicts the first unvisited.

    `numbers[0]` is the block at the hand plus 1; 0 sends it to the old end.
    Source: Zhang et al., NSDI'24, Algorithm 1.
    """

    name = "sieve"
    summary = "a hand sweeps from old to young and spares what was used"
    source = "NSDI'24"
    numbers = 1
    scales = False  # a sample's error does not always hold: docs/evidence/sampling.md

    @staticmethod
    def hit(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Mark the block as visited."""
        links[block, MARK] = 1

    @staticmethod
    def insert(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Put the block at the young end, not visited."""
        links[block, MARK] = 0
        push(links, _ALL, block)

    @staticmethod
    def evict(links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> int:
        """Evict the first block from the hand on that was not visited since the hand passed."""
        block = int(numbers[_HAND]) - 1
        if block < 0:
            block = oldest(links, _ALL)
        while links[block, MARK] == 1:
            links[block, MARK] = 0
            block = int(links[block, AFTER])
            if block < 0:
                block = oldest(links, _ALL)
        following = int(links[block, AFTER])
        numbers[_HAND] = 0 if following < 0 else following + 1
        remove(links, block)
        return block


_SMALL, _MAIN, _GHOST = 0, 1, 2
_SHARE = 0
_MOST_USES = 3
_PROMOTING_USES = 2


class S3Fifo(QueuePolicy):
    """New blocks enter a small queue; used twice there, or remembered as a ghost, they reach main.

    While the small queue is above its share of the capacity, its oldest block is evicted and
    remembered as a ghost, as many as main can hold; a block used more than once moves to main
    instead. Main spares a used block for another round. Uses count up to 3.
    Source: Yang et al., FIFO Queues are All You Need for Cache Eviction, SOSP'23, Algorithm 1.
    """

    name = "s3fifo"
    summary = "small, main and ghost queues"
    source = "SOSP'23"
    rings = 3
    parameters = (
        Parameter("small_share", 0.1, "share of the capacity that is the small queue's", high=1.0),
    )

    @staticmethod
    def hit(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Count the use."""
        if links[NOTES, block] < _MOST_USES:
            links[NOTES, block] += 1

    @staticmethod
    def insert(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Put the block into main if it is remembered, else into the small queue."""
        if links[NOTES, block] < 0:
            ring_forget(links, _GHOST, block)
            ring_push(links, _MAIN, block)
        else:
            ring_push(links, _SMALL, block)

    @staticmethod
    def evict(links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> int:
        """Evict from the small queue while it is too large, else from main."""
        small = max(int(capacity * p[_SHARE]), 1)
        while True:
            if ring_length(links, _SMALL) > small or ring_length(links, _MAIN) == 0:
                block = ring_take(links, _SMALL)
                if links[NOTES, block] >= _PROMOTING_USES:
                    links[NOTES, block] = 0
                    ring_push(links, _MAIN, block)
                    continue
                ring_remember(links, _GHOST, block)
                if ring_length(links, _GHOST) > capacity - small:
                    links[NOTES, ring_take(links, _GHOST)] = 0
                return block
            block = ring_take(links, _MAIN)
            if links[NOTES, block] == 0:
                return block
            links[NOTES, block] -= 1
            ring_push(links, _MAIN, block)


_ONCE, _OFTEN, _ONCE_GHOST, _OFTEN_GHOST = 0, 1, 2, 3
_TARGET = 0


class Arc(QueuePolicy):
    """Two LRU lists, of blocks touched once and touched more often; ghosts set their target sizes.

    `numbers[0]` is p of the paper, the target size of the first list: a returning ghost of the
    first list raises it, one of the second lowers it. Ghosts of the first list are remembered while
    that list and they are at most the capacity; ghosts of the second while all four lists are at
    most twice the capacity. Differs from the paper, which makes room before it inserts, in two
    points: all blocks of a request enter first, and eviction follows; and REPLACE ignores the case
    |T1| = p for a ghost of the second list.
    Source: Megiddo & Modha, FAST'03, Figure 4.
    """

    name = "arc"
    summary = "recency and frequency, balanced by ghosts"
    source = "FAST'03"
    lists = 4
    numbers = 1

    @staticmethod
    def hit(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Move the block to the young end of the frequent list."""
        remove(links, block)
        push(links, _OFTEN, block)

    @staticmethod
    def insert(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Put a new block on the first list; a ghost moves the target, joins the frequent list."""
        ghosts = links[block, WHERE]
        if ghosts < 0:
            push(links, _ONCE, block)
            return
        once, often = length(links, _ONCE_GHOST), length(links, _OFTEN_GHOST)
        if ghosts == _ONCE_GHOST:
            step = max(often / once, 1.0)
            numbers[_TARGET] = min(numbers[_TARGET] + step, float(capacity))
        else:
            step = max(once / often, 1.0)
            numbers[_TARGET] = max(numbers[_TARGET] - step, 0.0)
        remove(links, block)
        push(links, _OFTEN, block)

    @staticmethod
    def evict(links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> int:
        """Evict the oldest block of the first list above its target, else of the frequent one."""
        once = length(links, _ONCE)
        from_once = length(links, _OFTEN) == 0 or (once > 0 and once > numbers[_TARGET])
        block = oldest(links, _ONCE if from_once else _OFTEN)
        remove(links, block)
        push(links, _ONCE_GHOST if from_once else _OFTEN_GHOST, block)
        while (
            length(links, _ONCE_GHOST) > 0
            and length(links, _ONCE) + length(links, _ONCE_GHOST) > capacity
        ):
            remove(links, oldest(links, _ONCE_GHOST))
        cached = length(links, _ONCE) + length(links, _OFTEN)
        remembered = length(links, _ONCE_GHOST) + length(links, _OFTEN_GHOST)
        while cached + remembered > 2 * capacity and length(links, _OFTEN_GHOST) > 0:
            remove(links, oldest(links, _OFTEN_GHOST))
            remembered -= 1
        return block

"""S3-FIFO: a small queue filters what enters the main one."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.block_queues import (
    NOTES,
    ring_forget,
    ring_length,
    ring_push,
    ring_remember,
    ring_take,
)
from kvscope.core.parameters import Parameter
from kvscope.policies.base import QueuePolicy

_SMALL, _MAIN, _GHOST = 0, 1, 2
_SHARE = 0
_MOST_USES = 3
_PROMOTING_USES = 2


class S3Fifo(QueuePolicy):
    """New blocks enter a small queue; used twice there, or remembered as a ghost, they reach main.

    While the small queue is above its share of the capacity, its oldest block is evicted and
    remembered, as many as main can hold; a block used more than once moves to main instead.
    Main spares a used block for another round. Uses count up to 3.
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

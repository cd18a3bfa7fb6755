"""S3-FIFO: a small queue filters what the main one keeps."""

from __future__ import annotations

from kvscope.policies.base import Floats, Ints, Parameter, QueuePolicy
from kvscope.policies.rings import NOTES, forget, length, push, remember, take

_SMALL, _MAIN, _GHOST = 0, 1, 2
_SHARE = 0
_MOST_USES = 3
_PROMOTING_USES = 2


class S3Fifo(QueuePolicy):
    """New blocks pass a small queue; used twice there, or remembered as a ghost, they reach main.

    While the small queue is above its share of the capacity it gives the victim: a block used more
    than once moves to main instead, the others leave and are remembered, as many as main can hold.
    Main gives blocks that were used another round. Uses count up to 3.
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
    def hit(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """Count the use."""
        if links[NOTES, block] < _MOST_USES:
            links[NOTES, block] += 1

    @staticmethod
    def insert(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """Into main if it is remembered, else into the small queue."""
        if links[NOTES, block] < 0:
            forget(links, _GHOST, block)
            push(links, _MAIN, block)
        else:
            push(links, _SMALL, block)

    @staticmethod
    def evict(links: Ints, numbers: Floats, capacity: int, p: Floats) -> int:
        """From the small queue while it is too large, else from main."""
        small = max(int(capacity * p[_SHARE]), 1)
        while True:
            if length(links, _SMALL) > small or length(links, _MAIN) == 0:
                block = take(links, _SMALL)
                if links[NOTES, block] >= _PROMOTING_USES:
                    links[NOTES, block] = 0
                    push(links, _MAIN, block)
                    continue
                remember(links, _GHOST, block)
                if length(links, _GHOST) > capacity - small:
                    links[NOTES, take(links, _GHOST)] = 0
                return block
            block = take(links, _MAIN)
            if links[NOTES, block] == 0:
                return block
            links[NOTES, block] -= 1
            push(links, _MAIN, block)

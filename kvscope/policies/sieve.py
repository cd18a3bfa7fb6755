"""SIEVE: a queue that a hand sweeps, and nothing ever moves."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.block_queues import AFTER, MARK, oldest, push, remove
from kvscope.policies.base import QueuePolicy

_ALL, _HAND = 0, 0


class Sieve(QueuePolicy):
    """Sweep a hand from old to young: it spares visited blocks once and evicts the first other.

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

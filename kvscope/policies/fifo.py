"""First in, first out."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.block_queues import ring_push, ring_take
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

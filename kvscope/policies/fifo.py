"""First in, first out."""

from __future__ import annotations

from kvscope.policies.base import Floats, Ints, QueuePolicy
from kvscope.policies.rings import push, take

_ALL = 0


class Fifo(QueuePolicy):
    """Whatever was inserted first leaves first, touched or not."""

    name = "fifo"
    summary = "first in, first out"
    source = "classic"
    rings = 1

    @staticmethod
    def hit(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """A touch changes nothing."""

    @staticmethod
    def insert(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """To the end of the queue."""
        push(links, _ALL, block)

    @staticmethod
    def evict(links: Ints, numbers: Floats, capacity: int, p: Floats) -> int:
        """The head of the queue."""
        return take(links, _ALL)

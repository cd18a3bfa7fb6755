"""ARC: recency and frequency, balanced by what each would have hit."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.block_queues import WHERE, length, oldest, push, remove
from kvscope.policies.base import QueuePolicy

_ONCE, _OFTEN, _ONCE_GHOST, _OFTEN_GHOST = 0, 1, 2, 3
_TARGET = 0


class Arc(QueuePolicy):
    """Blocks touched once and blocks touched more often, in two LRU lists; ghosts move the border.

    `numbers[0]` is p of the paper, the target size of the first list: a ghost of its own that
    returns raises it, a ghost of the other lowers it. Ghosts of the first list are remembered while
    it and they are at most the capacity, all four lists while they are at most twice that.
    Differs in one point: the paper makes room before it inserts; here all blocks of a request enter
    first, and eviction follows.
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
        """Let a ghost that returns move the border and join the frequent list; others are new."""
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

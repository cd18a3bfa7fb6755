"""ARC: recency and frequency, balanced by what each would have hit."""

from __future__ import annotations

from kvscope.policies.base import Floats, Ints, QueuePolicy
from kvscope.policies.lists import WHERE, length, oldest, push, remove

_ONCE, _OFTEN, _ONCE_GHOST, _OFTEN_GHOST = 0, 1, 2, 3
_TARGET = 0


class Arc(QueuePolicy):
    """Blocks seen once and blocks seen more often, in two LRU lists; ghosts move the border.

    `numbers[0]` is p of the paper, the size aimed at for the blocks seen once: a ghost of theirs
    that returns raises it, a ghost of the others lowers it. Ghosts of blocks seen once are kept
    while both of their lists hold at most the capacity, all four lists at most twice.
    Differs in one point: the paper makes room before it inserts; here a request's blocks all enter
    first (section "Order of events" of the replay), and eviction follows.
    Source: Megiddo & Modha, FAST'03, Figure 4.
    """

    name = "arc"
    summary = "recency and frequency, balanced by ghosts"
    source = "FAST'03"
    lists = 4
    numbers = 1

    @staticmethod
    def hit(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """Seen again: to the young end of the frequent ones."""
        remove(links, block)
        push(links, _OFTEN, block)

    @staticmethod
    def insert(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """A ghost that returns moves the border and is frequent; any other block is seen once."""
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
    def evict(links: Ints, numbers: Floats, capacity: int, p: Floats) -> int:
        """The oldest block seen once while they exceed their target, else the oldest frequent."""
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

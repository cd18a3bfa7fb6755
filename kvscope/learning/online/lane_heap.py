"""Which lane of free blocks gives the next one: that whose oldest block is worth least.

Lanes stand in a heap by the worth of their oldest block, so that taking one asks for one score, and
for none where the next block was freed together with it. Worths change as time passes. Most
policies' do so all the time: then all lanes are scored anew for the first block of a step. Those of
a `stepwise` policy hold until a time that it tells: then the heap outlives the step, and a lane is
scored again when its time has come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, TypeAlias

from kvscope.policies.base import Floats

Score: TypeAlias = Callable[[int, float], float]
Entry: TypeAlias = tuple[float, int, int]  # worth, how manieth it was freed, lane

EARLY = 1.0 - 1e-9  # a time that is told may be a rounding off
_SPARE = 64


class Ring:
    """The place before a list's first block and behind its last one."""

    __slots__ = ("next_free_block", "prev_free_block")

    def __init__(self) -> None:
        self.next_free_block: Any = self
        self.prev_free_block: Any = self

    def __iter__(self) -> Iterator[Any]:
        block = self.next_free_block
        while block is not self:
            yield block
            block = block.next_free_block


class Standings:
    """Lanes by the worth of their oldest block; of equals the one freed first.

    `freed` has for each block the how manieth it was when it was freed, `freed_s` the time; at
    `now_s` worths are asked for. `changed` are the lanes whose oldest block may be another than
    when they were scored: whoever changes a list adds it. `next_step_s` is a stepwise policy's.
    """

    def __init__(
        self,
        lanes: list[Ring],
        freed: list[int],
        freed_s: list[float],
        score: Score,
        next_step_s: Callable[[float], float] | None,
    ) -> None:
        self.changed: set[int] = set()
        self._all_changed = False
        self.now_s = 0.0
        self._lanes, self._freed, self._freed_s = lanes, freed, freed_s
        self._score, self._next_step_s = score, next_step_s
        self._heap: list[Entry] = []
        self._stands: dict[int, Entry] = {}  # the entry that counts of each lane
        self._scored: dict[int, tuple[float, float, float]] = {}  # freed when, worth, until when
        self._soonest_s = math.inf  # before it no worth changes

    def at(self, now_s: float) -> None:
        """It is now so late; worths are the same until this is called again."""
        self.now_s = now_s
        if self._next_step_s is None:
            self.anew()
        elif now_s >= self._soonest_s:
            self._soonest_s = math.inf
            for lane, (_, _, until_s) in list(self._scored.items()):
                if until_s <= now_s:
                    del self._scored[lane]
                    self.changed.add(lane)
                else:
                    self._soonest_s = min(self._soonest_s, until_s)

    def anew(self) -> None:
        """No score counts any more, as with another table."""
        self._scored.clear()
        self._soonest_s = math.inf
        self.look_again()

    def look_again(self) -> None:
        """Every lane's oldest block may be another."""
        self._all_changed = True

    def unsettled(self) -> set[int]:
        """The lanes that are scored for the next block; their oldest blocks may be set aside."""
        if self._all_changed:
            self._all_changed = False
            self.changed.update(range(len(self._lanes)))
        return self.changed

    def first(self) -> Any:
        """The oldest block of the lane where that one is worth least; None if there is none."""
        heap, stands, changed = self._heap, self._stands, self.changed
        if self._all_changed:
            self.unsettled()
        while changed:
            self._stand(heap, changed.pop())
        while heap:
            entry = heap[0]
            if stands.get(entry[2]) is entry:
                return self._lanes[entry[2]].next_free_block
            heappop(heap)  # another entry has taken its place
        return None

    def _stand(self, heap: list[Entry], lane: int) -> None:
        """Put a lane where its oldest block belongs."""
        block = self._lanes[lane].next_free_block
        if type(block) is Ring:  # it is empty
            self._stands.pop(lane, None)
            return
        at = block.block_id
        since_s, known = self._freed_s[at], self._scored.get(lane)
        worth = known[1] if known and known[0] == since_s else self._worth(lane, since_s)
        entry, before = (worth, self._freed[at], lane), self._stands.get(lane)
        self._stands[lane] = entry
        if heap and heap[0] is before:
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 2 * len(self._stands) + _SPARE:
            heap[:] = self._stands.values()
            heapify(heap)

    def _worth(self, lane: int, since_s: float) -> float:
        idle_s = self.now_s - since_s
        worth, until_s = self._score(lane, idle_s), math.inf
        if self._next_step_s is not None:
            until_s = since_s + self._next_step_s(idle_s) * EARLY
            self._soonest_s = min(self._soonest_s, until_s)
        self._scored[lane] = since_s, worth, until_s
        return worth


class Scores(dict[tuple[int, int], float]):
    """A policy's table as scores read it: on single numbers several times as fast as an array.

    `steady` where no row has two different numbers: nothing is worth more or less as it ages.
    """

    def __init__(self, table: Floats) -> None:
        rows = enumerate(table.tolist())
        super().__init__({(row, at): one for row, told in rows for at, one in enumerate(told)})
        self.steady = bool((table == table[:, :1]).all())

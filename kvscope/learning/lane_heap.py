"""Choose the lane of free blocks to evict from: the one whose oldest block is worth least.

Lanes lie in a heap by the worth of their oldest block, so that taking a block computes one score,
and none where the next block was freed together with it. Worths change as time passes. Most
policies' do so all the time: then all lanes are scored anew for the first block of a step. Those of
a `stepwise` policy hold until `next_step_s`: then the heap outlives the step, and a lane is scored
again when its time has come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, TypeAlias

from kvscope.policies.base import Floats

Score: TypeAlias = Callable[[int, float], float]
Entry: TypeAlias = tuple[float, int, int]  # worth, free-sequence number, lane

EARLY = 1.0 - 1e-9  # `next_step_s` may be a rounding off
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


class LaneHeap:
    """Lanes by the worth of their oldest block at `now_s`; of equals the one freed first.

    `freed` has each block's free-sequence number, `freed_s` the time. A caller that changes the
    front of a lane adds it to `changed`. `next_step_s` is a stepwise policy's.
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
        self._entries: dict[int, Entry] = {}  # the valid one of each lane
        self._scored: dict[int, tuple[float, float, float]] = {}  # (freed at, worth, valid until)
        self._soonest_s = math.inf  # before it no worth changes

    def at(self, now_s: float) -> None:
        """Advance the clock; worths are the same until the next call."""
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
        """Drop all scores, as after a refit of the table."""
        self._scored.clear()
        self._soonest_s = math.inf
        self.look_again()

    def look_again(self) -> None:
        """Note that every lane's oldest block may be another."""
        self._all_changed = True

    def unsettled(self) -> set[int]:
        """Return the lanes to score for the next block; their oldest blocks may be set aside."""
        if self._all_changed:
            self._all_changed = False
            self.changed.update(range(len(self._lanes)))
        return self.changed

    def first(self) -> Any:
        """Return the oldest block of the lane where it is worth least, None for no block."""
        heap, entries, changed = self._heap, self._entries, self.changed
        if self._all_changed:
            self.unsettled()
        while changed:
            self._rank(heap, changed.pop())
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return self._lanes[entry[2]].next_free_block
            heappop(heap)  # another entry has taken its place
        return None

    def _rank(self, heap: list[Entry], lane: int) -> None:
        """Put a lane where its oldest block belongs."""
        block = self._lanes[lane].next_free_block
        if type(block) is Ring:  # it is empty
            self._entries.pop(lane, None)
            return
        at = block.block_id
        since_s, known = self._freed_s[at], self._scored.get(lane)
        worth = known[1] if known and known[0] == since_s else self._worth(lane, since_s)
        entry, before = (worth, self._freed[at], lane), self._entries.get(lane)
        self._entries[lane] = entry
        if heap and heap[0] is before:
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 2 * len(self._entries) + _SPARE:
            heap[:] = self._entries.values()
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

    `steady`: no row has two different numbers, so no worth changes with age.
    """

    def __init__(self, table: Floats) -> None:
        rows = enumerate(table.tolist())
        super().__init__(
            {(row, at): worth for row, cells in rows for at, worth in enumerate(cells)}
        )
        self.steady = bool((table == table[:, :1]).all())

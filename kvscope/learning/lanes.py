"""Lanes (queues of blocks): where the blocks of a request go, and which lane to evict from.

An engine's free blocks and the shadow caches both evict from the lane whose oldest block is worth
least (has the lowest score). Lanes lie in a heap by that worth. Most policies' worths change all
the time: then all lanes are scored anew for the first block of a step. Those of a `stepwise` policy
hold until `next_step_s`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence, Sized
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, TypeAlias

from kvscope.core.arrays import Float64s
from kvscope.policies.base import EARLY, LanePolicy, Turn

LanePlan: TypeAlias = tuple[tuple[int, int], ...]
"""The lanes of a path, as steps (depth where the lane begins, lane) from the deep end on.

A block is in the lane of the first step whose depth lies before the block's end. The last depth is
0. Depths are in blocks or in tokens, as the caller counts.
"""


def lane_plan(
    policy: LanePolicy, turn: Turn, blocks: int, cuts: Sequence[int], block_size: int, p: Any
) -> LanePlan:
    """Return the lanes in which the policy places the `blocks` of a request's path.

    `turn` has the request's class. Ascending `cuts` (depths in blocks) divide the path into parts;
    each part of a class has a category of its own (see `Tables.classes`). `p` has the values of the
    policy's parameters, as `Policy.settings` returns them.
    """
    plan: list[tuple[int, int]] = []
    parts, end = len(cuts) + 1, max(blocks, 1)
    for part in range(len(cuts), -1, -1):
        cut = cuts[part - 1] if part else 0
        if end <= cut:
            continue
        of_part = _in_part(turn, parts, part)
        while end > cut:
            begin, lane = policy.place(of_part, end, block_size, p)
            end = max(begin, cut)
            plan.append((end, lane))
    return tuple(plan)


def head_lane(policy: LanePolicy, turn: Turn, cuts: Sequence[int], block_size: int, p: Any) -> int:
    """Return the lane of blocks that are needed again, at depth 0; arguments as in `lane_plan`."""
    of_part = _in_part(turn, len(cuts) + 1, bisect_right(cuts, 0))
    return policy.place(of_part, 0, block_size, p)[1]


def _in_part(turn: Turn, parts: int, part: int) -> Turn:
    if parts == 1:
        return turn
    number = turn.category * parts + part
    return Turn(  # a third of the time of `_replace`
        turn.request, turn.arrival_s, turn.history_tokens, number, turn.next_prompt_tokens
    )


def lane_at(plan: LanePlan, end: int) -> tuple[int, int]:
    """Return the step (depth where the lane begins, lane) of `plan` for the block before `end`."""
    for step in plan:
        if end > step[0]:
            return step
    return plan[-1]


Score: TypeAlias = Callable[[int, float], float]
Entry: TypeAlias = tuple[float, int, int]  # worth, number by age, lane

_SPARE = 64


class LaneHeap:
    """Lanes ordered by the worth (score) of their oldest block at `now_s`, then by its age number.

    `oldest(lane)` returns (age number, time in s since when it is idle) of a lane's oldest block,
    None for an empty lane; the lower number is older. `score(lane, idle_s)` returns that block's
    worth. A caller that changes the oldest block of a lane adds the lane to `changed`;
    `all_changed` stands for every lane. `next_step_s` is a stepwise policy's, else None; `steady`
    says that no lane's worth changes at all.
    """

    def __init__(
        self,
        lanes: Sized,
        oldest: Callable[[int], tuple[int, float] | None],
        score: Score,
        next_step_s: Callable[[float], float] | None,
    ) -> None:
        self.changed: set[int] = set()
        self.all_changed = False
        self.now_s = 0.0
        self.steady = False
        self._lanes, self._oldest = lanes, oldest
        self._score, self._next_step_s = score, next_step_s
        self._heap: list[Entry] = []
        self._entries: dict[int, Entry] = {}  # the valid one of each lane
        self._scored: dict[int, tuple[float, float, float]] = {}  # (idle since, worth, until)
        self._soonest_s = math.inf  # before it no worth changes

    def at(self, now_s: float) -> None:
        """Advance the clock; worths stay the same until the next call."""
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
        """Note that the oldest block of any lane may have changed."""
        self.all_changed = True

    def unsettled(self) -> set[int]:
        """Return the lanes that `first` will score anew: their oldest blocks may have changed.

        A caller that must not evict some blocks, such as those with cached children, removes them
        where they are the oldest of these lanes before it calls `first`. Others need no call:
        `first` makes it.
        """
        if self.all_changed:
            self.all_changed = False
            self.changed.update(range(len(self._lanes)))
        return self.changed

    def first(self) -> Entry | None:
        """Return (worth, age number, lane) of the oldest block worth least, None without one."""
        heap, entries, changed = self._heap, self._entries, self.changed
        if self.all_changed:
            self.unsettled()
        while changed:
            self._rank(heap, changed.pop())
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry
            heappop(heap)  # another entry has taken its place
        return None

    def limit(self) -> float:
        """Return the age number below which blocks of the lane that `first` returned go first.

        A block of equal worth in another lane may have this number; infinity if none has. The
        caller can take blocks with lower numbers, idle since the same time as the returned one,
        without another call of `first`.
        """
        following = min(self._heap[1:3], default=None)  # another one's, or one that is out of date
        return following[1] if following and following[0] == self._heap[0][0] else math.inf

    def _rank(self, heap: list[Entry], lane: int) -> None:
        """Put a lane into the heap by its oldest block's worth."""
        oldest = self._oldest(lane)
        if oldest is None:
            self._entries.pop(lane, None)
            return
        number, since_s = oldest
        known = self._scored.get(lane)
        if known and (known[0] == since_s or self.steady):
            worth = known[1]
        else:
            worth = self._worth(lane, since_s)
        entry, before = (worth, number, lane), self._entries.get(lane)
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
        if self._next_step_s is not None and not self.steady:
            until_s = since_s + self._next_step_s(idle_s) * EARLY
            self._soonest_s = min(self._soonest_s, until_s)
        self._scored[lane] = since_s, worth, until_s
        return worth


class Scores(dict[tuple[int, int], float]):
    """A policy's table as a dictionary of its values by (row, column), for single look-ups.

    These are several times as fast as those of an array. `steady`: in each row all values are
    equal, so no worth changes with age.
    """

    def __init__(self, table: Float64s) -> None:
        rows = enumerate(table.tolist())
        super().__init__(
            {(row, at): worth for row, cells in rows for at, worth in enumerate(cells)}
        )
        self.steady = bool((table == table[:, :1]).all())

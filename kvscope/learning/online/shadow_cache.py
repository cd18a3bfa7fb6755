"""The shadows of all candidates over the same requests, served one after the other.

What `learning.offline.shadow_caches` finds of a trace, request by request as an engine sees them.
Who touched which block before is the same in all shadows: `Familiar` tells it once, by stretches.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from kvscope.learning.online.lane_heap import EARLY, Scores
from kvscope.learning.online.recent_blocks import MOST_REQUESTS
from kvscope.policies.base import ENDS, LanePolicy, Turn

Stand: TypeAlias = tuple[float, int, int]  # what a lane's oldest run is worth, whose it is, lane

NOBODY = -1
DEEPEST = 2**31 - 1
_SPARE = 64


class Knot:
    """A block of `owner`, at `depth` of its path, below which runs of earlier requests go on.

    `hanging` counts for each shadow those that are not empty.
    """

    __slots__ = ("depth", "hanging", "owner")

    def __init__(self, owner: int, depth: int, shadows: int) -> None:
        self.owner, self.depth, self.hanging = owner, depth, [0] * shadows


class Place(NamedTuple):
    """The lane of a run that ends beyond `depth`, and of one that does not.

    `stays`: its new blocks enter the cache.
    """

    depth: int
    deep: int
    shallow: int
    stays: bool


class Runs:
    """What is the same in all shadows: the runs' beginnings, and where they hang together.

    Of the latest `slots` requests (a power of 2), each by its number: `first`, `arrival_s`, the
    knot that its run `hangs` from if any, and its own `knots`, by depth. Those below `oldest` are
    forgotten.
    """

    def __init__(self, slots: int, oldest: int) -> None:
        self.slots, self.mask, self.oldest = slots, slots - 1, oldest
        self.first = array("i", bytes(4 * slots))
        self.arrival_s = array("d", bytes(8 * slots))
        self.hangs: list[Knot | None] = [None] * slots
        self.knots: list[list[Knot]] = [[]] * slots

    def begin(self, number: int, arrival_s: float, own: list[Knot]) -> None:
        """A new request's run, from the head of its path on."""
        at = number & self.mask
        self.first[at], self.arrival_s[at] = 0, arrival_s
        self.hangs[at], self.knots[at] = None, own

    def cut(self, giver: int, until: int, taker: int, own: list[Knot]) -> Knot | None:
        """What is in front of `until` goes to a taker, and its knots to the taker's `own`.

        The knot at the last block that it gets, if there is one. Side by side requests may give
        what lies in front of what others gave before, so they are put in order.
        """
        at = giver & self.mask
        self.first[at] = until
        kept = []
        for knot in self.knots[at]:
            if not any(knot.hanging):
                continue
            if knot.depth < until:
                knot.owner = taker
                own.append(knot)
            else:
                kept.append(knot)
        self.knots[at] = kept
        own.sort(key=lambda knot: knot.depth)
        return own[-1] if own and own[-1].depth == until - 1 else None


class Shadow:
    """One candidate's cache of so many blocks, the `which`-th of those over the same `runs`.

    `table` is what the policy scores by, see `use`.
    """

    def __init__(self, which: int, runs: Runs, policy: LanePolicy, capacity: int) -> None:
        self.capacity, self.blocks = capacity, 0
        self.end = array("i", bytes(4 * runs.slots))
        self.table: Any = {}
        self._which, self._runs, self._policy = which, runs, policy
        self._p: Any = policy.settings().tolist()
        self._depth = array("i", bytes(4 * runs.slots))  # beyond it a run is in its deep lane
        self._deep, self._shallow = (array("H", bytes(2 * runs.slots)) for _ in range(2))
        self._heaps: list[list[int]] = []  # of each lane the requests whose runs end in it
        self._most: list[int] = []  # of these, before the empty ones are looked for
        self._stands: list[Stand] = []
        self._until_s: list[float] = []  # so long a lane's worth holds
        self._soonest_s = math.inf  # before it none changes
        self._changed: set[int] = set()  # lanes whose oldest run may be another
        self._next_step_s: Callable[[float], float] | None = None
        self._steady: dict[int, float] | None = None  # what lanes are worth if that never changes

    def use(self, table: Scores) -> None:
        """Score by this table from now on."""
        if table is not self.table:
            self.table = table
            self._soonest_s = -math.inf
            self._until_s = [-math.inf] * len(self._until_s)
            self._next_step_s, self._steady = None, None
            if self._policy.stepwise:
                self._next_step_s = self._policy.next_step_s
                self._steady = {} if table.steady else None

    def give(self, giver: int, begin: int, until: int, above: Knot | None) -> tuple[int, bool]:
        """A later request takes what a run has in front of `until`: its end, and if some is left.

        The run began at `begin` and hung from `above`.
        """
        at = giver & self._runs.mask
        end = self.end[at]
        if end <= begin:
            return begin, False
        if above is not None:
            self._unhook(above)
        if end > until:
            self.blocks -= until - begin
            return until, True
        self.blocks -= end - begin
        self._changed.add(self._lane(at))
        return end, False

    def join(self, number: int, now_s: float, place: Place, end: int) -> None:
        """A request's run ends in front of `end`; then what is worth least leaves."""
        at = number & self._runs.mask
        self._depth[at], self._deep[at], self._shallow[at], _ = place
        while place.deep >= len(self._heaps) or place.shallow >= len(self._heaps):
            self._stands.append((math.inf, NOBODY, len(self._heaps)))
            self._until_s.append(-math.inf)
            self._heaps.append([])
            self._most.append(_SPARE)
        self.end[at] = end
        self.blocks += end
        if end > 0 and self._floor(at, end) < end:
            self._push(number, self._lane(at))
        while self.blocks > self.capacity:
            victim = self._least_worth(now_s)
            if victim >= 0:
                self._shrink(victim)
            elif not self._force(number):
                break

    def drop(self, number: int) -> None:
        """Forget a request's run, whatever it is worth; nothing hangs from it that is older."""
        at = number & self._runs.mask
        left = self.end[at] - self._runs.first[at]
        if left > 0:
            self.blocks -= left
            self._changed.add(self._lane(at))
            above = self._runs.hangs[at]
            if above is not None:
                self._unhook(above)
        self.end[at] = 0

    def _lane(self, at: int) -> int:
        return self._deep[at] if self.end[at] > self._depth[at] else self._shallow[at]

    def _floor(self, at: int, end: int) -> int:
        """How far a run may shrink: to right below its deepest block that others hang from."""
        for knot in reversed(self._runs.knots[at]):
            if knot.depth < end and knot.hanging[self._which]:
                return knot.depth + 1
        return 0

    def _unhook(self, knot: Knot) -> None:
        """A run less hangs from a knot; the run that waited for the last one may shrink."""
        hanging = knot.hanging
        hanging[self._which] -= 1
        if hanging[self._which]:
            return
        runs, at = self._runs, knot.owner & self._runs.mask
        if self.end[at] == knot.depth + 1 and runs.first[at] <= knot.depth:
            self._push(knot.owner, self._lane(at))

    def _push(self, number: int, lane: int) -> None:
        heap = self._heaps[lane]
        heappush(heap, number)
        if heap[0] == number:
            self._changed.add(lane)
        if len(heap) > self._most[lane]:
            heap[:] = [one for one in heap if not self._gone(one)]
            heapify(heap)
            self._changed.add(lane)
            self._most[lane] = 2 * len(heap) + _SPARE

    def _gone(self, number: int) -> bool:
        """Whether a run in a lane is empty: its blocks were taken over, or it was forgotten."""
        runs, at = self._runs, number & self._runs.mask
        return number < runs.oldest or runs.first[at] >= self.end[at]

    def _least_worth(self, now_s: float) -> int:
        """The request whose run gives the next block, NOBODY if there is none."""
        if now_s >= self._soonest_s:
            self._soonest_s = math.inf
            for lane, until_s in enumerate(self._until_s):
                if until_s <= now_s:
                    self._changed.add(lane)
                elif until_s < self._soonest_s:
                    self._soonest_s = until_s
        while self._changed:
            self._stand(self._changed.pop(), now_s)
        return min(self._stands)[1] if self._stands else NOBODY

    def _stand(self, lane: int, now_s: float) -> None:
        """What a lane's oldest run is worth."""
        heap = self._heaps[lane]
        while heap and self._gone(heap[0]):
            heappop(heap)
        if not heap:
            self._stands[lane], self._until_s[lane] = (math.inf, NOBODY, lane), math.inf
            return
        number = heap[0]
        if self._stands[lane][1] == number and now_s < self._until_s[lane]:
            return
        since_s = self._runs.arrival_s[number & self._runs.mask]
        worth, until_s = self._worth(lane, since_s, now_s)
        self._soonest_s = min(self._soonest_s, until_s)
        self._stands[lane], self._until_s[lane] = (worth, number, lane), until_s

    def _worth(self, lane: int, since_s: float, now_s: float) -> tuple[float, float]:
        """What a run is worth in a lane that was touched at that time, and until when."""
        steady = self._steady
        if steady is not None and lane in steady:
            return steady[lane], math.inf
        worth = self._policy.score(lane, now_s - since_s, self._p, self.table)
        if steady is not None:
            steady[lane] = worth
            return worth, math.inf
        if self._next_step_s is None:
            return worth, now_s
        return worth, since_s + self._next_step_s(now_s - since_s) * EARLY

    def _shrink(self, number: int) -> None:
        """Evict from the deep end of its lane's oldest run, as far as it is in that lane."""
        runs, at = self._runs, number & self._runs.mask
        first, end, depth = runs.first[at], self.end[at], self._depth[at]
        deep, floor = end > depth, self._floor(at, end)
        lane = self._deep[at] if deep else self._shallow[at]
        stop = depth if deep and depth > first else first
        low = max(stop, floor, end - (self.blocks - self.capacity))
        self.end[at] = low
        self.blocks -= end - low
        if low > first and low > floor and (low > depth or not deep):
            return
        heappop(self._heaps[lane])
        self._changed.add(lane)
        if low == first:
            above = runs.hangs[at]
            if above is not None:
                self._unhook(above)
        elif low > floor:
            self._push(number, self._shallow[at])

    def _force(self, number: int) -> bool:
        """Where book-keeping that does not fit leaves nobody who may shrink: the oldest goes."""
        for one in range(self._runs.oldest, number + 1):
            if not self._gone(one):
                self.drop(one)
                return True
        return False


FORGOTTEN_AT_ONCE = 256  # requests: a whole window is forgotten at one time, which can wait


class Visit(NamedTuple):
    """One request, with all that it touches.

    Of each stretch (start, end, giver) of its path, from the head on, request `giver` was the last
    to touch the blocks; `blocks` is all of it. In each shadow it is of the class that `kinds` says.
    One that is not `served` computes nothing and leaves nothing new. What was not touched since
    `forgotten_s` is found by nobody any more.
    """

    number: int
    arrival_s: float
    stretches: Sequence[tuple[int, int, int]]
    blocks: int
    history_tokens: int
    kinds: Sequence[int]
    served: bool = True
    forgotten_s: float = 0.0


class Shadows:
    """A cache of `capacity_blocks` for each candidate; paths count `every`-th blocks alone.

    Requests come in the order of their numbers, the first one is `first`; the latest `slots` of
    them are remembered (a power of 2).
    """

    def __init__(
        self,
        candidates: int,
        policy: LanePolicy,
        block_size: int,
        capacity_blocks: int,
        *,
        every: int = 1,
        first: int = 0,
        slots: int = MOST_REQUESTS,
    ) -> None:
        self._policy, self._block_size, self._every = policy, block_size, every
        self._p: Any = policy.settings().tolist()
        self._runs, self._ttl_s = Runs(slots, first), policy.values.get("ttl_s", float("inf"))
        blocks = max(round(capacity_blocks / every), 1)
        self.each = [Shadow(which, self._runs, policy, blocks) for which in range(candidates)]

    def use(self, tables: Sequence[Scores]) -> None:
        """Each shadow scores by its table from now on."""
        for shadow, table in zip(self.each, tables, strict=True):
            shadow.use(table)

    def serve(self, visit: Visit) -> list[int]:
        """How many leading blocks of a request each shadow has; then the request leaves its own."""
        number, runs = visit.number, self._runs
        expired_s, forgotten = visit.arrival_s - self._ttl_s, 0
        while runs.oldest < number:
            arrival_s = runs.arrival_s[runs.oldest & runs.mask]
            if runs.oldest > number - runs.slots and arrival_s >= expired_s:
                if arrival_s >= visit.forgotten_s or forgotten == FORGOTTEN_AT_ONCE:
                    break
                forgotten += 1
            for shadow in self.each:
                shadow.drop(runs.oldest)
            runs.oldest += 1
        own: list[Knot] = []
        found = self._take(visit, own)
        runs.begin(number, visit.arrival_s, own)
        places: dict[int, Place] = {}
        for shadow, leading, kind in zip(self.each, found, visit.kinds, strict=True):
            place = places.get(kind)
            if place is None:
                place = places[kind] = self._place(visit, kind)
            end = visit.blocks if place.stays else leading
            shadow.join(number, visit.arrival_s, place, end)
        return found

    def _place(self, visit: Visit, kind: int) -> Place:
        """Where a request of this class leaves its blocks."""
        turn = Turn(visit.number, visit.arrival_s, visit.history_tokens, kind, ENDS)
        depth, deep, shallow = self._policy.place(turn, self._block_size, self._p)
        depth = min(-(-depth // self._every), DEEPEST)
        stays = visit.served and self._policy.admits(turn, self._p)
        return Place(depth, deep, shallow, stays)

    def _take(self, visit: Visit, own: list[Knot]) -> list[int]:
        """Take over what earlier requests touched last, and their knots; the leading blocks."""
        runs, found = self._runs, [0] * len(self.each)
        for start, until, giver in visit.stretches:
            if not runs.oldest <= giver < visit.number:
                continue  # forgotten, or served beside this one and not before it
            begin, above = runs.first[giver & runs.mask], runs.hangs[giver & runs.mask]
            if until <= begin:
                continue  # some other request has taken it
            left = []
            for which, shadow in enumerate(self.each):
                end, more = shadow.give(giver, begin, until, above)
                if found[which] == start and begin <= start < end:
                    found[which] = end
                if more:
                    left.append(which)
            knot = runs.cut(giver, until, visit.number, own)
            if left and knot is None:
                knot = Knot(visit.number, until - 1, len(self.each))
                own.append(knot)
            for which in left:
                knot.hanging[which] += 1  # type: ignore[union-attr]  # made above
            runs.hangs[giver & runs.mask] = knot if left else None
        return found

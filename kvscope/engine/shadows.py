"""The shadows of all candidates over the same requests, served one after the other.

What `kvscope.simulate.shadows` finds of a trace, request by request as an engine sees them. Who
touched which block before is the same in all shadows: `Familiar` tells it once, by stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvscope.engine.familiar import MOST_REQUESTS
from kvscope.engine.shadow import DEEPEST, Knot, Place, Runs, Shadow
from kvscope.engine.standings import Scores
from kvscope.policies.base import ENDS, LanePolicy, Turn

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

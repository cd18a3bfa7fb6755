"""Shadow caches: each candidate's cache over the same requests, served one after the other.

Serves requests as `kvscope.learning.offline.shadow_replays` does, one by one as an engine sees
them. Which request touched which block before is the same in all shadows: `RecentBlocks` finds it
once, by segments. A *run* is the cached blocks that one request touched last.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from kvscope.learning.lanes import LaneHeap, LanePlan, Scores, lane_at, lane_plan
from kvscope.learning.recent_blocks import MOST_REQUESTS
from kvscope.policies.base import ENDS, LanePolicy, Turn

_SPARE = 64


class BranchPoint(Struct, eq=False):
    """A block of `owner`, at `depth` of its path, below which runs of earlier requests continue.

    `children` has the number of these runs that are not empty, for each shadow.
    """

    owner: int
    depth: int
    children: list[int]


class ShadowRuns:
    """State that all shadow caches share: where runs begin, and how they branch.

    For each of the latest `slots` requests (a power of 2): `arrival_s`; `first`, the depth of its
    run's first block; `parent`, the branch point right before that block, on a later request's run
    (None for a run from depth 0 on, or without blocks); and `branches`, the branch points on its
    own run, ascending in depth. Requests numbered below `oldest` are forgotten.
    """

    def __init__(self, slots: int, oldest: int) -> None:
        self.slots, self.mask, self.oldest = slots, slots - 1, oldest
        self.first = array("i", bytes(4 * slots))
        self.arrival_s = array("d", bytes(8 * slots))
        self.parent: list[BranchPoint | None] = [None] * slots
        self.branches: list[list[BranchPoint]] = [[]] * slots

    def begin(self, number: int, arrival_s: float, branches: list[BranchPoint]) -> None:
        """Begin a new request's run at the head of its path."""
        at = number & self.mask
        self.first[at], self.arrival_s[at] = 0, arrival_s
        self.parent[at], self.branches[at] = None, branches

    def cut(
        self, previous: int, until: int, number: int, branches: list[BranchPoint]
    ) -> BranchPoint | None:
        """Move the blocks of request `previous` before depth `until` to the run of `number`.

        Their branch points join its `branches`, sorted by depth each time, as requests that overlap
        may move shallow blocks last. Return the branch point at the last moved block, None without
        one.
        """
        at = previous & self.mask
        self.first[at] = until
        rest = []
        for branch in self.branches[at]:
            if not any(branch.children):
                continue
            if branch.depth < until:
                branch.owner = number
                branches.append(branch)
            else:
                rest.append(branch)
        self.branches[at] = rest
        branches.sort(key=lambda branch: branch.depth)
        return branches[-1] if branches and branches[-1].depth == until - 1 else None


class ShadowCache:
    """The cache of candidate number `which`, of `capacity` blocks, on the `runs` that all share.

    The policy's scores read `table`, which `use` replaces.
    """

    def __init__(self, which: int, runs: ShadowRuns, policy: LanePolicy, capacity: int) -> None:
        self.capacity, self.blocks = capacity, 0
        self.end = array("i", bytes(4 * runs.slots))
        self.table: Any = Scores(np.zeros((1, 1)))
        self._which, self._runs, self._policy = which, runs, policy
        self._leaf = policy.evicts == "leaf"
        self._plans: list[LanePlan] = [((0, 0),)] * runs.slots
        self._heaps: list[list[int]] = []  # of each lane a heap: the requests whose runs end in it
        self._most: list[int] = []  # of them, before the empty ones are removed
        p: Any = policy.settings().tolist()
        self._order = LaneHeap(
            self._heaps,
            self._oldest,
            lambda lane, idle_s: policy.score(lane, idle_s, p, self.table),
            policy.next_step_s if policy.stepwise else None,
        )

    def use(self, table: Scores) -> None:
        """Score by this table from now on."""
        if table is not self.table:
            self.table = table
            self._order.steady = self._policy.stepwise and table.steady
            self._order.anew()

    def cut(
        self, previous: int, begin: int, until: int, parent: BranchPoint | None
    ) -> tuple[int, bool]:
        """Remove a run's blocks in front of `until`; return their end, and whether others are left.

        The run is that of request `previous`; it began at `begin` and was a child of `parent`. An
        empty run ends at `begin`.
        """
        at = previous & self._runs.mask
        end = self.end[at]
        if end <= begin:
            return begin, False
        if parent is not None:
            self._lose_child(parent)
        if end > until:
            self.blocks -= until - begin
            return until, True
        self.blocks -= end - begin
        self._order.changed.add(self._lane(at))
        return end, False

    def join(self, number: int, now_s: float, plan: LanePlan, end: int) -> None:
        """Add a request's run to depth `end`, in `plan`'s lanes; evict down to the capacity."""
        at = number & self._runs.mask
        self._plans[at] = plan
        self.end[at] = end
        self.blocks += end
        if end > 0 and self._floor(at, end) < end:
            self._push(number, self._lane(at))
        if self.blocks > self.capacity:
            self._order.at(now_s)
        while self.blocks > self.capacity:
            least = self._least()
            if least is not None:
                self._shrink(least)
            elif not self._force(number):
                break

    def drop(self, number: int) -> None:
        """Remove the whole run of a request, which must be the oldest run, whatever it is worth.

        It has no child runs that would become unreachable: these are always of older requests.
        """
        at = number & self._runs.mask
        left = self.end[at] - self._runs.first[at]
        if left > 0:
            self.blocks -= left
            self._order.changed.add(self._lane(at))
            parent = self._runs.parent[at]
            if parent is not None:
                self._lose_child(parent)
        self.end[at] = 0

    def _least(self) -> int | None:
        """Return the request with the least worth of the evictable runs, None without one."""
        if len(self._heaps) == 1:
            oldest = self._oldest(0)
            return None if oldest is None else oldest[0]
        first = self._order.first()
        return None if first is None else first[1]

    def _lane(self, at: int) -> int:
        return lane_at(self._plans[at], self.end[at])[1]

    def _floor(self, at: int, end: int) -> int:
        """Return the least depth to which the end of a run may shrink.

        `at` is the request's index in arrays by request, `end` the depth where its run ends now.
        The floor is right below the run's deepest block with child runs; 0 without one, and for a
        policy that evicts any block.
        """
        if not self._leaf:
            return 0
        for branch in reversed(self._runs.branches[at]):
            if branch.depth < end and branch.children[self._which]:
                return branch.depth + 1
        return 0

    def _lose_child(self, branch: BranchPoint) -> None:
        """Remove a child of a branch point; with none left, the run that ends there may shrink."""
        children = branch.children
        children[self._which] -= 1
        if children[self._which] or not self._leaf:
            return
        runs, at = self._runs, branch.owner & self._runs.mask
        if self.end[at] == branch.depth + 1 and runs.first[at] <= branch.depth:
            self._push(branch.owner, self._lane(at))

    def _push(self, number: int, lane: int) -> None:
        while lane >= len(self._heaps):
            self._heaps.append([])
            self._most.append(_SPARE)
        heap = self._heaps[lane]
        heappush(heap, number)
        if heap[0] == number:
            self._order.changed.add(lane)
        if len(heap) > self._most[lane]:
            heap[:] = [request for request in heap if not self._empty(request)]
            heapify(heap)
            self._order.changed.add(lane)
            self._most[lane] = 2 * len(heap) + _SPARE

    def _empty(self, number: int) -> bool:
        """Return whether a run is empty: a later request touched its blocks, or it is forgotten."""
        runs, at = self._runs, number & self._runs.mask
        return number < runs.oldest or runs.first[at] >= self.end[at]

    def _oldest(self, lane: int) -> tuple[int, float] | None:
        """Return (request, arrival in s) of a lane's oldest run with blocks; None without one."""
        heap = self._heaps[lane] if lane < len(self._heaps) else None
        while heap and self._empty(heap[0]):
            heappop(heap)
        return (heap[0], self._runs.arrival_s[heap[0] & self._runs.mask]) if heap else None

    def _shrink(self, number: int) -> None:
        """Evict the deepest blocks of a run, down to the capacity or as far as they may go.

        They may go as far as the run's last lane, its floor and its first block. `number` is the
        run's request; the run is the oldest of its lane.
        """
        runs, at = self._runs, number & self._runs.mask
        first, end = runs.first[at], self.end[at]
        floor = self._floor(at, end)
        depth, lane = lane_at(self._plans[at], end)
        low = max(depth, first, floor, end - (self.blocks - self.capacity))
        self.end[at] = low
        self.blocks -= end - low
        if low > first and low > floor and low > depth:
            return
        heappop(self._heaps[lane])
        self._order.changed.add(lane)
        if low == first:
            parent = runs.parent[at]
            if parent is not None:
                self._lose_child(parent)
        elif low > floor:
            self._push(number, self._lane(at))

    def _force(self, number: int) -> bool:
        """Drop the oldest run with blocks, of requests up to `number`; return False without one.

        The fallback if inconsistent state leaves no run that may shrink.
        """
        for request in range(self._runs.oldest, number + 1):
            if not self._empty(request):
                self.drop(request)
                return True
        return False


Kind: TypeAlias = tuple[int, tuple[int, ...]] | None
"""A request's class, and the cuts of its path into parts with rows of their own.

None under LRU, which has one lane.
"""

FORGOTTEN_AT_ONCE = 256  # requests: a whole window is forgotten at one time, which can wait


class ShadowRequest(NamedTuple):
    """One request and the blocks that it touches.

    Request `previous` was the last to touch the blocks of a segment (start, end, previous) of the
    path; segments ascend; `blocks` is the length of the path. `kinds` has the request's class and
    cuts in each shadow. A request that is not `served` computes nothing and inserts nothing. Blocks
    last touched before request `forgotten` are forgotten.
    """

    number: int
    arrival_s: float
    segments: Sequence[tuple[int, int, int]]
    blocks: int
    history_tokens: int
    kinds: Sequence[Kind]
    served: bool = True
    forgotten: int = 0


class ShadowCaches:
    """A cache of `capacity_blocks` for each candidate, scaled to a sample of one block in `every`.

    Paths have only the blocks of the sample. Requests come in the order of their numbers, from
    `first` on; the latest `slots` of them (a power of 2) are remembered.
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
        self._runs, self._ttl_s = ShadowRuns(slots, first), policy.values.get("ttl_s", float("inf"))
        blocks = max(round(capacity_blocks / every), 1)
        self.each = [ShadowCache(at, self._runs, policy, blocks) for at in range(candidates)]

    def use(self, tables: Sequence[Scores]) -> None:
        """Set the table that each shadow scores by from now on."""
        for shadow, table in zip(self.each, tables, strict=True):
            shadow.use(table)

    def serve(self, request: ShadowRequest) -> list[int]:
        """Serve a request; return the number of leading blocks that hit in each shadow."""
        number, runs = request.number, self._runs
        expired_s, forgotten = request.arrival_s - self._ttl_s, 0
        while runs.oldest < number:
            arrival_s = runs.arrival_s[runs.oldest & runs.mask]
            if runs.oldest > number - runs.slots and arrival_s >= expired_s:
                if runs.oldest >= request.forgotten or forgotten == FORGOTTEN_AT_ONCE:
                    break
                forgotten += 1
            for shadow in self.each:
                shadow.drop(runs.oldest)
            runs.oldest += 1
        branches: list[BranchPoint] = []
        hits = self._take_over(request, branches)
        runs.begin(number, request.arrival_s, branches)
        plans: dict[Kind, tuple[Turn, LanePlan]] = {}
        for shadow, leading, kind in zip(self.each, hits, request.kinds, strict=True):
            if kind not in plans:
                plans[kind] = self._plan(request, kind)
            turn, plan = plans[kind]
            stays = request.served and self._policy.admits(turn, self._p, shadow.table)
            shadow.join(number, request.arrival_s, plan, request.blocks if stays else leading)
        return hits

    def _plan(self, request: ShadowRequest, kind: Kind) -> tuple[Turn, LanePlan]:
        """Return the request as a turn of class `kind`, and the lanes of its blocks."""
        number, cuts = kind or (0, ())
        turn = Turn(request.number, request.arrival_s, request.history_tokens, number, ENDS)
        if kind is None:
            return turn, ((0, 0),)
        blocks = request.blocks * self._every
        plan = lane_plan(self._policy, turn, blocks, cuts, self._block_size, self._p)
        if self._every > 1:
            plan = tuple((-(-depth // self._every), lane) for depth, lane in plan)
        return turn, plan

    def _take_over(self, request: ShadowRequest, branches: list[BranchPoint]) -> list[int]:
        """Move blocks of previous requests to this one; return the hits in each shadow."""
        runs, hits = self._runs, [0] * len(self.each)
        for start, until, previous in request.segments:
            if not runs.oldest <= previous < request.number:
                continue  # forgotten, or served alongside this one and not before it
            begin, parent = runs.first[previous & runs.mask], runs.parent[previous & runs.mask]
            if until <= begin:
                continue  # some other request has touched it
            left = []
            for which, shadow in enumerate(self.each):
                end, more = shadow.cut(previous, begin, until, parent)
                if hits[which] == start and begin <= start < end:
                    hits[which] = end
                if more:
                    left.append(which)
            branch = runs.cut(previous, until, request.number, branches)
            if left and branch is None:
                branch = BranchPoint(request.number, until - 1, [0] * len(self.each))
                branches.append(branch)
            for which in left:
                branch.children[which] += 1  # type: ignore[union-attr]  # made above
            runs.parent[previous & runs.mask] = branch if left else None
        return hits

"""A policy that orders an engine's free blocks, driven by the events of its scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kvscope.learning.lane_plan import head_lane, lane_plan
from kvscope.learning.observer import Request
from kvscope.learning.prefixes import Prefixes
from kvscope.policies.base import ENDS, Turn
from kvscope.vllm_plugin.free_blocks import Block, FreeBlocks, planned
from kvscope.vllm_plugin.guarded_queue import GuardedQueue
from kvscope.vllm_plugin.policy_controller import PolicyController


class EvictionController(PolicyController):
    """Chooses the lane of each freed block, and the score of lanes; `attach` comes first."""

    free: Any = None

    def score_anew(self) -> None:
        """Drop all scores: the table has changed."""
        if self.free is not None:
            self.free.score_anew()

    def attach(
        self,
        blocks: Sequence[Block],
        free: list[Block],
        forget: Callable[[Block], object],
        blocks_of: Callable[[str], list[Block]],
        lru: Callable[[list[Block]], Any],
    ) -> GuardedQueue:
        """Return the queue that replaces the engine's, with the `free` ones of all its `blocks`.

        `forget` takes a block out of the engine's cache; `blocks_of` lists a request's blocks;
        `lru` makes the engine's own queue of free blocks, for after a failure.
        """
        self._forget, self._blocks_of = forget, blocks_of
        ordered = self.free = FreeBlocks(
            free,
            len(blocks),
            lambda lane, idle_s: self.policy.score(lane, idle_s, self.p, self.table),
            next_step_s=self.policy.next_step_s if self.policy.stepwise else None,
            prefixes=Prefixes() if self.policy.evicts == "leaf" else None,
            forget=forget,
        )
        if self.learner is not None:
            self.learner.guard(len(free))
            self.use(self.learner.table)
        no_turn = Turn(0, 0.0, 0, 0, ENDS)
        ordered.usual = self.policy.place(no_turn, 0, self.block_size, self.p)[1]
        return GuardedQueue(ordered, blocks, free, self, lru)

    def give_up(self) -> None:
        """Drop what is known of requests; the queue orders blocks by LRU from now on."""
        self._requests.clear()

    def stepping(self) -> None:
        """Advance the clock, and drop expired blocks."""
        now_s = self.clock()
        self.free.at(now_s)
        if self._ttl_s < math.inf:
            self.free.expire(now_s - self._ttl_s)

    def updating(self) -> None:
        """Advance the clock."""
        self.free.at(self.clock())

    def releasing(self, request: Request) -> None:
        """Plan the lanes of its blocks; drop those of a turn that the policy does not admit."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        turn, cuts = self.turn(request, state)
        if not request.is_finished():  # preempted: it will be back at once
            self.free.plan = ((0, head_lane(self.policy, turn, cuts, self.block_size, self.p)),)
            return
        plan = lane_plan(self.policy, turn, cuts, self.block_size, self.p)
        self.free.plan = tuple((depth * self.block_size, lane) for depth, lane in plan)
        if self.end(request, state) and not self.policy.admits(turn, self.p, self.table):
            for block in self._blocks_of(request.request_id)[state.hit_blocks :]:
                if block.ref_cnt == 1 and block.block_hash is not None:
                    self._forget(block)

    def put_off(self, blocks: list[Block]) -> None:
        """Remember the lanes of the released request's blocks, which are freed later."""
        if self.free.plan is not None:
            for block in blocks:
                self.free.assigned[block.block_id] = planned(self.free.plan, block)

    def released(self) -> None:
        """Send blocks that are freed without a request being released to the usual lane."""
        self.free.plan = None

    def cached(self, blocks: list[Block], start: int, end: int) -> None:
        """Note the hashes that a request's blocks from `start` to `end` - 1 have got."""
        above = blocks[start - 1].block_hash if start else None
        for block in blocks[start:end]:
            if block.block_hash is not None:
                self.free.gained(block.block_hash, above)
            above = block.block_hash

    def uncached(self, keys: list[Any]) -> None:
        """Note the hashes that a block has lost."""
        for key in keys:
            self.free.lost(key)

    def emptied(self, blocks: list[Block]) -> None:
        """Note that these blocks, free or in use, have lost their hashes."""
        for block in blocks:
            self.free.emptied(block)

    def cleared(self) -> None:
        """Note that all blocks, which are free, have lost their hashes."""
        self.free.lost_all()
        if self.learner is not None:
            self.learner.cleared()

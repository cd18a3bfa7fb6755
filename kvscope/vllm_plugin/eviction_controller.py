"""A policy that orders an engine's free blocks, driven by the events of its scheduler."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s
from kvscope.core.errors import UsageError
from kvscope.learning.conversations import read_hints
from kvscope.learning.lanes import Scores, head_lane, lane_plan
from kvscope.learning.learners import FittedTable, online_learner
from kvscope.learning.observer import Observer, Request
from kvscope.learning.prefixes import Prefixes
from kvscope.policies.base import ADAPT_EVERY, ENDS, RECENT, LanePolicy, Policy, Turn
from kvscope.policies.registry import plugin_policies
from kvscope.vllm_plugin.free_blocks import Block, FreeBlocks, planned
from kvscope.vllm_plugin.guarded_queue import GuardedQueue


class RequestState(Struct):
    """A request being served, as far as the policy needs it.

    `number` counts arrivals from 0. `hit_blocks` is -1 until the request is admitted. `memo` is
    what the learner wants to know again when the request ends.
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    hit_blocks: int = -1
    memo: Any = None


class EvictionController(Observer):
    """Chooses the lane of each freed block, and scores lanes; call `attach` first.

    `free` has the free blocks (a FreeBlocks; None before `attach`). Of the constructor's arguments,
    `clock` returns seconds and is read twice a step; times of requests count from the first
    arrival, as in the simulator. With `trace_clock`, the time is the one stated by requests
    (`kvscope_arrival_s`), so that a trace can be replayed faster than it was recorded; nothing is
    learned from requests without it. `fitted` is a table fitted offline, if any.
    """

    free: Any = None

    def __init__(
        self,
        policy: Policy,
        block_size: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        trace_clock: bool = False,
        fitted: FittedTable | None = None,
    ) -> None:
        self.policy = lane_policy(policy)
        self.what = f"kvscope's {policy.name} has failed, so vLLM evicts by LRU again"
        self.block_size = block_size
        self._trace_clock, self._trace_s = trace_clock, 0.0
        self.clock: Callable[[], float] = (lambda: self._trace_s) if trace_clock else clock
        # lists and dicts: on single numbers they are several times as fast as arrays
        self.p: Any = policy.settings().tolist()
        self.table: Any = Scores(np.zeros((1, 1)))
        self._ttl_s = float(policy.values.get("ttl_s", math.inf))
        self.learner = online_learner(self.policy, block_size, fitted)
        self._requests: dict[str, RequestState] = {}
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._arrived = self._admitted = 0
        self._start_s = 0.0
        if self.learner is not None:
            self.use(self.learner.table)

    @property
    def in_words(self) -> str:
        """The policy, its parameters and its learner, as text for the log."""
        learned = f"; {self.learner.in_words}" if self.learner and self.learner.in_words else ""
        return f"{self.policy.name} {self.policy.values}{learned}"

    def use(self, table: Float64s) -> None:
        """Use `table` for scores from now on."""
        self.table = Scores(table)
        if self.free is not None:
            self.free.score_anew()

    def arrived(self, request: Request) -> None:
        """Begin the state of a new request; for policies with a table, learn from its arrival."""
        if request.request_id in self._requests:  # more input of one that streams it
            return
        if self._trace_clock:
            if (arrival_s := read_hints(request).arrival_s) is None:
                return
            self._trace_s = max(self._trace_s, arrival_s)
        if not self._arrived:
            self._start_s = self.clock()
        number, self._arrived = self._arrived, self._arrived + 1
        state = RequestState(number, self.clock() - self._start_s, request.num_prompt_tokens)
        self._requests[request.request_id] = state
        if self.learner is not None:
            changed, state.memo = self.learner.arrive(request, state.arrival_s)
            if changed:
                self.use(self.learner.table)

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """Note the hits; adaptive policies adapt to the uncached tokens of recent requests."""
        state = self._requests.get(request_id)
        if state is None or state.hit_blocks >= 0:
            return
        state.hit_blocks = hit_tokens // self.block_size
        if self.policy.adaptive and self.policy.adapts(self.p):
            self._recent.append(state.prompt_tokens - hit_tokens)
            self._admitted += 1
            if self._admitted % ADAPT_EVERY == 0:
                self.policy.adapt(np.array(sorted(self._recent), dtype=np.int64), self.p)

    def turn(self, request: Request, state: RequestState) -> tuple[Turn, Sequence[int]]:
        """Return the request as policies see it so far, and the cuts of its path (in blocks)."""
        learner = self.learner
        category = learner.category(request, state.memo) if learner else 0
        cuts = learner.cuts(state.memo) if learner else ()
        return Turn(state.number, state.arrival_s, request.num_tokens, category, ENDS), cuts

    def end(self, request: Request, state: RequestState) -> bool:
        """Learn from a request that ends; return whether it was served: admitted at least once.

        A request that is aborted after its admission counts as served. The learner drops what it
        knows of one that was never admitted.
        """
        del self._requests[request.request_id]
        served = state.hit_blocks >= 0
        if self.learner is not None:
            if served:
                self.learner.end(request, state.memo)
            else:
                self.learner.forget(state.memo)
        return served

    def attach(
        self,
        blocks: Sequence[Block],
        free: list[Block],
        forget: Callable[[Block], object],
        blocks_of: Callable[[str], list[Block]],
        lru: Callable[[list[Block]], Any],
    ) -> GuardedQueue:
        """Return the queue that replaces the engine's, holding the `free` ones of all `blocks`.

        `forget` removes a block's hash from the engine's cache; `blocks_of` lists a request's
        blocks; `lru` makes the engine's own queue of free blocks, used after a failure.
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
        """Drop all request state; the queue orders blocks by LRU from now on."""
        self._requests.clear()

    def stepping(self) -> None:
        """Advance the clock, and remove the hashes of expired blocks."""
        now_s = self.clock()
        self.free.at(now_s)
        if self._ttl_s < math.inf:
            self.free.expire(now_s - self._ttl_s)

    def updating(self) -> None:
        """Advance the clock before a step's outputs are processed."""
        self.free.at(self.clock())

    def releasing(self, request: Request) -> None:
        """Plan the lanes of a request's blocks; uncache new ones that the policy does not admit."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        turn, cuts = self.turn(request, state)
        if not request.is_finished():  # preempted: it will be back at once
            self.free.plan = ((0, head_lane(self.policy, turn, cuts, self.block_size, self.p)),)
            return
        blocks = -(-turn.history_tokens // self.block_size)
        plan = lane_plan(self.policy, turn, blocks, cuts, self.block_size, self.p)
        self.free.plan = tuple((depth * self.block_size, lane) for depth, lane in plan)
        if self.end(request, state) and not self.policy.admits(turn, self.p, self.table):
            for block in self._blocks_of(request.request_id)[state.hit_blocks :]:
                if block.ref_cnt == 1 and block.block_hash is not None:
                    self._forget(block)

    def put_off(self, blocks: list[Block]) -> None:
        """Assign the request's blocks to their planned lanes: vLLM frees them later."""
        if self.free.plan is not None:
            for block in blocks:
                self.free.assigned[block.block_id] = planned(self.free.plan, block)

    def released(self) -> None:
        """Drop the lanes planned for the request whose blocks were freed.

        Blocks freed from now on go to the lanes that `put_off` assigned to them, else to
        `FreeBlocks.usual`: the lane of a prompt's head.
        """
        self.free.plan = None

    def cached(self, blocks: list[Block], start: int, end: int) -> None:
        """Note new hashes of blocks `start` to `end` - 1, if the policy evicts leaves."""
        above = blocks[start - 1].block_hash if start else None
        for block in blocks[start:end]:
            if block.block_hash is not None:
                self.free.gained(block.block_hash, above)
            above = block.block_hash

    def uncached(self, keys: list[Any]) -> None:
        """Note the hashes that a block has lost, if the policy evicts leaves."""
        for key in keys:
            self.free.lost(key)

    def emptied(self, blocks: list[Block]) -> None:
        """Note that these blocks, free or in use, have lost their hashes."""
        for block in blocks:
            self.free.emptied(block)

    def cleared(self) -> None:
        """Note that all blocks have lost their hashes; all of them are free."""
        self.free.lost_all()
        if self.learner is not None:
            self.learner.cleared()


def lane_policy(policy: Policy, where: str = "policy") -> LanePolicy:
    """Return `policy` if the plugin can run it, else raise UsageError about the input `where`."""
    if isinstance(policy, LanePolicy) and policy.runs_in_plugin():
        return policy
    why = "knows the future" if policy.hindsight else "orders blocks by more than recency lists"
    raise UsageError(
        f"{policy.name} {why}, so kvscope's plugin cannot run it",
        where=where,
        remedy=f"take one of {plugin_policies()}",
    )

"""A policy that orders an engine's free blocks: what it is told, and what it decides."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from kvscope.core.errors import UsageError
from kvscope.learning.conversations import read_hints
from kvscope.learning.lane_heap import Scores
from kvscope.learning.learners import FittedTable, online_learner
from kvscope.learning.observer import Observer, Request
from kvscope.learning.prefixes import Prefixes
from kvscope.policies.base import ADAPT_EVERY, ENDS, RECENT, Floats, LanePolicy, Policy, Turn
from kvscope.policies.registry import plugin_policies
from kvscope.vllm_plugin.free_blocks import Block, FreeBlocks, Plan


class _Served:
    """What is known of a request that is being served."""

    __slots__ = ("arrival_s", "hit_blocks", "learned", "number", "prompt_tokens")

    def __init__(self, number: int, arrival_s: float, prompt_tokens: int) -> None:
        self.number = number
        self.arrival_s = arrival_s
        self.prompt_tokens = prompt_tokens
        self.hit_blocks = -1
        self.learned: Any = None


class Steering(Observer):
    """Tells the free blocks of an engine which lane each freed block goes to, and what lanes score.

    `attach` comes first. `clock` gives seconds; they are read twice a step. With `told_time` it is
    as late as the requests say (`kvscope_arrival_s`), so that a trace can be replayed faster than
    it was recorded; of requests that do not say it nothing is learned. `fitted` is a table that a
    file brings along.
    """

    def __init__(
        self,
        policy: Policy,
        block_size: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        told_time: bool = False,
        fitted: FittedTable | None = None,
    ) -> None:
        self.policy = lane_policy(policy)
        self.what = f"kvscope's {policy.name} has failed, so blocks leave by LRU again"
        self.block_size = block_size
        self._told_time, self._told_s = told_time, 0.0
        self.clock: Callable[[], float] = (lambda: self._told_s) if told_time else clock
        # lists and dicts: on single numbers they are several times as fast as arrays
        self.p: Any = policy.settings().tolist()
        self.table: Any = {}
        self._ttl_s = float(policy.values.get("ttl_s", math.inf))
        self.learner = online_learner(self.policy, block_size, fitted)
        self._served: dict[str, _Served] = {}
        self.free: Any = None
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._arrived = self._admitted = 0
        self._start_s = self.clock()
        if self.learner is not None:
            self.use(self.learner.table)

    @property
    def in_words(self) -> str:
        """What orders the blocks, for a line of the log."""
        learned = f"; {self.learner.in_words}" if self.learner and self.learner.in_words else ""
        return f"{self.policy.name} {self.policy.values}{learned}"

    def use(self, table: Floats) -> None:
        """Score by this table from now on."""
        self.table = Scores(table)
        if self.free is not None:
            self.free.score_anew()

    def attach(
        self,
        blocks: list[Block],
        total: int,
        forget: Callable[[Block], object],
        blocks_of: Callable[[str], list[Block]],
    ) -> FreeBlocks:
        """The queue that takes the place of the engine's, with its free blocks.

        `forget` takes a block out of the engine's cache; `blocks_of` lists a request's blocks.
        """
        self._forget, self._blocks_of = forget, blocks_of
        free = self.free = FreeBlocks(
            blocks,
            total,
            self.score,
            next_step_s=self.policy.next_step_s if self.policy.stepwise else None,
            prefixes=Prefixes() if self.policy.evicts == "leaf" else None,
            forget=forget,
            failed=self.fail,
        )
        if self.learner is not None:
            self.learner.guard(len(blocks))
            self.use(self.learner.table)
        nobody = Turn(0, 0.0, 0, 0, ENDS)
        free.usual = self.policy.place(nobody, self.block_size, self.p)[2]
        return free

    def give_up(self) -> None:
        """Order blocks by LRU from now on."""
        self._served.clear()
        self.free.fall_back()

    def score(self, lane: int, idle_s: float) -> float:
        """What a lane's oldest block is worth."""
        return self.policy.score(lane, idle_s, self.p, self.table)

    def arrived(self, request: Request) -> None:
        """Note when it came and, for policies with a table, what is learned of it."""
        if request.request_id in self._served:  # more input of one that streams it
            return
        says = read_hints(request) if self.learner is not None or self._told_time else None
        if self._told_time and says is not None:
            if says.arrival_s is None:
                return
            self._told_s = max(self._told_s, says.arrival_s)
        number, self._arrived = self._arrived, self._arrived + 1
        served = _Served(number, self.clock() - self._start_s, request.num_prompt_tokens)
        self._served[request.request_id] = served
        if self.learner is not None and says is not None:
            changed, served.learned = self.learner.arrive(request, says, served.arrival_s)
            if changed:
                self.use(self.learner.table)

    def stepping(self) -> None:
        """It is later now."""
        now_s = self.clock()
        self.free.at(now_s)
        if self._ttl_s < math.inf:
            self.free.expire(now_s - self._ttl_s)

    def updating(self) -> None:
        """It is later now."""
        self.free.at(self.clock())

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """Note what it hit; adaptive policies look at what late requests had to compute."""
        served = self._served.get(request_id)
        if served is None or served.hit_blocks >= 0:
            return
        served.hit_blocks = hit_tokens // self.block_size
        if self.policy.adaptive and self.policy.adapts(self.p):
            self._recent.append(served.prompt_tokens - hit_tokens)
            self._admitted += 1
            if self._admitted % ADAPT_EVERY == 0:
                self.policy.adapt(np.array(sorted(self._recent), dtype=np.int64), self.p)

    def releasing(self, request: Request) -> None:
        """Say where its blocks go; those of a turn that is not admitted are forgotten at once."""
        served = self._served.get(request.request_id)
        if served is None:
            return
        category = self.learner.category(request, served.learned) if self.learner else 0
        turn = Turn(served.number, served.arrival_s, request.num_tokens, category, ENDS)
        depth, deep, shallow = self.policy.place(turn, self.block_size, self.p)
        if not request.is_finished():  # it will be back at once
            self.free.plan = Plan(0, shallow, shallow)
            return
        self.free.plan = Plan(depth * self.block_size, deep, shallow)
        del self._served[request.request_id]
        if served.hit_blocks < 0:
            if self.learner is not None:
                self.learner.forget(served.learned)
            return
        if self.learner is not None:
            self.learner.end(request, served.learned)
        if not self.policy.admits(turn, self.p):
            for block in self._blocks_of(request.request_id)[served.hit_blocks :]:
                if block.ref_cnt == 1 and block.block_hash is not None:
                    self._forget(block)

    def put_off(self, blocks: list[Block]) -> None:
        """The blocks of the request being released will be freed later: remember their lanes."""
        if self.free.plan is not None:
            for block in blocks:
                self.free.assigned[block.block_id] = self.free.plan.lane(block)

    def released(self) -> None:
        """What is freed without a request being released goes to the usual lane."""
        self.free.plan = None

    def cached(self, blocks: list[Block], start: int, end: int) -> None:
        """A request's blocks from `start` to `end` - 1 have got their hashes."""
        above = blocks[start - 1].block_hash if start else None
        for block in blocks[start:end]:
            if block.block_hash is not None:
                self.free.gained(block.block_hash, above)
            above = block.block_hash

    def uncached(self, keys: list[Any]) -> None:
        """A block has lost its hash."""
        for key in keys:
            self.free.lost(key)

    def cleared(self) -> None:
        """All blocks have."""
        self.free.lost_all()
        if self.learner is not None:
            self.learner.cleared()


def lane_policy(policy: Policy, where: str = "policy") -> LanePolicy:
    """A policy that an engine can follow; UsageError for others, which stand at `where`."""
    if isinstance(policy, LanePolicy) and policy.runs_in_plugin():
        return policy
    why = "knows the future" if policy.hindsight else "orders blocks by more than recency lists"
    raise UsageError(
        f"{policy.name} {why}, so kvscope's plugin cannot run it",
        where=where,
        remedy=f"take one of {plugin_policies()}",
    )

"""What learners with a guard share in an engine: which blocks were touched, and the guard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from kvscope.learning.guard import FALLBACK, OnlineGuard
from kvscope.learning.lane_heap import Scores
from kvscope.learning.learners import OnlineLearner, computed_blocks
from kvscope.learning.observer import Request, log
from kvscope.learning.prefixes import Key
from kvscope.learning.recent_blocks import (
    PrefixMatch,
    RecentBlocks,
    TouchedSegments,
    remembered_requests,
)
from kvscope.learning.shadow_cache import Kind
from kvscope.policies.base import LanePolicy

REVERTS = "with a guard that reverts to LRU"
MEMORY = 4608  # requests whose blocks are known, as many as `gittins` has by default


class GuardedLearner(OnlineLearner):
    """Follows the blocks of the latest `memory` requests, and what a guard takes by them.

    `candidate` is the one in force; without a guard it stays. `gaps_s` as in `RecentBlocks`.
    """

    candidate = FALLBACK

    def __init__(
        self, policy: LanePolicy, block_size: int, memory: int, gaps_s: Sequence[float] = ()
    ) -> None:
        self.policy, self.block_size = policy, block_size
        self.slots = remembered_requests(memory)
        self.recent = RecentBlocks(memory, most_requests=self.slots, gaps_s=gaps_s)
        self.online_guard: OnlineGuard | None = None

    @abstractmethod
    def kinds(self, match: PrefixMatch, prompt_tokens: int, output_tokens: int) -> Sequence[Kind]:
        """Return the class and cuts of a request for each candidate."""

    def called(self, candidate: int) -> str:
        """Return the name of a candidate, for the log."""
        return ("LRU", "its own order")[candidate]

    def start_guard(self, capacity_blocks: int, tables: Sequence[Scores]) -> None:
        """Have a guard choose between `tables` by shadows of a cache of so many blocks."""
        self.online_guard = OnlineGuard(
            self.policy, self.block_size, capacity_blocks, tables, self.kinds, slots=self.slots
        )
        self.candidate = self.online_guard.now

    def switched(self) -> bool:
        """Return whether the guard has put another candidate in force, and log it."""
        if self.online_guard is None or self.online_guard.now == self.candidate:
            return False
        before, now, judge = self.candidate, self.online_guard.now, self.online_guard.guard
        self.candidate = now
        about = now if now != FALLBACK else before
        log.info(
            "kvscope's %s switches from %s to %s: on LRU, %s gained %.0f tokens beyond xi in the"
            " shadow caches, lately %.0f; above %.0f the gain counts as sure",
            self.policy.name,
            self.called(before),
            self.called(now),
            self.called(about),
            judge.gain[about],
            judge.lately[about],
            judge.deviation(about),
        )
        return True

    def touch_prompt(self, request: Request, arrival_s: float) -> PrefixMatch:
        """Touch the prompt's blocks of a new request; return what was known of them."""
        tokens = request.num_prompt_tokens
        match = self.recent.arrive(request.block_hashes[: tokens // self.block_size], arrival_s)
        if self.online_guard is not None:
            forgotten = self.recent.forgotten
            self.online_guard.arrive(match, tokens, arrival_s, self.recent.every, forgotten)
        return match

    def touch_output(
        self, request: Request, match: PrefixMatch, prompt_tokens: int
    ) -> tuple[int, TouchedSegments]:
        """Touch the output's blocks of a served request; return as `RecentBlocks.end` does.

        It had so many `prompt_tokens` when it came; more may have been streamed since.
        """
        full, computed = prompt_tokens // self.block_size, computed_blocks(request, self.block_size)
        more: list[Key] = request.block_hashes[full:computed]
        followed, segments = self.recent.end(more, match.number)
        if self.online_guard is not None:
            outputs = request.num_tokens - prompt_tokens
            self.online_guard.end(match.number, outputs, followed, segments)
        return followed, segments

    def forget_request(self, match: PrefixMatch) -> None:
        """Note that a request ends unserved."""
        if self.online_guard is not None:
            self.online_guard.forget(match.number)

    def cleared(self) -> None:
        """Empty the shadows; what was learned stays."""
        if self.online_guard is not None:
            self.online_guard.clear()

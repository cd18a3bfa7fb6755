"""Decide by what an engine serves when a policy's own order is in force, and when LRU."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.learning.conversations import RequestHints
from kvscope.learning.evidence import FALLBACK
from kvscope.learning.guard import MEMORY, REVERTS, GuardedLearner
from kvscope.learning.lanes import Scores
from kvscope.learning.observer import Request
from kvscope.learning.recent_blocks import PrefixMatch
from kvscope.learning.shadow_cache import Kind
from kvscope.policies.base import LRU_ORDER, OWN_ORDER, LanePolicy

_Memo: TypeAlias = tuple[PrefixMatch, int]  # and the tokens of the prompt as it came


class RevertingLearner(GuardedLearner):
    """Has the policy's own order in force where its guard takes it, else LRU."""

    in_words = REVERTS

    def __init__(self, policy: LanePolicy, block_size: int, fitted: Any) -> None:
        super().__init__(policy, block_size, MEMORY)
        self._tables: tuple[Float64s, ...] = tuple(
            np.full((1, 1), order) for order in (LRU_ORDER, OWN_ORDER)
        )
        self.table = self._tables[FALLBACK]

    def guard(self, capacity_blocks: int) -> None:
        """Start the guard, for a cache of `capacity_blocks`."""
        self.start_guard(capacity_blocks, [Scores(table) for table in self._tables])

    def arrive(self, request: Request, hints: RequestHints, arrival_s: float) -> tuple[bool, _Memo]:
        """Touch the prompt's blocks."""
        if switched := self.switched():
            self.table = self._tables[self.candidate]
        return switched, (self.touch_prompt(request, arrival_s), request.num_prompt_tokens)

    def category(self, request: Request, memo: _Memo) -> int:
        """Return the only class."""
        return 0

    def kinds(self, match: PrefixMatch, prompt_tokens: int, output_tokens: int) -> list[Kind]:
        """Return the only class and no cuts, for both orders."""
        return [(0, ()), (0, ())]

    def end(self, request: Request, memo: _Memo) -> None:
        """Touch the output's blocks."""
        self.touch_output(request, *memo)

    def forget(self, memo: _Memo) -> None:
        """Have the request leave nothing new in the shadows."""
        self.forget_request(memo[0])


LEARNER = RevertingLearner

"""Decide by an engine's requests when a policy's own order is in force, and when LRU."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.learning.evidence import FALLBACK
from kvscope.learning.guard import MEMORY, REVERTS, ArrivedRequest, GuardedLearner
from kvscope.learning.lanes import Scores
from kvscope.learning.observer import Request
from kvscope.policies.base import LRU_ORDER, OWN_ORDER, LanePolicy


class RevertingLearner(GuardedLearner):
    """Puts the policy's own order in force where its guard chooses it, else LRU."""

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

    def arrive(self, request: Request, arrival_s: float) -> tuple[bool, ArrivedRequest]:
        """Touch the prompt's blocks, inform the guard; return (whether `table` changed, memo)."""
        if switched := self.switched():
            self.table = self._tables[self.candidate]
        match = self.touch_prompt(request, arrival_s)
        self.show_guard(match, request.num_prompt_tokens, arrival_s, (0, ()))
        return switched, ArrivedRequest(match, 0, request.num_prompt_tokens)


LEARNER = RevertingLearner

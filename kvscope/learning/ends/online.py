"""Predict in an engine which conversations end, by the trees of a policy file."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvscope.learning.conversations import RequestHints, remember
from kvscope.learning.ends.chances import NOTHING, SHARED_HEAD, chance
from kvscope.learning.ends.file import FittedEnds, read_ends
from kvscope.learning.learners import OnlineLearner, computed_blocks
from kvscope.learning.observer import Request
from kvscope.learning.prefixes import Key
from kvscope.learning.recent_blocks import MOST_REQUESTS, RecentBlocks
from kvscope.policies.base import LanePolicy
from kvscope.policies.tlru_learned import ENDS_SOON, GOES_ON


class TrackedTurn(NamedTuple):
    """What is known of a request when it arrives; names as in `kvscope.learning.ends.chances`.

    `known_blocks` of its prompt were touched before.
    """

    number: int
    known_blocks: int
    turns: int
    since_s: float
    mean_gap_s: float
    head_requests: int


class TurnTracker:
    """Finds the turns that requests are, by blocks touched within `memory_s` and nothing else.

    A request goes on with the latest one whose whole prompt it begins with, unless prompts have
    branched behind its last known block in as many ways as behind a shared head. Remembered are the
    blocks of `RecentBlocks`, and the counts of the latest 65,536 heads and branch points.
    """

    def __init__(self, memory_s: float, most_requests: int = MOST_REQUESTS) -> None:
        self.recent = RecentBlocks(memory_s, most_requests=most_requests)
        self._memory_s, self._slots = memory_s, most_requests
        self._full = array("i", bytes(4 * most_requests))
        self._turns = array("i", bytes(4 * most_requests))
        self._began_s = array("d", bytes(8 * most_requests))
        self._ways: dict[Key, int] = {}
        self._heads: dict[Key, tuple[float, int]] = {}

    def arrive(self, keys: Sequence[Key], arrival_s: float) -> TrackedTurn:
        """Take in a request with these full blocks in its prompt."""
        match = self.recent.arrive(keys, arrival_s)
        turns, began_s, since_s, mean_gap_s = 0, arrival_s, NOTHING, NOTHING
        known, previous = match.known_blocks, match.previous % self._slots
        if known:
            last = keys[known - 1]
            ways = self._ways.get(last, 0)
            if known >= self._full[previous] and ways < SHARED_HEAD:
                turns, began_s = self._turns[previous] + 1, self._began_s[previous]
                since_s, mean_gap_s = match.since_s, (arrival_s - began_s) / turns
            if known < len(keys):
                remember(self._ways, last, ways + 1)
        at = match.number % self._slots
        self._full[at], self._turns[at], self._began_s[at] = len(keys), turns, began_s
        heads = self._head(keys[0], arrival_s) if keys else 0
        return TrackedTurn(match.number, known, turns, since_s, mean_gap_s, heads)

    def end(self, keys: Sequence[Key], number: int) -> None:
        """Touch the full blocks of a request's output."""
        arrival_s = self.recent.arrived_s(number)
        if arrival_s is not None and keys and not self._full[number % self._slots]:
            remember(self._heads, keys[0], (arrival_s, 0))  # it begins within an answer
        self.recent.end(keys, number)

    def _head(self, key: Key, arrival_s: float) -> int:
        """Return the number of requests before, each soon enough, with the same first block."""
        latest_s, before = self._heads.get(key, (arrival_s, -1))
        requests = before + 1 if arrival_s - latest_s <= self._memory_s else 0
        remember(self._heads, key, (arrival_s, requests))
        return requests


class EndsLearner(OnlineLearner):
    """Predicts for `tlru-learned` whether a request's conversation goes on, by a fixed fit."""

    read_fit = staticmethod(read_ends)
    needs_fit = True

    def __init__(self, policy: LanePolicy, block_size: int, fitted: FittedEnds) -> None:
        self._block_size, self._fitted = block_size, fitted
        self._turns = TurnTracker(fitted.window_s)
        self.table = np.array([[0.0], [1.0]])  # of ENDS_SOON and of GOES_ON
        self.in_words = (
            f"ends predicted {fitted.horizon_s:g} s ahead, below a probability of"
            f" {fitted.threshold:g}, fitted once to {fitted.requests} requests, not refitted,"
            " without the simulator's guard"
        )

    def arrive(
        self, request: Request, hints: RequestHints, arrival_s: float
    ) -> tuple[bool, TrackedTurn]:
        """Touch the prompt's blocks."""
        full = request.num_prompt_tokens // self._block_size
        return False, self._turns.arrive(request.block_hashes[:full], arrival_s)

    def features(self, request: Request, turn: TrackedTurn) -> tuple[float, ...]:
        """Return the features by the output until now, in the order of FEATURES."""
        full = request.num_prompt_tokens // self._block_size
        return (
            (full - turn.known_blocks) * self._block_size,
            request.num_prompt_tokens,
            request.num_tokens - request.num_prompt_tokens,
            turn.known_blocks / max(full, 1),
            turn.turns,
            turn.since_s,
            turn.mean_gap_s,
            turn.head_requests,
        )

    def category(self, request: Request, memo: TrackedTurn) -> int:
        """Return whether the conversation is predicted to end."""
        fitted = self._fitted
        if fitted.threshold <= 0.0:
            return GOES_ON
        p = chance(fitted.trees, self.features(request, memo))
        return ENDS_SOON if p < fitted.threshold else GOES_ON

    def end(self, request: Request, memo: TrackedTurn) -> None:
        """Touch the output's blocks."""
        full = request.num_prompt_tokens // self._block_size
        more = request.block_hashes[full : computed_blocks(request, self._block_size)]
        self._turns.end(more, memo.number)


LEARNER = EndsLearner

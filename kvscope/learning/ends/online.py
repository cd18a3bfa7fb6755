"""Which conversations are taken to end, by the trees that a file brings along."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvscope.learning.chances import NOTHING, SHARED_HEAD, chance
from kvscope.learning.ends.file import FittedEnds
from kvscope.learning.online.conversations import Told, remember
from kvscope.learning.online.learners import Learner, computed_blocks
from kvscope.learning.online.observer import Request
from kvscope.learning.online.prefixes import Key
from kvscope.learning.online.recent_blocks import MOST_REQUESTS, Familiar
from kvscope.policies.tlru_learned import ENDS_SOON, GOES_ON


class Asked(NamedTuple):
    """What is known of a request when it arrives; names as in `kvscope.learning.chances`.

    `known_blocks` of its prompt were touched before.
    """

    number: int
    known_blocks: int
    turns: int
    since_s: float
    mean_gap_s: float
    head_requests: int


class Turns:
    """The turns that requests are, by blocks touched within `memory_s` and nothing else.

    A request goes on with the latest one whose whole prompt it begins with, unless behind the last
    block that it knows prompts have parted in as many ways as behind a shared head. Remembered are
    the blocks of `Familiar`, and of the latest 65,536 heads and partings each how many.
    """

    def __init__(self, memory_s: float, most_requests: int = MOST_REQUESTS) -> None:
        self.familiar = Familiar(memory_s, most_requests=most_requests)
        self._memory_s, self._slots = memory_s, most_requests
        self._full = array("i", bytes(4 * most_requests))
        self._turns = array("i", bytes(4 * most_requests))
        self._began_s = array("d", bytes(8 * most_requests))
        self._ways: dict[Key, int] = {}
        self._heads: dict[Key, tuple[float, int]] = {}

    def arrive(self, keys: Sequence[Key], arrival_s: float) -> Asked:
        """A request with these full blocks in its prompt arrives."""
        seen = self.familiar.arrive(keys, arrival_s)
        turns, began_s, since_s, mean_gap_s = 0, arrival_s, NOTHING, NOTHING
        known, giver = seen.known_blocks, seen.giver % self._slots
        if known:
            last = keys[known - 1]
            ways = self._ways.get(last, 0)
            if known >= self._full[giver] and ways < SHARED_HEAD:
                turns, began_s = self._turns[giver] + 1, self._began_s[giver]
                since_s, mean_gap_s = seen.since_s, (arrival_s - began_s) / turns
            if known < len(keys):
                remember(self._ways, last, ways + 1)
        at = seen.number % self._slots
        self._full[at], self._turns[at], self._began_s[at] = len(keys), turns, began_s
        heads = self._head(keys[0], arrival_s) if keys else 0
        return Asked(seen.number, known, turns, since_s, mean_gap_s, heads)

    def end(self, keys: Sequence[Key], number: int) -> None:
        """Request `number` has these full blocks more."""
        arrival_s = self.familiar.arrived_s(number)
        if arrival_s is not None and keys and not self._full[number % self._slots]:
            remember(self._heads, keys[0], (arrival_s, 0))  # it begins within an answer
        self.familiar.end(keys, number)

    def _head(self, key: Key, arrival_s: float) -> int:
        """How many requests came before, each soon enough, that began with the same block."""
        latest_s, before = self._heads.get(key, (arrival_s, -1))
        found = before + 1 if arrival_s - latest_s <= self._memory_s else 0
        remember(self._heads, key, (arrival_s, found))
        return found


class Ends(Learner):
    """For `tlru-learned`: whether a request's conversation goes on, by a table that stays."""

    def __init__(self, block_size: int, fitted: FittedEnds) -> None:
        self._block_size, self._fitted = block_size, fitted
        self._turns = Turns(fitted.window_s)
        self.table = np.array([[0.0], [1.0]])  # of ENDS_SOON and of GOES_ON
        self.in_words = (
            f"ends foreseen for {fitted.horizon_s:g} s ahead, taken below a chance of"
            f" {fitted.threshold:g}, fitted once to {fitted.requests} requests, not refitted,"
            " without the simulator's guard"
        )

    def arrive(self, request: Request, says: Told, arrival_s: float) -> tuple[bool, Asked]:
        """It touches its prompt."""
        full = request.num_prompt_tokens // self._block_size
        return False, self._turns.arrive(request.block_hashes[:full], arrival_s)

    def known(self, request: Request, of: Asked) -> tuple[float, ...]:
        """Its features by the output it has got until now, in the order of FEATURES."""
        full = request.num_prompt_tokens // self._block_size
        return (
            (full - of.known_blocks) * self._block_size,
            request.num_prompt_tokens,
            request.num_tokens - request.num_prompt_tokens,
            of.known_blocks / max(full, 1),
            of.turns,
            of.since_s,
            of.mean_gap_s,
            of.head_requests,
        )

    def category(self, request: Request, of: Asked) -> int:
        """Whether it is taken to end."""
        threshold = self._fitted.threshold
        if threshold > 0.0 and chance(self._fitted.trees, self.known(request, of)) < threshold:
            return ENDS_SOON
        return GOES_ON

    def end(self, request: Request, of: Asked) -> None:
        """It touches what it has been answered."""
        full = request.num_prompt_tokens // self._block_size
        more = request.block_hashes[full : computed_blocks(request, self._block_size)]
        self._turns.end(more, of.number)

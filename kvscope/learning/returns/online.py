"""Learn the table of `gittins` from the requests that an engine serves, and guard its use.

The counts are the same as the `offline` module's, gathered as requests come.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
from kvscope.learning.guard import REVERTS, ArrivedRequest, GuardedLearner
from kvscope.learning.lanes import Scores
from kvscope.learning.observer import Request
from kvscope.learning.recent_blocks import (
    MOST_REQUESTS,
    PrefixMatch,
    TouchedSegments,
)
from kvscope.learning.returns.file import FittedReturns, read_returns
from kvscope.learning.returns.formulas import (
    FEATURES,
    GAPS_S,
    OWN,
    PARTS,
    ROWS,
    WINDOW_BINS,
    WORTHS,
    ReturnCounts,
    ages_of,
    began_s,
    begins_with_refit,
    bin_requests,
    return_table,
)
from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import AGES, LEVELS

RETURNED, SECONDS = 0, 1
_CLASSES = ROWS // PARTS
_BEGAN_S = began_s(np.arange(AGES)).tolist()


class ReturnEstimator:
    """The table of `gittins`, refitted at intervals to the window of latest requests.

    Requests have numbers, ascending by one. `most_requests` must exceed those of a window.
    """

    def __init__(self, refit_requests: float, most_requests: int = MOST_REQUESTS) -> None:
        self._of_a_bin, self._slots = bin_requests(refit_requests), most_requests
        self._bins: dict[int, Float64s] = {}
        self._next = 0
        self._arrival_s = array("d", bytes(8 * most_requests))
        self._waiting = array("d", bytes(8 * PARTS * most_requests))  # blocks not touched since
        self._touches = array("b", bytes(most_requests))  # parts with blocks
        self._cuts: list[tuple[int, ...]] = [()] * most_requests
        self._kind = array("i", bytes(4 * most_requests))
        self.table = self._fitted(0, 0.0)

    def refit(self, number: int, now_s: float) -> bool:
        """Refit the table if a refit is due before request `number`; return True if it was."""
        begun, into = divmod(number, self._of_a_bin)
        if into or not begun or not begins_with_refit(begun):
            return False
        self.table = self._fitted(begun, now_s)
        return True

    def arrive(self, match: PrefixMatch, kind: int, arrival_s: float, every: int) -> None:
        """Count the blocks that a request of class `kind` touches when it arrives.

        Only one block in `every` is tracked, and counts as `every` blocks.
        """
        at, blocks = match.number % self._slots, match.followed * every
        self._arrival_s[at], self._kind[at], self._cuts[at] = arrival_s, kind, match.cuts
        begin = touches = 0
        for part, cut in enumerate((*match.cuts, blocks)):
            end = min(max(cut, begin), blocks)
            self._waiting[at * PARTS + part] = end - begin
            touches += end > begin
            begin = end
        self._touches[at] = touches
        self._next = match.number + 1
        self._count_returns(arrival_s, match.segments, 0, every)

    def end(self, match: PrefixMatch, followed: int, segments: TouchedSegments, every: int) -> None:
        """Count the output blocks that a served request touched: `followed` times `every`."""
        if match.number <= self._next - self._slots:
            return
        at = match.number % self._slots
        new = at * PARTS + PARTS - 1
        self._touches[at] += self._waiting[new] <= 0 < followed
        self._waiting[new] += followed * every
        self._count_returns(self._arrival_s[at], segments, match.followed, every)

    def _count_returns(
        self, arrival_s: float, segments: TouchedSegments, start: int, every: int
    ) -> None:
        """Count returns of blocks in `segments`, the first of which begins after `start` blocks."""
        for previous, blocks in segments:
            begin, start = start * every, start + blocks
            at = previous % self._slots
            if previous <= self._next - self._slots:
                continue
            since_s = self._arrival_s[at]
            wait_s = max(arrival_s - since_s, 0.0)
            for part, cut in enumerate((*self._cuts[at], start * every)):
                if (count := min(cut, start * every) - begin) <= 0:
                    continue
                begin += count
                self._waiting[at * PARTS + part] -= count
                self._count(previous, self._kind[at], part, wait_s, count)

    def _count(self, touched: int, kind: int, part: int, wait_s: float, count: float) -> None:
        """Count blocks last touched by request `touched` that return after `wait_s`."""
        number = touched // self._of_a_bin
        if number < self._next // self._of_a_bin - WINDOW_BINS:
            return
        sums = self._bins.get(number)
        if sums is None:
            sums = self._bins[number] = np.zeros((2, ROWS, AGES))
        age, row = bisect_right(_BEGAN_S, wait_s) - 1, part * _CLASSES + kind
        sums[RETURNED, row, age] += count
        sums[SECONDS, row, age] += count * (wait_s - _BEGAN_S[age])

    def _fitted(self, begun: int, now_s: float) -> Float64s:
        """Return the table fitted to the window of bins before bin `begun`."""
        since = begun - WINDOW_BINS
        for number in [number for number in self._bins if number < since]:
            del self._bins[number]
        returned, seconds = sum(self._bins.values(), np.zeros((2, ROWS, AGES)))
        first = max(since, 0) * self._of_a_bin
        waiting, more, touches = self._count_waiting(np.arange(first, self._next), now_s)
        counts = ReturnCounts(returned, waiting, seconds + more, touches)
        return return_table(counts)

    def _count_waiting(self, requests: Int64s, now_s: float) -> tuple[Float64s, Float64s, float]:
        """Return waiting blocks and their seconds by row and age, and the touches of `requests`."""
        at = requests % self._slots
        kind = np.frombuffer(self._kind, dtype=np.int32)[at]
        age_s = np.maximum(now_s - np.frombuffer(self._arrival_s, dtype=np.float64)[at], 0.0)
        parts = np.frombuffer(self._waiting).reshape(-1, PARTS)
        blocks, ages = np.maximum(parts[at], 0.0), ages_of(age_s)[:, None]
        row = np.arange(PARTS) * _CLASSES + kind[:, None]
        cell, cells = (row * AGES + ages).ravel(), ROWS * AGES
        spent = blocks * (age_s[:, None] - began_s(ages))
        waiting, seconds = (
            np.bincount(cell, values.ravel(), cells).reshape(ROWS, AGES).astype(np.float64)
            for values in (blocks, spent)
        )
        touches = np.frombuffer(self._touches, dtype=np.int8)[at].sum()
        return waiting, seconds, float(touches)


class ReturnsLearner(GuardedLearner):
    """Learns for `gittins` how soon the blocks of each class of requests return.

    `fitted` selects the table. None: it is learned here from the start. Else it is the fit's, for
    good; or, if `fitted.refits`, until this engine has served as many requests as the fit covered,
    then it is learned here. After `guard`, one of three candidates is in force, as in the
    simulator: LRU, need alone (a block is worth the probability that a next turn needs it: all have
    the same index), or the table.
    """

    read_fit = staticmethod(read_returns)

    def __init__(self, policy: LanePolicy, block_size: int, fitted: FittedReturns | None) -> None:
        self._fitted, self._every = fitted, policy.refit_every
        super().__init__(policy, block_size, WINDOW_BINS * bin_requests(self._every), GAPS_S)
        self._estimator = None
        if fitted is None or fitted.refits:
            self._estimator = ReturnEstimator(self._every, self.slots)
        self._from = fitted.requests if fitted else 0
        if fitted is not None:
            self._values = fitted.values
        elif self._estimator is not None:
            self._values = self._estimator.table
        self.table = self._values  # what is in force
        self._scores: list[Scores] = []  # the candidates' tables as their shadows read them
        self.candidate = OWN

    def guard(self, capacity_blocks: int) -> None:
        """Start the guard, with shadow caches of `capacity_blocks`."""
        self._scores = [Scores(np.full((LEVELS, AGES), worth)) for worth in WORTHS]
        self._scores.append(Scores(self._values))
        evidence = self._fitted.evidence if self._fitted else None
        self.start_guard(capacity_blocks, tuple(self._scores), evidence)
        self.table = self._in_force()

    @property
    def in_words(self) -> str:  # type: ignore[override]  # read only
        """The origin of the table and the guard, for the log."""
        guarded = REVERTS if self.online_guard else "without a guard"
        fitted = self._fitted
        if fitted is None:
            return f"fitted every {self._every:g} requests to those before, {guarded}"
        more = ", and after as many to what is served" if fitted.refits else ""
        return f"fitted once to {fitted.requests} requests{more}, {guarded}"

    def arrive(self, request: Request, arrival_s: float) -> tuple[bool, ArrivedRequest]:
        """Touch the prompt's blocks, find its class; return (whether `table` changed, memo)."""
        changed = self._refit(arrival_s)
        changed |= self.switched()
        if changed:
            self.table = self._in_force()
        match, tokens = self.touch_prompt(request, arrival_s), request.num_prompt_tokens
        kind = self._class(match, tokens)
        self.show_guard(match, tokens, arrival_s, (0, ()), (kind, match.cuts))
        if self._estimator is not None:
            self._estimator.arrive(match, kind, arrival_s, self.recent.every)
        return changed, ArrivedRequest(match, kind, tokens)

    def _refit(self, now_s: float) -> bool:
        """Refit the table if a refit is due; return whether the table in use has changed."""
        number = self.recent.requests
        if self._estimator is None or not self._estimator.refit(number, now_s):
            return False
        if number < self._from:
            return False
        self._values = self._estimator.table
        if self.online_guard is not None:
            self._scores[OWN] = Scores(self._values)
            self.online_guard.use(tuple(self._scores))
        return True

    def called(self, candidate: int) -> str:
        """Return the name of a candidate, for the log."""
        return ("LRU", "need alone", "return times")[candidate]

    def _in_force(self) -> Float64s:
        if self.candidate == OWN:
            return self._values
        return np.full(self._values.shape, WORTHS[self.candidate])

    def cuts(self, memo: ArrivedRequest) -> Sequence[int]:
        """Return where parts of the prompt with longer waits begin, and where new blocks do."""
        return memo.match.cuts if memo.match is not None else ()

    def _class(self, match: PrefixMatch, prompt_tokens: int) -> int:
        known = match.known_blocks
        new_tokens = (prompt_tokens // self.block_size - known) * self.block_size
        values, number = {"new_tokens": new_tokens, "turns": match.turns}, 0
        for name, edges in FEATURES:
            number = number * (len(edges) + 1) + bisect_right(edges, values[name])
        return number

    def end(self, request: Request, memo: ArrivedRequest) -> None:
        """Touch the output's blocks, and count them."""
        if memo.match is None:
            return
        followed, segments = self.touch_output(request, memo.match, memo.prompt_tokens)
        if self._estimator is not None:
            self._estimator.end(memo.match, followed, segments, self.recent.every)


LEARNER = ReturnsLearner

"""Learn the table of `wa` from the requests that an engine serves.

The counts are the same as the `offline` module's, gathered as requests come.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s
from kvscope.learning.conversations import (
    MOST_CATEGORIES,
    Categories,
    Lineage,
    Sessions,
    read_hints,
)
from kvscope.learning.evidence import FALLBACK
from kvscope.learning.guard import MEMORY, REVERTS, ArrivedRequest, GuardedLearner
from kvscope.learning.lanes import Scores
from kvscope.learning.learners import FittedTable, computed_blocks
from kvscope.learning.observer import Request
from kvscope.learning.prefixes import Key
from kvscope.learning.recent_blocks import MOST_KEYS
from kvscope.learning.reuse.formulas import SLOTS, WINDOW_REFITS, ReuseCounts, reuse_table, slots_of
from kvscope.policies.base import LanePolicy

REUSED, WAITED_S, TOUCHED_AGAIN = 0, 1, 2


class _Touch(Struct, eq=False):
    """A request's touch of its blocks; `waiting` of them have not been touched since."""

    arrival_s: float
    bin: int
    category: int
    waiting: int = 0


class ReuseEstimator:
    """The table of `wa`, refitted every `refit_s` to the six refit periods before.

    `table` has a row per category. A block untouched for six periods is forgotten and counts as
    new. Beyond `most_keys` blocks, half of them, chosen by hash, are no longer tracked, and each
    tracked block stands for twice as many.
    """

    def __init__(self, refit_s: float, categories: int, most_keys: int = MOST_KEYS) -> None:
        self._refit_s = refit_s
        self._categories = categories
        self._most_keys = most_keys
        self._memory_s = WINDOW_REFITS * refit_s
        self._young: dict[Key, _Touch] = {}
        self._old: dict[Key, _Touch] = {}  # touched before `_turned_s`
        self._turned_s = 0.0
        self._touches: deque[_Touch] = deque()
        self._bins: defaultdict[int, Float64s] = defaultdict(lambda: np.zeros((3, categories)))
        self._bin = 0
        self.every = 1  # of so many blocks one is followed
        self.table = self._fitted()

    @property
    def keys(self) -> int:
        """The number of blocks tracked now."""
        return len(self._young) + len(self._old)

    def at(self, now_s: float) -> bool:
        """Advance the clock; return whether the table was refitted."""
        number = int(now_s // self._refit_s)
        if number <= self._bin:
            return False
        self._bin = number
        self.table = self._fitted()
        return True

    def touch(self, keys: Iterable[Key], category: int, arrival_s: float) -> None:
        """Count the blocks that a request touched, cached or not."""
        if arrival_s >= self._turned_s + self._memory_s:
            forgotten = arrival_s >= self._turned_s + 2 * self._memory_s
            self._old = {} if forgotten else self._young
            self._young, self._turned_s = {}, arrival_s
        touch = _Touch(arrival_s, int(arrival_s // self._refit_s), category)
        young, old, mask = self._young, self._old, self.every - 1
        before: _Touch | None = None
        count = followed = 0
        for key in keys:
            if mask and hash(key) & mask:
                continue
            previous = young.get(key)
            if previous is None and old:
                previous = old.pop(key, None)
            if previous is not before:  # blocks of one request lie together
                self._count_reuse(before, touch, count)
                before, count = previous, 0
            count += 1
            young[key] = touch
            followed += 1
        touch.waiting = followed
        self._count_reuse(before, touch, count)
        self._touches.append(touch)
        while len(young) + len(old) > self._most_keys:
            self._halve()

    def _count_reuse(self, previous: _Touch | None, touch: _Touch, count: int) -> None:
        if previous is None or count == 0:
            return
        gap_s = max(touch.arrival_s - previous.arrival_s, 0.0)
        if gap_s > self._memory_s:
            return
        previous.waiting -= count
        sums = self._bins[previous.bin]
        sums[REUSED, previous.category] += count
        sums[WAITED_S, previous.category] += count * gap_s
        self._bins[touch.bin][TOUCHED_AGAIN, touch.category] += count

    def _halve(self) -> None:
        """Drop half of the tracked blocks, by hash."""
        self.every *= 2
        mask = self.every - 1
        for generation in (self._young, self._old):
            for key in [key for key in generation if hash(key) & mask]:
                generation.pop(key).waiting -= 1
        for number in self._bins:
            self._bins[number] /= 2

    def _fitted(self) -> Float64s:
        """Return the table fitted to the window before the present bin."""
        since = self._bin - WINDOW_REFITS
        for number in [number for number in self._bins if number < since]:
            del self._bins[number]
        while self._touches and self._touches[0].bin < since:
            self._touches.popleft()
        sums = np.zeros((3, self._categories))
        for of_bin in self._bins.values():
            sums += of_bin
        waiting, since_s = np.zeros((2, 1, self._categories, SLOTS))
        self._count_waiting(waiting[0], since_s[0])
        counts = ReuseCounts(
            sums[None, REUSED] * self.every,
            sums[None, WAITED_S] * self.every,
            waiting * self.every,
            since_s / np.where(waiting > 0, waiting, 1.0),
        )
        table: Float64s = reuse_table(counts, sums[None, TOUCHED_AGAIN] * self.every)[0]
        return table

    def _count_waiting(self, waiting: Float64s, since_s: Float64s) -> None:
        """Add waiting blocks, and their seconds since the touch, to arrays (categories x SLOTS)."""
        touches = [of for of in self._touches if of.waiting > 0 and of.bin < self._bin]
        if not touches:
            return
        blocks = np.array([touch.waiting for touch in touches], dtype=np.float64)
        now_s = self._bin * self._refit_s
        age_s = np.array([max(now_s - touch.arrival_s, 0.0) for touch in touches])
        category = np.array([touch.category for touch in touches])
        cells = (category, slots_of(age_s, WINDOW_REFITS * self._refit_s))
        np.add.at(waiting, cells, blocks)
        np.add.at(since_s, cells, blocks * age_s)


class ReuseLearner(GuardedLearner):
    """Learns for `wa` how soon the blocks of each category are reused; a guard may prefer LRU."""

    def __init__(self, policy: LanePolicy, block_size: int, fitted: FittedTable | None) -> None:
        super().__init__(policy, block_size, MEMORY)
        self._guarded = policy.guarded
        self.in_words = REVERTS if self._guarded else ""
        self._estimator = ReuseEstimator(policy.values["refit_s"], MOST_CATEGORIES)
        self._lru = np.zeros_like(self._estimator.table)  # all categories are worth the same
        self._categories, self._sessions = Categories(), Sessions()
        self._lineage = Lineage(block_size)
        self._arrived = 0

    @property
    def table(self) -> Float64s:  # type: ignore[override]  # read only
        """The latest fit; the same worth for all categories where LRU is in force."""
        reverted = self._guarded and self.candidate == FALLBACK
        return self._lru if reverted else self._estimator.table

    def guard(self, capacity_blocks: int) -> None:
        """Start the guard of a guarded policy, for a cache of `capacity_blocks`."""
        if self._guarded:
            self.start_guard(capacity_blocks, self._candidates())

    def _candidates(self) -> tuple[Scores, Scores]:
        return Scores(self._lru), Scores(self._estimator.table)

    def arrive(self, request: Request, arrival_s: float) -> tuple[bool, ArrivedRequest]:
        """Find the category, inform the guard; return (True if `table` may have changed, memo)."""
        changed = self._estimator.at(arrival_s)
        if changed and self.online_guard is not None:
            self.online_guard.use(self._candidates())
        changed |= self.switched()
        number, self._arrived = self._arrived, self._arrived + 1
        hints = read_hints(request)
        if hints.session is not None:
            _, turn = self._sessions.begin(hints.session, number, hints.turn)
        else:
            inferred = self._lineage.turn(request.block_hashes, request.num_prompt_tokens)
            turn = hints.turn or inferred
        category = self._categories.number(hints.type, turn)
        match = None
        if self._guarded:
            match = self.touch_prompt(request, arrival_s)
            self.show_guard(match, request.num_prompt_tokens, arrival_s, (category, ()))
        return changed, ArrivedRequest(match, category, request.num_prompt_tokens, arrival_s, turn)

    def end(self, request: Request, memo: ArrivedRequest) -> None:
        """Touch the request's blocks that have KV, of prompt and output."""
        self._lineage.end(
            request.block_hashes, request.num_prompt_tokens, request.num_tokens, memo.turn
        )
        keys = request.block_hashes[: computed_blocks(request, self.block_size)]
        self._estimator.touch(keys, memo.kind, memo.arrival_s)
        super().end(request, memo)


LEARNER = ReuseLearner

"""How soon blocks are used again, learned from the requests that an engine serves.

The counts are those that `learning.offline.estimates` takes from a trace, gathered as requests
come; the formulas are the same code.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np

from kvscope.learning.online.prefixes import Key
from kvscope.learning.reuse.formulas import SLOTS, WINDOW_REFITS, Sums, reuse_values, slots_of
from kvscope.policies.base import Floats

MOST_KEYS = 1 << 18  # beyond that only a sample of the blocks is followed
REUSED, WAITED_S, TAKEN = 0, 1, 2


class Touch:
    """The blocks that one request touched, and how many of them nobody has touched since."""

    __slots__ = ("arrival_s", "bin", "category", "waiting")

    def __init__(self, arrival_s: float, number: int, category: int) -> None:
        self.arrival_s = arrival_s
        self.bin = number
        self.category = category
        self.waiting = 0


class ReuseEstimator:
    """The table of `Wa`, fitted every `refit_s` to six times as long before.

    `table` has a row for each of `categories`. Blocks that nobody touched within that time are
    forgotten, and count as new. Of more than `most_keys` blocks every second is forgotten and not
    followed any more, by its hash, and what is counted stands for twice as many.
    """

    def __init__(self, refit_s: float, categories: int, most_keys: int = MOST_KEYS) -> None:
        self._refit_s = refit_s
        self._categories = categories
        self._most_keys = most_keys
        self._memory_s = WINDOW_REFITS * refit_s
        self._young: dict[Key, Touch] = {}
        self._old: dict[Key, Touch] = {}  # touched before `_turned_s`
        self._turned_s = 0.0
        self._touches: deque[Touch] = deque()
        self._bins: defaultdict[int, Floats] = defaultdict(lambda: np.zeros((3, categories)))
        self._bin = 0
        self.every = 1  # of so many blocks one is followed
        self.table = self._fitted()

    @property
    def keys(self) -> int:
        """Blocks that are followed now."""
        return len(self._young) + len(self._old)

    def arrive(self, at_s: float) -> bool:
        """A request arrives; whether the table has changed."""
        number = int(at_s // self._refit_s)
        if number <= self._bin:
            return False
        self._bin = number
        self.table = self._fitted()
        return True

    def touch(self, keys: Iterable[Key], category: int, arrival_s: float) -> None:
        """A request touched the blocks with these keys, cached or not."""
        if arrival_s >= self._turned_s + self._memory_s:
            forgotten = arrival_s >= self._turned_s + 2 * self._memory_s
            self._old = {} if forgotten else self._young
            self._young, self._turned_s = {}, arrival_s
        mine = Touch(arrival_s, int(arrival_s // self._refit_s), category)
        young, old, mask = self._young, self._old, self.every - 1
        before: Touch | None = None
        count = followed = 0
        for key in keys:
            if mask and hash(key) & mask:
                continue
            giver = young.get(key)
            if giver is None and old:
                giver = old.pop(key, None)
            if giver is not before:  # blocks of one giver lie together
                self._hand_over(before, mine, count)
                before, count = giver, 0
            count += 1
            young[key] = mine
            followed += 1
        mine.waiting = followed
        self._hand_over(before, mine, count)
        self._touches.append(mine)
        while len(young) + len(old) > self._most_keys:
            self._halve()

    def _hand_over(self, giver: Touch | None, taker: Touch, count: int) -> None:
        if giver is None or count == 0:
            return
        gap_s = max(taker.arrival_s - giver.arrival_s, 0.0)
        if gap_s > self._memory_s:
            return
        giver.waiting -= count
        of = self._bins[giver.bin]
        of[REUSED, giver.category] += count
        of[WAITED_S, giver.category] += count * gap_s
        self._bins[taker.bin][TAKEN, taker.category] += count

    def _halve(self) -> None:
        """Follow every second of the blocks followed so far."""
        self.every *= 2
        mask = self.every - 1
        for some in (self._young, self._old):
            for key in [key for key in some if hash(key) & mask]:
                some.pop(key).waiting -= 1
        for number in self._bins:
            self._bins[number] /= 2

    def _fitted(self) -> Floats:
        """The table by what the window before the present bin has seen."""
        since = self._bin - WINDOW_REFITS
        for number in [one for one in self._bins if one < since]:
            del self._bins[number]
        while self._touches and self._touches[0].bin < since:
            self._touches.popleft()
        seen = np.zeros((3, self._categories))
        for sums in self._bins.values():
            seen += sums
        waiting, since_s = np.zeros((2, 1, self._categories, SLOTS))
        self._wait(waiting[0], since_s[0])
        waits = Sums(
            seen[None, REUSED] * self.every,
            seen[None, WAITED_S] * self.every,
            waiting * self.every,
            since_s / np.where(waiting > 0, waiting, 1.0),
        )
        table: Floats = reuse_values(waits, seen[None, TAKEN] * self.every)[0]
        return table

    def _wait(self, waiting: Floats, since_s: Floats) -> None:
        """Sum up by category and slot how many blocks wait, and since when."""
        touches = [one for one in self._touches if one.waiting > 0 and one.bin < self._bin]
        if not touches:
            return
        blocks = np.array([one.waiting for one in touches], dtype=np.float64)
        now_s = self._bin * self._refit_s
        age_s = np.array([max(now_s - one.arrival_s, 0.0) for one in touches])
        category = np.array([one.category for one in touches])
        at = (category, slots_of(age_s, WINDOW_REFITS * self._refit_s))
        np.add.at(waiting, at, blocks)
        np.add.at(since_s, at, blocks * age_s)

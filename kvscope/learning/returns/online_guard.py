"""What `gittins` goes by in an engine: a class set, need alone, or LRU, as the guard says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvscope.learning.guard import FIRST, LRU, NEED, RETURNS
from kvscope.learning.online.guard import Watch
from kvscope.learning.online.lane_heap import Scores
from kvscope.learning.online.observer import log
from kvscope.learning.online.recent_blocks import Seen
from kvscope.policies.base import Floats, LanePolicy
from kvscope.policies.gittins import AGES

GUARDED = "with a guard that falls back to LRU"


class ReturnsGuard:
    """The guard, and the table of the candidate that it takes.

    `values` are the tables of the class sets, whose `names` are for the log; the first is in force
    at first. In the table in force they stand below each other. `set` is the one in force, or that
    was last: the classes that requests are of.
    """

    def __init__(
        self,
        policy: LanePolicy,
        block_size: int,
        capacity_blocks: int,
        values: Sequence[Floats],
        names: Sequence[str],
        kinds_of: Callable[[Seen, int, int], Sequence[int]],
    ) -> None:
        self._name, self.set = policy.name, 0
        self._names = ["LRU", "need alone", *(f"the classes by {name}" for name in names)]
        self._alike = [np.full((2, AGES), worth) for worth in (0.0, 1.0)]
        self._scores = [Scores(one) for one in self._alike]
        self._values: list[Floats] = []
        self._by_set: list[Scores] = []
        self.watch = Watch(
            policy,
            block_size,
            capacity_blocks,
            self._told(values),
            kinds_of,
            RETURNS,
            policy.values["refit_s"] / RETURNS.looks,
        )

    @property
    def table(self) -> Floats:
        """That of the candidate in force."""
        every: Floats = np.concatenate(self._values)
        if self.watch.now < FIRST:
            every[:] = self._alike[self.watch.now][0, 0]
        return every

    def use(self, values: Sequence[Floats]) -> None:
        """Other tables of the class sets, from the next request on."""
        self.watch.use(self._told(values))

    def at(self, now_s: float) -> bool:
        """It is now so late; whether another candidate is in force, which the log tells."""
        before = self.watch.now
        if not self.watch.at(now_s):
            return False
        now, guard = self.watch.now, self.watch.guard
        self.set = now - FIRST if now >= FIRST else self.set
        log.info(
            "kvscope's %s goes by %s now, and by %s no longer: by what the shadows computed beyond"
            " xi, in the last %g s %.0f tokens against %.0f, in the last %g s %.0f against %.0f",
            self._name,
            self._names[now],
            self._names[before],
            RETURNS.evidence * self.watch.look_s,
            guard.judged[now],
            guard.judged[before],
            RETURNS.late * self.watch.look_s,
            guard.lately[now],
            guard.lately[before],
        )
        return True

    def _told(self, values: Sequence[Floats]) -> tuple[Scores, ...]:
        """What each candidate's shadow scores by; those that did not change stay the same."""
        for at, one in enumerate(values):
            if at == len(self._values):
                self._values.append(one)
                self._by_set.append(Scores(one))
            elif self._values[at] is not one:
                self._values[at], self._by_set[at] = one, Scores(one)
        return (self._scores[LRU], self._scores[NEED], *self._by_set)

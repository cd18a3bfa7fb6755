"""Which of several candidates a policy goes by: the rule, told what each would have computed.

The simulator and an engine's plugin replay the traffic as each candidate alone would have it, in
shadow caches, and tell the guard; nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LRU, NEED, FIRST = 0, 1, 2  # of `Gittins`: those that know nothing; class sets from the third on
FALLBACK = 0  # the candidate that is taken where the one in force does worse than it


class Rule(NamedTuple):
    """How a guard decides.

    It looks `looks` times from one refit to the next, and counts by the stretches in between. The
    candidate `begins_with` is in force until another one has computed less by the share `margin` in
    the `evidence` stretches before. One that has computed more than the fallback in those, or in
    the `late` stretches before, is given up for it. Nothing changes before so many have passed.
    """

    begins_with: int
    looks: int
    evidence: int
    late: int
    margin: float


RETURNS = Rule(begins_with=FIRST, looks=5, evidence=30, late=15, margin=0.02)
"""That of `Gittins`."""
LEARNED_ENDS = Rule(begins_with=0, looks=1, evidence=12, late=0, margin=0.03)
"""That of `TLruLearned`: what a threshold gains shows at once, what it loses when those come back
whom it took to end."""


class Guard:
    """Says which of so many candidates is in force, by what their shadows `computed`.

    Time is cut into numbered stretches. `judged` and `lately` are what each candidate computed in
    the evidence, and in the late part of it, that the latest decision went by.
    """

    def __init__(self, candidates: int, rule: Rule) -> None:
        self.now = rule.begins_with
        self.judged = self.lately = [0.0] * candidates
        self._candidates, self._rule = candidates, rule
        self._computed: dict[int, list[float]] = {}
        self._first: int | None = None  # stretch that a decision was asked for since it began

    def computed(self, stretch: int, tokens: Sequence[float]) -> None:
        """Each candidate had to compute so many tokens more that count, in one stretch."""
        known = self._computed.get(stretch)
        if known is None:
            self._computed[stretch] = list(tokens)
            return
        for at, more in enumerate(tokens):
            known[at] += more

    def decide(self, stretch: int) -> int:
        """The candidate in force from the beginning of a stretch on."""
        rule = self._rule
        if self._first is None:
            self._first = stretch
        for old in [one for one in self._computed if one < stretch - rule.evidence]:
            del self._computed[old]
        cost = self.judged = self._sums(stretch - rule.evidence, stretch)
        late = self.lately = self._sums(stretch - rule.late, stretch)
        if stretch < self._first + rule.late:
            return self.now
        sound = [at for at, one in enumerate(late) if one <= late[FALLBACK]]
        if self.now not in sound:
            self.now = FALLBACK
        best = min(sound, key=cost.__getitem__)
        if cost[best] < (1 - rule.margin) * cost[self.now]:
            self.now = best
        elif cost[FALLBACK] < cost[self.now]:
            self.now = FALLBACK
        return self.now

    def _sums(self, since: int, until: int) -> list[float]:
        """What each candidate computed from one stretch to another."""
        found = [0.0] * self._candidates
        for stretch in range(since, until):
            known = self._computed.get(stretch)
            if known is not None:
                for at, tokens in enumerate(known):
                    found[at] += tokens
        return found

    def forget(self) -> None:
        """What was computed until now tells nothing any more; the candidate stays in force."""
        self._computed.clear()
        self._first = None

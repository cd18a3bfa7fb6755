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

    The candidate `begins_with` is in force until another one has computed less by the share
    `margin` in the `evidence` stretches before.
    """

    begins_with: int
    evidence: int
    margin: float


RETURNS = Rule(begins_with=FIRST, evidence=6, margin=0.01)
"""That of `Gittins`; a stretch lasts from one refit to the next."""


class Guard:
    """Says which of so many candidates is in force, by what their shadows `computed`.

    Time is cut into numbered stretches. `judged` is what each candidate computed in those that the
    latest decision went by.
    """

    def __init__(self, candidates: int, rule: Rule) -> None:
        self.now = rule.begins_with
        self.judged = [0.0] * candidates
        self._candidates, self._rule = candidates, rule
        self._computed: dict[int, list[float]] = {}

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
        since = stretch - self._rule.evidence
        for old in [one for one in self._computed if one < since]:
            del self._computed[old]
        nothing = [0.0] * self._candidates
        seen = [self._computed[one] for one in sorted(self._computed) if one < stretch]
        cost = self.judged = [sum(each) for each in zip(nothing, *seen, strict=True)]
        best = min(range(self._candidates), key=cost.__getitem__)
        if cost[best] < (1 - self._rule.margin) * cost[self.now]:
            self.now = best
        elif cost[FALLBACK] < cost[self.now]:
            self.now = FALLBACK
        return self.now

    def forget(self) -> None:
        """What was computed until now tells nothing any more; the candidate stays in force."""
        self._computed.clear()

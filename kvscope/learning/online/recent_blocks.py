"""Which blocks were touched of late, and by whom: what a request brings that is new.

What `learning.returns.offline.features_of` finds in a trace, request by request as an engine sees
them. A request touches its whole prompt when it arrives, and what it has been answered when it
ends, all of it at the time of its arrival.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from kvscope.learning.online.conversations import remember
from kvscope.learning.online.prefixes import Key

MOST_KEYS = 1 << 18  # beyond that only a sample of the blocks is followed
MOST_REQUESTS = 1 << 16  # a power of 2

Stretches = list[tuple[int, int]]


class Seen(NamedTuple):
    """What is known of a request when it arrives.

    `known_blocks` of its prompt were touched before, the deepest of them `since_s` ago by request
    `giver` (0 and -1: none were). `turns` requests came before it. It takes over `followed` blocks,
    of them from each earlier request so many as `stretches` say; blocks that are not followed are
    not counted.
    """

    number: int
    known_blocks: int
    turns: int
    since_s: float
    followed: int
    stretches: Stretches
    giver: int = -1


class Familiar:
    """The blocks touched within `memory_s`, and who touched each of them last.

    Of more than `most_keys` blocks every second is forgotten and not followed any more, by its
    hash; ends of prompts are always known. Nothing is forgotten early of `most_requests`.
    """

    def __init__(
        self, memory_s: float, most_keys: int = MOST_KEYS, most_requests: int = MOST_REQUESTS
    ) -> None:
        self.every = 1  # of so many blocks one is followed
        self._memory_s, self._most_keys, self._slots = memory_s, most_keys, most_requests
        self._young: dict[Key, int] = {}
        self._old: dict[Key, int] = {}  # touched before `_turned_s`
        self._turned_s = 0.0
        self.forgotten_s = 0.0  # of what was not touched since then nothing is known
        self._ends: dict[Key, int] = {}
        self._next = 0
        self._arrival_s = array("d", bytes(8 * most_requests))
        self._full = array("i", bytes(4 * most_requests))
        self._turns = array("i", bytes(4 * most_requests))

    @property
    def keys(self) -> int:
        """Blocks that are followed now."""
        return len(self._young) + len(self._old)

    def arrive(self, keys: Sequence[Key], arrival_s: float) -> Seen:
        """A request with these full blocks in its prompt arrives."""
        if arrival_s >= self._turned_s + self._memory_s:
            late = arrival_s >= self._turned_s + 2 * self._memory_s
            self.forgotten_s = arrival_s if late else self._turned_s
            self._old, self._young, self._turned_s = {} if late else self._young, {}, arrival_s
        number, self._next = self._next, self._next + 1
        at = number % self._slots
        self._arrival_s[at], self._full[at] = arrival_s, len(keys)
        known, giver, followed, stretches = self._take(keys, number, arrival_s)
        if self.every > 1:
            known, giver = self._deeper(keys, known, giver, arrival_s)
        turns, since_s = 0, 0.0
        if giver >= 0:
            since_s = arrival_s - self._arrival_s[giver % self._slots]
            if known >= self._full[giver % self._slots]:
                turns = self._turns[giver % self._slots] + 1
        self._turns[at] = turns
        if keys:
            remember(self._ends, keys[-1], number)
        return Seen(number, known, turns, since_s, followed, stretches, giver)

    def end(self, keys: Sequence[Key], number: int) -> tuple[int, Stretches]:
        """Request `number` has these full blocks more; how many are followed, and from whom."""
        if number <= self._next - self._slots:
            return 0, []
        _, _, followed, stretches = self._take(keys, number, self._arrival_s[number % self._slots])
        return followed, stretches

    def arrived_s(self, number: int) -> float | None:
        """When a request arrived, if that is still known."""
        if number <= self._next - self._slots:
            return None
        return self._arrival_s[number % self._slots]

    def _take(
        self, keys: Sequence[Key], number: int, arrival_s: float
    ) -> tuple[int, int, int, Stretches]:
        """Touch blocks: how many are known, who touched the last of these, and as in `Seen`."""
        young, old, mask = self._young, self._old, self.every - 1
        oldest, earliest_s = max(self._next - self._slots, -1), arrival_s - self._memory_s
        stretches: Stretches = []
        known = followed = count = 0
        deepest = before = -1
        counts = late = False
        for depth, key in enumerate(keys):
            if mask and hash(key) & mask:
                continue
            giver = young.get(key, -1)
            if giver < 0 and old:
                giver = old.pop(key, -1)
            young[key] = number
            followed += 1
            if giver != before:  # blocks of one giver lie together
                if counts:
                    stretches.append((before, count))
                before, count, counts = giver, 0, giver > oldest
                late = counts and self._arrival_s[giver % self._slots] >= earliest_s
            count += 1
            if late:
                known, deepest = depth + 1, giver
        if counts:
            stretches.append((before, count))
        while len(young) + len(old) > self._most_keys:
            self._halve()
        return known, deepest, followed, stretches

    def _deeper(
        self, keys: Sequence[Key], known: int, giver: int, arrival_s: float
    ) -> tuple[int, int]:
        """The same by ends of prompts, where those that are followed do not reach as far."""
        for depth in range(len(keys) - 1, known - 1, -1):
            number = self._ends.get(keys[depth], -1)
            since_s = self.arrived_s(number) if number >= 0 else None
            if since_s is not None and since_s >= arrival_s - self._memory_s:
                return depth + 1, number
        return known, giver

    def _halve(self) -> None:
        """Follow every second of the blocks followed so far."""
        self.every *= 2
        mask = self.every - 1
        for some in (self._young, self._old):
            for key in [key for key in some if hash(key) & mask]:
                del some[key]

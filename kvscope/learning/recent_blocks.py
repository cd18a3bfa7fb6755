"""Track which blocks were touched recently, and by which request: what is new in a prompt.

Finds what `kvscope.learning.offline.prefix_features` finds in a trace, request by request as an
engine sees them. A request touches its whole prompt when it arrives, and its output when it ends,
all of it at the time of its arrival.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from kvscope.learning.conversations import remember
from kvscope.learning.prefixes import Key

MOST_KEYS = 1 << 18  # beyond that only a sample of the blocks is followed
MOST_REQUESTS = 1 << 16  # a power of 2

TouchedSegments = list[tuple[int, int]]
"""The blocks of a path from its head on, as (previous request, blocks): one segment a run."""


class PrefixMatch(NamedTuple):
    """What is known of a request when it arrives.

    `known_blocks` of its prompt were touched before. `turns` requests came before it in its
    conversation. It touches `followed` blocks, and `segments` say which request touched them
    before; blocks that are not followed are not counted. `cuts` are the depths in front of which
    blocks had waited for at most each of the gaps that `RecentBlocks` tells apart; the last one is
    `known_blocks`.
    """

    number: int
    known_blocks: int
    turns: int
    followed: int
    segments: TouchedSegments
    cuts: tuple[int, ...]


class RecentBlocks:
    """The blocks touched within `memory_s`, and the request that touched each of them last.

    Of more than `most_keys` blocks every second is forgotten and no longer followed, by its hash;
    ends of prompts are always known. The latest `most_requests` are remembered for that time.
    `gaps_s` are edges between waits that matches tell apart.
    """

    def __init__(
        self,
        memory_s: float,
        most_keys: int = MOST_KEYS,
        most_requests: int = MOST_REQUESTS,
        gaps_s: Sequence[float] = (),
    ) -> None:
        self.every = 1  # of so many blocks one is followed
        self._memory_s, self._most_keys, self._slots = memory_s, most_keys, most_requests
        self._gaps_s = gaps_s
        self._young: dict[Key, int] = {}
        self._old: dict[Key, int] = {}  # touched before `_turned_s`
        self._turned_s = 0.0
        self.forgotten_s = 0.0  # blocks not touched since then are forgotten
        self._ends: dict[Key, int] = {}
        self._next = 0
        self._arrival_s = array("d", bytes(8 * most_requests))
        self._full = array("i", bytes(4 * most_requests))
        self._turns = array("i", bytes(4 * most_requests))

    @property
    def keys(self) -> int:
        """The number of blocks followed now."""
        return len(self._young) + len(self._old)

    def arrive(self, keys: Sequence[Key], arrival_s: float) -> PrefixMatch:
        """Touch the full blocks of a new request's prompt, and return what was known of them."""
        if arrival_s >= self._turned_s + self._memory_s:
            late = arrival_s >= self._turned_s + 2 * self._memory_s
            self.forgotten_s = arrival_s if late else self._turned_s
            self._old, self._young, self._turned_s = {} if late else self._young, {}, arrival_s
        number, self._next = self._next, self._next + 1
        at = number % self._slots
        self._arrival_s[at], self._full[at] = arrival_s, len(keys)
        cuts, previous, followed, segments = self._touch(keys, number, arrival_s)
        known = cuts[-1]
        if self.every > 1:
            known, previous = self._deeper(keys, known, previous, arrival_s)
            cuts = (*cuts[:-1], known)
        turns = 0
        if previous >= 0 and known >= self._full[previous % self._slots]:
            turns = self._turns[previous % self._slots] + 1
        self._turns[at] = turns
        if keys:
            remember(self._ends, keys[-1], number)
        return PrefixMatch(number, known, turns, followed, segments, cuts)

    def end(self, keys: Sequence[Key], number: int) -> tuple[int, TouchedSegments]:
        """Touch the full blocks of a request's output; return the number followed, and segments."""
        if number <= self._next - self._slots:
            return 0, []
        _, _, followed, segments = self._touch(keys, number, self._arrival_s[number % self._slots])
        return followed, segments

    def arrived_s(self, number: int) -> float | None:
        """Return when a request arrived, None if that is forgotten."""
        if number <= self._next - self._slots:
            return None
        return self._arrival_s[number % self._slots]

    def _touch(
        self, keys: Sequence[Key], number: int, arrival_s: float
    ) -> tuple[tuple[int, ...], int, int, TouchedSegments]:
        """Touch blocks; return cuts, previous request, followed blocks and segments."""
        young, old, mask = self._young, self._old, self.every - 1
        oldest, earliest_s = max(self._next - self._slots, -1), arrival_s - self._memory_s
        segments: TouchedSegments = []
        reached = [0] * (len(self._gaps_s) + 1)  # how deep blocks of each wait lie
        followed = count = part = 0
        deepest = before = -1
        counts = late = False
        for depth, key in enumerate(keys):
            if mask and hash(key) & mask:
                continue
            previous = young.get(key, -1)
            if previous < 0 and old:
                previous = old.pop(key, -1)
            young[key] = number
            followed += 1
            if previous != before:  # blocks of one request lie together
                if counts:
                    segments.append((before, count))
                before, count, counts = previous, 0, previous > oldest
                since_s = self._arrival_s[previous % self._slots]
                late = counts and since_s >= earliest_s
                if late and self._gaps_s:
                    part = bisect_right(self._gaps_s, arrival_s - since_s)
            count += 1
            if late:
                reached[part], deepest = depth + 1, previous
        if counts:
            segments.append((before, count))
        while len(young) + len(old) > self._most_keys:
            self._halve()
        return tuple(accumulate(reached, max)), deepest, followed, segments

    def _deeper(
        self, keys: Sequence[Key], known: int, previous: int, arrival_s: float
    ) -> tuple[int, int]:
        """Return known blocks and previous request by ends of prompts, where those reach deeper."""
        for depth in range(len(keys) - 1, known - 1, -1):
            number = self._ends.get(keys[depth], -1)
            since_s = self.arrived_s(number) if number >= 0 else None
            if since_s is not None and since_s >= arrival_s - self._memory_s:
                return depth + 1, number
        return known, previous

    def _halve(self) -> None:
        """Follow every second of the blocks followed so far."""
        self.every *= 2
        mask = self.every - 1
        for generation in (self._young, self._old):
            for key in [key for key in generation if hash(key) & mask]:
                del generation[key]

"""Track which blocks were touched recently, and by which request: the rest of a prompt is new.

Finds the prefixes of `kvscope.learning.offline.features`, request by request as an engine sees
them. A request touches its whole prompt when it arrives, and its output when it ends, all of it at
the time of its arrival.
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
_AT_A_TIME = 1 << 12  # requests that an engine serves at a time, at the most that counts

TouchedSegments = list[tuple[int, int]]
"""A path's touched blocks, head first: (request that touched them last, number of blocks)."""


def remembered_requests(memory: int) -> int:
    """Return the number of requests, a power of 2, to keep for a `memory` counted in requests.

    Blocks are forgotten a whole memory at a time, so those of up to two memories are known.
    """
    return min(1 << (2 * memory + _AT_A_TIME - 1).bit_length(), MOST_REQUESTS)


class PrefixMatch(NamedTuple):
    """What is known of request `number` when it arrives.

    The first `known_blocks` of its prompt were touched recently; `turns` requests came before it in
    its conversation. `followed` of its blocks are in the sample that is tracked, and `segments`
    says which requests touched these last. `cuts` has, for each of `RecentBlocks`' `gaps_s`, the
    depth down to which blocks had waited for less, and `known_blocks` at the end.
    """

    number: int
    known_blocks: int
    turns: int
    followed: int
    segments: TouchedSegments
    cuts: tuple[int, ...]


class RecentBlocks:
    """The blocks touched by the latest `memory` requests, and the last request to touch each.

    Whenever more than `most_keys` blocks are tracked, half of them, chosen by hash, are dropped for
    good: one block in `every` is tracked. The last block of each of the latest prompts is known all
    the same, so that a prompt that repeats a whole earlier one is matched to its end. Blocks last
    touched before the request numbered `forgotten` are unknown. `most_requests`, the number of
    requests whose records are kept, must exceed `memory`. `gaps_s` divide waits (s) into the
    classes that a match distinguishes.
    """

    def __init__(
        self,
        memory: int,
        most_keys: int = MOST_KEYS,
        most_requests: int = MOST_REQUESTS,
        gaps_s: Sequence[float] = (),
    ) -> None:
        self.every = 1
        self._memory, self._most_keys, self._slots = memory, most_keys, most_requests
        self._gaps_s = gaps_s
        self._young: dict[Key, int] = {}
        self._old: dict[Key, int] = {}  # touched before request `_turned`
        self._turned = 0
        self.forgotten = 0
        self._ends: dict[Key, int] = {}
        self._next = 0
        self._arrival_s = array("d", bytes(8 * most_requests))
        self._full = array("i", bytes(4 * most_requests))
        self._turns = array("i", bytes(4 * most_requests))

    @property
    def requests(self) -> int:
        """The number of requests so far, which is the number of the next one."""
        return self._next

    @property
    def keys(self) -> int:
        """The number of blocks tracked now."""
        return len(self._young) + len(self._old)

    def arrive(self, keys: Sequence[Key], arrival_s: float) -> PrefixMatch:
        """Touch the full blocks of a new prompt; return their match with earlier requests."""
        number, self._next = self._next, self._next + 1
        if number >= self._turned + self._memory:
            self.forgotten, self._turned = self._turned, number
            self._old, self._young = self._young, {}
        at = number % self._slots
        self._arrival_s[at], self._full[at] = arrival_s, len(keys)
        cuts, previous, followed, segments = self._touch(keys, number, arrival_s)
        known = cuts[-1]
        if self.every > 1:
            known, previous = self._deeper(keys, known, previous)
            cuts = (*cuts[:-1], known)
        turns = 0
        if previous >= 0 and known >= self._full[previous % self._slots]:
            turns = self._turns[previous % self._slots] + 1
        self._turns[at] = turns
        if keys:
            remember(self._ends, keys[-1], number, self._memory + 1)
        return PrefixMatch(number, known, turns, followed, segments, cuts)

    def end(self, keys: Sequence[Key], number: int) -> tuple[int, TouchedSegments]:
        """Touch a request's full output blocks (`keys`); return (number tracked, segments).

        It is (0, []) if `number` is so old that its record is gone.
        """
        if number <= self._next - self._slots:
            return 0, []
        _, _, followed, segments = self._touch(keys, number, self._arrival_s[number % self._slots])
        return followed, segments

    def _touch(
        self, keys: Sequence[Key], number: int, arrival_s: float
    ) -> tuple[tuple[int, ...], int, int, TouchedSegments]:
        """Touch blocks; return (cuts, last request of the deepest known, tracked, segments)."""
        young, old, mask = self._young, self._old, self.every - 1
        oldest, earliest = max(self._next - self._slots, -1), number - self._memory
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
                late = counts and previous >= earliest
                if late and self._gaps_s:
                    since_s = self._arrival_s[previous % self._slots]
                    part = bisect_right(self._gaps_s, arrival_s - since_s)
            count += 1
            if late:
                reached[part], deepest = depth + 1, previous
        if counts:
            segments.append((before, count))
        while len(young) + len(old) > self._most_keys:
            self._halve()
        return tuple(accumulate(reached, max)), deepest, followed, segments

    def _deeper(self, keys: Sequence[Key], known: int, previous: int) -> tuple[int, int]:
        """Return (known, previous) by a recent prompt's last block, if that is deeper."""
        for depth in range(len(keys) - 1, known - 1, -1):
            number = self._ends.get(keys[depth], -1)
            if number >= max(self._next - 1 - self._memory, 0):
                return depth + 1, number
        return known, previous

    def _halve(self) -> None:
        """Drop half of the tracked blocks, by hash."""
        self.every *= 2
        mask = self.every - 1
        for generation in (self._young, self._old):
            for key in [key for key in generation if hash(key) & mask]:
                del generation[key]

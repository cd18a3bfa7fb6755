"""The chunks of vLLM's CPU tier in the order of a policy: a heap a lane, by the LRU's ranks.

When a request ends, its chunks go to the policy's lanes. Until then those that it wrote (and in
vLLM 0.33 those that it found) are in a list of their own, worth as much as the most valuable lane.
Of the chunks that may leave, without a held one behind them, the one of the lane that is worth
least does, of equals the one with the lowest rank. Where all lanes are worth the same, that is
vLLM's LRU, whatever is behind a chunk.

Source: vLLM 0.32.0 and 0.33.0, vllm/v1/kv_offload/cpu/policies/lru.py (LRUCachePolicy), whose lazy
heap this is. The rules are those of `kvscope.vllm_sim.chunk_lanes`; tests hold the two to be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from kvscope.learning.lane_heap import LaneHeap, Score
from kvscope.learning.prefixes import Prefixes

Key: TypeAlias = bytes
Rank: TypeAlias = Any  # a number, or from 0.33 on a pair of them

RUNNING = 0  # the list of chunks that a running request touched last; lane k is list k + 1
_SPARE = 64


class _Held(NamedTuple):
    """Where a chunk is, since when, and the chunk that it continues."""

    place: int
    touched_s: float
    above: Key | None


class ChunkLanes:
    """Chunks in lanes; `ranks` and `evictable` are vLLM's own, by key.

    `score` returns the worth of a lane after so many idle seconds; `next_step_s` is a stepwise
    policy's. `leaf`: chunks that others continue stay, unless `level` says that all lanes are worth
    the same.
    """

    def __init__(
        self,
        ranks: Mapping[Key, Rank],
        evictable: Container[Key],
        score: Score,
        next_step_s: Callable[[float], float] | None,
        *,
        leaf: bool,
    ) -> None:
        self._ranks, self._evictable, self._score, self._leaf = ranks, evictable, score, leaf
        self._highest = 0.0
        self._keeps_prefixes = False
        self._held: dict[Key, _Held] = {}
        self._parked: set[Key] = set()
        self._protected: Collection[Key] = ()
        self._passed: list[Key] = []  # protected ones that were met
        self._prefixes = Prefixes()
        self._lists: list[list[tuple[Rank, Key]]] = [[]]
        self._heap = LaneHeap(self._lists, self._oldest, self._worth, next_step_s)
        self.evictions = 0

    def __contains__(self, key: Key) -> bool:
        """Return whether a chunk is held."""
        return key in self._held

    def at(self, now_s: float) -> None:
        """Advance the clock; worths are the same until the next call."""
        self._heap.at(now_s)

    def score_anew(self, lowest: float, highest: float) -> None:
        """Drop all scores; those of lanes touched just now lie between these two."""
        self._highest, self._keeps_prefixes = highest, self._leaf and highest > lowest
        self._heap.anew()
        for key in list(self._parked):
            self.offer(key)

    def gain(self, key: Key, above: Key | None) -> None:
        """Add a chunk that a running request writes behind the chunk `above`."""
        self._held[key] = _Held(RUNNING, self._heap.now_s, above)
        self._prefixes.gain(key, above)
        if above in self._held:  # no longer a leaf
            self._heap.changed.add(self._held[above].place)

    def lose(self, key: Key) -> None:
        """Remove a chunk."""
        held = self._held.pop(key)
        self._parked.discard(key)
        self._heap.changed.add(held.place)
        above = self._prefixes.lose(key)
        if above in self._parked:
            self.offer(above)

    def move(self, key: Key, place: int | None = None) -> None:
        """Put a held chunk, whose rank has changed, into a list; None for the one it is in."""
        held = self._held[key]
        place = held.place if place is None else place
        self._heap.changed.add(held.place)
        self._held[key] = _Held(place, self._heap.now_s, held.above)
        while place >= len(self._lists):
            self._lists.append([])
        if key in self._evictable:
            self.offer(key)

    def offer(self, key: Key) -> None:
        """Have a chunk leave when its turn comes."""
        self._parked.discard(key)
        place = self._held[key].place
        entries = self._lists[place]
        heappush(entries, (self._ranks[key], key))
        self._heap.changed.add(place)
        if len(entries) > 2 * len(self._held) + _SPARE:
            entries[:] = {entry for entry in entries if self._is_current(place, entry)}
            heapify(entries)

    def keep(self, key: Key) -> None:
        """Have a chunk stay while it is read."""
        self._parked.discard(key)
        self._heap.changed.add(self._held[key].place)

    def clear(self) -> None:
        """Forget all chunks."""
        self._held.clear()
        self._parked.clear()
        self._prefixes.clear()
        for entries in self._lists:
            entries.clear()
        self._heap.look_again()

    def choose(self, count: int, protected: Collection[Key]) -> list[Key] | None:
        """Remove the first `count` chunks that are not `protected`, and return them.

        None, and nothing is removed, where there are too few.
        """
        chosen: list[tuple[Key, _Held]] = []
        self._protected = protected
        self._heap.changed.update(self._held[key].place for key in protected if key in self._held)
        while len(chosen) < count:
            key = self._first()
            if key is None:
                break
            chosen.append((key, self._held[key]))
            self.lose(key)
        self._protected, passed, self._passed = (), self._passed, []
        enough = len(chosen) == count
        if enough:
            self.evictions += count
        else:
            for key, held in chosen:
                self._held[key] = held
                self._prefixes.gain(key, held.above)
            passed += [key for key, _ in chosen]
        for key in passed:
            if key in self._evictable:
                self.offer(key)
        return [key for key, _ in chosen] if enough else None

    def _first(self) -> Key | None:
        """Return the next chunk to leave; where all have others behind them the next of those."""
        entry = self._heap.first()
        if entry is not None:
            return self._lists[entry[2]][0][1]
        oldest: dict[int, tuple[Rank, Key]] = {}
        for key in self._parked:
            place, rank = self._held[key].place, self._ranks[key]
            if key not in self._protected and (place not in oldest or rank < oldest[place][0]):
                oldest[place] = rank, key
        worths = [
            (self._worth(place, self._heap.now_s - self._held[key].touched_s), rank, key)
            for place, (rank, key) in oldest.items()
        ]
        return min(worths)[2] if worths else None

    def _is_current(self, place: int, entry: tuple[Rank, Key]) -> bool:
        rank, key = entry
        held = self._held.get(key)
        return (
            held is not None
            and held.place == place
            and key in self._evictable
            and self._ranks[key] == rank
        )

    def _oldest(self, place: int) -> tuple[Any, float] | None:
        """Return the rank and time of a list's first chunk that may leave."""
        entries = self._lists[place]
        while entries:
            rank, key = entries[0]
            if key in self._protected:
                self._passed.append(key)
            elif self._is_current(place, entries[0]):
                if not (self._keeps_prefixes and self._prefixes.has_orphans(key)):
                    return rank, self._held[key].touched_s
                self._parked.add(key)
            heappop(entries)
        return None

    def _worth(self, place: int, idle_s: float) -> float:
        return self._highest if place == RUNNING else self._score(place - 1, idle_s)

"""Shadow replays: what each candidate table would have computed, and the one that a guard takes.

A shadow is a small cache that replays the traffic as one candidate alone would have it. Time and
again a guard compares the tokens that they computed, and decides which candidate is in force.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import Paths
from kvscope.learning.guard import FALLBACK, INTERVAL_REQUESTS, Guard, interval_blocks
from kvscope.policies.base import Policy
from kvscope.replay.last_touch import NO_NEXT_TOUCHES, Segments, last_touch_segments
from kvscope.replay.replay import Tables, TouchHistory, replay
from kvscope.replay.sampling import uniform
from kvscope.replay.traffic import Traffic

SHADOW_BLOCKS = 65_536  # that a shadow holds at most: a larger cache is sampled
NO_PATHS = Paths(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))


class _ShadowSample(Struct, frozen=True):
    """A share `rate` of the traffic's conversations: its `requests`, by ascending number."""

    rate: float
    requests: Int64s
    traffic: Traffic
    segments: Segments


class Taken(NamedTuple):
    """The candidates in force: `candidate[k]` from request `since[k]` on, the first one from 0."""

    since: Int64s
    candidate: Int64s

    def over(self, since: Int64s, requests: int) -> Taken:
        """Return the candidates in force, with periods that also begin at each of `since`."""
        begins = np.unique(np.concatenate((since, self.since)))
        begins = begins[begins < max(requests, 1)]
        return Taken(begins, self.candidate[row_at(self.since, begins)])


def row_at(since: Int64s, requests: Int64s) -> Int64s:
    """Return which of the rows that hold from requests `since` on holds for each request."""
    return np.searchsorted(since, requests, side="right") - 1


class ShadowCosts(NamedTuple):
    """What each of C candidates' shadows computed in each of K intervals.

    `tokens` (C x K) are those beyond xi. An interval ends in front of request `end` (K). What
    follows the last one is no interval yet.
    """

    tokens: Float64s
    end: Int64s


class ShadowReplays:
    """Shadows of one traffic for caches of any size, one for each of the `candidates`.

    A policy goes by the candidate that a `Guard` takes; the first one is its fallback.
    """

    def __init__(self, traffic: Traffic, candidates: Sequence[Tables]) -> None:
        self.candidates = tuple(candidates)
        self._traffic = traffic
        self._samples: dict[float, _ShadowSample] = {}

    def taken(self, policy: Policy, capacity_blocks: int) -> Taken:
        """Return which candidate is in force, and from when on."""
        guard, costs = Guard(len(self.candidates)), self.costs(policy, capacity_blocks)
        since, candidate = [0], [FALLBACK]
        for end, tokens in zip(costs.end.tolist(), costs.tokens.T.tolist(), strict=True):
            if guard.judge(tokens):
                since.append(end)
                candidate.append(guard.now)
        return Taken(np.array(since), np.array(candidate))

    def costs(self, policy: Policy, capacity_blocks: int) -> ShadowCosts:
        """Return the tokens beyond xi that each shadow computed, by candidate and interval."""
        if capacity_blocks < 1:
            return ShadowCosts(np.zeros((len(self.candidates), 0)), np.zeros(0, dtype=np.int64))
        sample = self._sample(capacity_blocks)
        past = TouchHistory(sample.segments, NO_NEXT_TOUCHES, NO_PATHS)  # all that lanes need
        small = max(round(sample.rate * capacity_blocks), 1)
        blocks = np.empty((len(self.candidates), len(sample.requests)), dtype=np.int64)
        tokens = np.empty(blocks.shape)
        for at, candidate in enumerate(self.candidates):
            tables = candidate.of_requests(sample.requests)
            done = replay(sample.traffic, policy, small, history=past, tables=tables)
            xi_tokens = policy.values.get("xi_tokens", 0.0)
            blocks[at], tokens[at] = computed(sample.traffic, done.hit_blocks, xi_tokens)
        ends = interval_ends(blocks, interval_blocks(small))
        so_far = np.concatenate((np.zeros((len(tokens), 1)), tokens.cumsum(axis=1)), axis=1)
        of_intervals = np.diff(so_far[:, np.append(0, ends)], axis=1)
        return ShadowCosts(of_intervals, sample.requests[ends - 1] + 1)

    def _sample(self, capacity_blocks: int) -> _ShadowSample:
        """Return all of the traffic, or one of 2, 4, 8, ... conversations."""
        halvings = max(math.ceil(math.log2(capacity_blocks / SHADOW_BLOCKS)), 0)
        rate = 0.5**halvings
        if rate not in self._samples:
            requests = np.flatnonzero(self._place < rate)
            columns = {
                name: column[requests]
                for name, column in self._traffic._asdict().items()
                if name not in {"block_size", "block_parent"}
            }
            some = self._traffic._replace(**columns)
            self._samples[rate] = _ShadowSample(rate, requests, some, last_touch_segments(some))
        return self._samples[rate]

    @cached_property
    def _place(self) -> Float64s:
        """A number in [0, 1) for each request, the same for all of a conversation."""
        return uniform(first_turns(self._traffic, last_touch_segments(self._traffic)), seed=0)


class RevertingShadows(ShadowReplays):
    """Shadows of LRU and of a policy's `own` tables.

    `lru` is a row of its table that makes all blocks worth the same.
    """

    def __init__(self, traffic: Traffic, own: Tables, lru: Float64s) -> None:
        self._lru_row = len(own.values)
        own = replace(own, values=np.concatenate((own.values, lru[None])))
        super().__init__(
            traffic, [replace(own, rows=np.full(own.rows.shape, self._lru_row, np.int32)), own]
        )

    def tables(self) -> Tables:
        """Return the policy's own tables, and for a guarded one those that the guard takes."""
        return replace(self.candidates[1], choose=self.choose)

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Return the tables in force in a cache of `capacity_blocks`."""
        own = self.candidates[1]
        if not policy.guarded:
            return own
        taken = self.taken(policy, capacity_blocks).over(own.since, len(self._traffic.leaf))
        rows = own.rows[row_at(own.since, taken.since)]
        rows[taken.candidate == FALLBACK] = self._lru_row
        return replace(own, since=taken.since, rows=rows)


def computed(traffic: Traffic, hit_blocks: Int32s, xi_tokens: float) -> tuple[Int64s, Float64s]:
    """Return the blocks that each request computes, and the tokens beyond xi."""
    hits = hit_blocks.astype(np.int64)
    blocks: Int64s = (traffic.length + traffic.anonymous).astype(np.int64) - hits
    uncached = traffic.input_tokens - hits * traffic.block_size
    return blocks, np.maximum(uncached - xi_tokens, 0.0, dtype=np.float64)


def interval_ends(blocks: Int64s, least_blocks: float) -> Int64s:
    """Return the ends of intervals: the number of the request behind each.

    `blocks` (C x R) are what each candidate computed for each request.
    """
    ends = np.empty(blocks.shape[1] // INTERVAL_REQUESTS + 1, dtype=np.int64)
    computed = np.zeros(len(blocks), dtype=np.int64)
    return ends[: _fill_ends(blocks, least_blocks, INTERVAL_REQUESTS, computed, ends)]


@kernel
def _fill_ends(
    blocks: Int64s, least_blocks: float, least_requests: int, computed: Int64s, ends: Int64s
) -> int:
    """Fill `ends`, and return how many there are; `computed` (C zeros) is overwritten."""
    count = begin = 0
    for request in range(blocks.shape[1]):
        most = 0
        for candidate in range(len(computed)):
            computed[candidate] += blocks[candidate, request]
            most = max(most, computed[candidate])
        if request + 1 - begin >= least_requests and most >= least_blocks:
            begin = request + 1
            ends[count] = begin
            count += 1
            computed[:] = 0
    return count


def first_turns(traffic: Traffic, segments: Segments) -> Int64s:
    """Return the request that began each one's conversation, as far as blocks show.

    A request continues the latest one that is the whole beginning of it. One that leaves another
    half-way, as behind a shared head, begins anew.
    """
    first = np.arange(len(traffic.leaf))
    whole = segments.end == traffic.length[segments.previous]
    first[segments.request[whole]] = segments.previous[whole]
    while not np.array_equal(first, first[first]):
        first = first[first]
    return first

"""Shadow replays: the work of each candidate table, and the candidate that a guard chooses.

A shadow is a small cache that replays the traffic under one candidate alone. After each request a
guard compares the tokens that the shadows computed, and decides which candidate is in force.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import Paths
from kvscope.learning.evidence import FALLBACK, Goal, GuardEvidence, decided, note_request
from kvscope.policies.base import Policy
from kvscope.replay.last_touch import NO_NEXT_TOUCHES, Segments, last_touch_segments
from kvscope.replay.replay import Tables, TouchHistory, replay
from kvscope.replay.sampling import uniform
from kvscope.replay.traffic import Traffic

SHADOW_BLOCKS = 65_536  # that a shadow holds at most: a larger cache is sampled
NO_PATHS = Paths(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))


class _ShadowSample(Struct, frozen=True):
    """A share `rate` (0-1) of conversations: their `requests` (ascending), traffic and segments."""

    rate: float
    requests: Int64s
    traffic: Traffic
    segments: Segments


class Taken(NamedTuple):
    """The candidates in force: `candidate[k]` from request `since[k]` on, the first one from 0."""

    since: Int64s
    candidate: Int64s

    def over(self, since: Int64s, requests: int) -> Taken:
        """Return the same candidates, but periods also begin at `since` below `requests`."""
        begins = np.unique(np.concatenate((since, self.since)))
        begins = begins[begins < max(requests, 1)]
        return Taken(begins, self.candidate[row_at(self.since, begins)])


def row_at(since: Int64s, requests: Int64s) -> Int64s:
    """Return the row that holds for each request; row k holds from request `since[k]` on."""
    return np.searchsorted(since, requests, side="right") - 1


class Computed(NamedTuple):
    """Blocks, and tokens of the prompt, that C candidates compute of R `requests` (R x C each).

    The requests are a share `rate` of the traffic, in caches with that share of the capacity.
    """

    requests: Int64s
    arrival_s: Float64s
    blocks: Int64s
    tokens: Float64s
    rate: float


class GuardedShadows:
    """Shadows of one traffic for caches of any size, one for each candidate of a guard.

    The constructor's `own` are the policy's tables: the last candidate. Each row of `simple` is
    another candidate, the first of them LRU: a table with this row for all requests and `lanes`
    lanes. The guard begins with the `evidence` of an earlier run, if there is any.
    """

    def __init__(
        self,
        traffic: Traffic,
        own: Tables,
        simple: Float64s,
        *,
        lanes: int = 1,
        evidence: GuardEvidence | None = None,
    ) -> None:
        self._traffic, self._evidence, self._simple = traffic, evidence, len(own.values)
        self._own = own = replace(own, values=np.concatenate((own.values, simple)))
        nothing = np.zeros(len(traffic.leaf), dtype=np.int32)
        alike = replace(own, since=own.since[:1], classes=nothing, cuts=traffic.cuts[:, :0])
        rows = np.arange(self._simple, len(own.values), dtype=np.int32)
        self.candidates = (
            *(replace(alike, rows=np.full((1, lanes), row, dtype=np.int32)) for row in rows),
            own,
        )
        self._samples: dict[float, _ShadowSample] = {}

    def tables(self) -> Tables:
        """Return the policy's tables for caches of any size; a replay calls their `choose`."""
        return replace(self._own, choose=self.choose)

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Return the policy's own tables for a cache; with a guard, as the guard changes them.

        While the guard has another candidate in force, that one's row stands in place of all rows.
        """
        own = self._own
        if not policy.guarded:
            return own
        taken = self.taken(policy, capacity_blocks).over(own.since, len(self._traffic.leaf))
        rows = own.rows[row_at(own.since, taken.since)]
        simple = taken.candidate < len(self.candidates) - 1
        rows[simple] = (self._simple + taken.candidate[simple])[:, None]
        return replace(own, since=taken.since, rows=rows)

    def taken(self, policy: Policy, capacity_blocks: int) -> Taken:
        """Return the candidates in force, and since which request."""
        done, in_force, _ = self._judged(policy, capacity_blocks)
        changes = np.flatnonzero(np.diff(in_force))
        since = np.concatenate(([0], done.requests[changes] + 1))
        return Taken(since, in_force[np.concatenate(([0], changes + 1))])

    def evidence(self, policy: Policy, capacity_blocks: int) -> GuardEvidence:
        """Return the guard's evidence after the last request."""
        return self._judged(policy, capacity_blocks)[2]

    def _judged(
        self, policy: Policy, capacity_blocks: int
    ) -> tuple[Computed, Int64s, GuardEvidence]:
        done, known = (
            self.computed(policy, capacity_blocks),
            GuardEvidence.none(len(self.candidates)),
        )
        if self._evidence is not None:
            known = self._evidence.discounted()
        small = max(round(done.rate * capacity_blocks), 1)
        goal = Goal.of(policy.values, float(small), done.rate)
        return done, judged(done, goal, known), known

    def computed(self, policy: Policy, capacity_blocks: int) -> Computed:
        """Return the blocks and tokens that each shadow computes; empty for a capacity of 0."""
        if capacity_blocks < 1:
            nothing = np.zeros((0, len(self.candidates)))
            return Computed(
                np.zeros(0, np.int64), np.zeros(0), nothing.astype(np.int64), nothing, 1.0
            )
        sample = self._sample(capacity_blocks)
        past = TouchHistory(sample.segments, NO_NEXT_TOUCHES, NO_PATHS)  # all that lanes need
        small = max(round(sample.rate * capacity_blocks), 1)
        blocks = np.empty((len(sample.requests), len(self.candidates)), dtype=np.int64)
        tokens = np.empty(blocks.shape)
        for at, candidate in enumerate(self.candidates):
            tables = candidate.of_requests(sample.requests)
            done = replay(sample.traffic, policy, small, history=past, tables=tables)
            hits = done.hit_blocks.astype(np.int64)
            blocks[:, at] = sample.traffic.length + sample.traffic.anonymous - hits
            tokens[:, at] = sample.traffic.input_tokens - hits * sample.traffic.block_size
        arrival_s = sample.traffic.arrival_s
        return Computed(sample.requests, arrival_s, blocks, tokens, sample.rate)

    def _sample(self, capacity_blocks: int) -> _ShadowSample:
        """Return all of the traffic, or for a large cache 1 of 2, 4, 8, ... conversations."""
        halvings = max(math.ceil(math.log2(capacity_blocks / SHADOW_BLOCKS)), 0)
        rate = 0.5**halvings
        if rate not in self._samples:
            requests = np.flatnonzero(self._place < rate)
            some = self._traffic.of_requests(requests)
            self._samples[rate] = _ShadowSample(rate, requests, some, last_touch_segments(some))
        return self._samples[rate]

    @cached_property
    def _place(self) -> Float64s:
        """A number in [0, 1) for each request, the same for all requests of a conversation."""
        return uniform(first_turns(self._traffic, last_touch_segments(self._traffic)), seed=0)


def judged(done: Computed, goal: Goal, evidence: GuardEvidence) -> Int64s:
    """Return the candidate in force before each request, and after the last one (R + 1).

    The computed blocks and tokens are added to `evidence`.
    """
    in_force = np.empty(len(done.requests) + 1, dtype=np.int64)
    _judge(evidence, goal, done.arrival_s, done.blocks, done.tokens, in_force)
    return in_force


@kernel
def _judge(
    evidence: GuardEvidence,
    goal: Goal,
    arrival_s: Float64s,
    blocks: Int64s,
    tokens: Float64s,
    in_force: Int64s,
) -> None:
    now, before_s = decided(evidence, FALLBACK), 0.0
    for request in range(len(arrival_s)):
        in_force[request] = now
        passed_s, before_s = arrival_s[request] - before_s, arrival_s[request]
        note_request(evidence, goal, passed_s, blocks[request], tokens[request])
        now = decided(evidence, now)
    in_force[len(arrival_s)] = now


def first_turns(traffic: Traffic, segments: Segments) -> Int64s:
    """Return the first request of each request's conversation, as far as blocks show it.

    A request continues the latest one whose whole path begins its own. A request that branches off
    in the middle of another's path, as behind a shared head, begins a conversation.
    """
    first = np.arange(len(traffic.leaf))
    whole = segments.end == traffic.length[segments.previous]
    first[segments.request[whole]] = segments.previous[whole]
    while not np.array_equal(first, first[first]):
        first = first[first]
    return first

"""Shadow replays: what each candidate table would have computed, and the one that a guard takes.

A shadow is a small cache that replays the traffic as one candidate alone would have it. Time and
again a guard compares the tokens that they computed, and decides which candidate is in force.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from kvscope.core.arrays import Int64s
from kvscope.core.prefix import Paths
from kvscope.learning.guard import Guard, Rule
from kvscope.learning.offline.refits import refits_of
from kvscope.policies.base import Floats, Policy
from kvscope.replay.last_touch import NO_NEXT_TOUCHES, Segments, last_touch_segments
from kvscope.replay.replay import Tables, TouchHistory, replay
from kvscope.replay.sampling import uniform
from kvscope.replay.traffic import Traffic

SHADOW_BLOCKS = 65_536  # that a shadow holds at most: a larger cache is sampled
NO_PATHS = Paths(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))


@dataclass(frozen=True, slots=True)
class _ShadowSample:
    """A share `rate` of the traffic's conversations: its `requests`, by ascending number."""

    rate: float
    requests: Int64s
    traffic: Traffic
    segments: Segments


class ShadowReplays:
    """Shadows of one traffic for caches of any size, one for each of the `candidates`.

    A policy goes by the candidate that the guard's `rule` takes; the first one is its fallback.
    """

    rule: ClassVar[Rule]

    def __init__(self, traffic: Traffic, refit_s: float, candidates: Sequence[Tables]) -> None:
        self.candidates = tuple(candidates)
        self._traffic = traffic
        self._refits = refits_of(traffic, refit_s)
        self._looks = refits_of(traffic, refit_s / self.rule.looks)
        self._samples: dict[float, _ShadowSample] = {}

    def taken(self, costs: Floats) -> Int64s:
        """Return the candidate in force from each look of the guard on.

        `costs` (candidates, looks) is what shadows computed between a look and the next.
        """
        guard, taken = Guard(len(costs), self.rule), []
        for number, cost in zip(self._looks.number.tolist(), costs.T.tolist(), strict=True):
            taken.append(guard.decide(number))
            guard.computed(number, cost)
        return np.array(taken, dtype=np.int64)

    def last_taken(self, policy: Policy, capacity_blocks: int) -> int:
        """Return the candidate in force at the end of a replay."""
        return int(self.taken(self.costs(policy, capacity_blocks))[-1])

    def costs(self, policy: Policy, capacity_blocks: int) -> Floats:
        """Return the tokens beyond xi that each shadow computed, by candidate and look."""
        shape = len(self.candidates), len(self._looks.number)
        costs = np.zeros(shape)
        if capacity_blocks < 1:
            return costs
        sample = self._sample(capacity_blocks)
        past = TouchHistory(sample.segments, NO_NEXT_TOUCHES, NO_PATHS)  # all that lanes need
        small = max(round(sample.rate * capacity_blocks), 1)
        row = np.searchsorted(self._looks.number, self._looks.bin[sample.requests])
        for at, candidate in enumerate(self.candidates):
            tables = candidate.of_requests(sample.requests)
            done = replay(sample.traffic, policy, small, history=past, tables=tables)
            hit_tokens = done.hit_blocks.astype(np.int64) * self._traffic.block_size
            computed = sample.traffic.input_tokens - hit_tokens - policy.values["xi_tokens"]
            costs[at] = np.bincount(row, np.maximum(computed, 0.0), minlength=shape[1])
        return costs

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
    def _place(self) -> Floats:
        """A number in [0, 1) for each request, the same for all of a conversation."""
        return uniform(first_turns(self._traffic, last_touch_segments(self._traffic)), seed=0)


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

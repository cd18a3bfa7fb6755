"""Which class set a policy goes by, or none: what small caches of the past's traffic say.

A shadow is a cache that holds no tokens: it replays the traffic as one candidate alone would have
it. Time and again a guard looks at what they computed, and says which candidate is in force.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.prefix import Paths
from kvscope.learning.guard import FIRST, RETURNS, Guard, Rule
from kvscope.learning.offline.refits import refits_of
from kvscope.policies.base import Policy
from kvscope.policies.gittins import AGES
from kvscope.replay.last_touch import NO_NEXT_TOUCHES, Segments, last_touch_segments
from kvscope.replay.replay import Tables, TouchHistory, replay
from kvscope.replay.sampling import uniform
from kvscope.replay.traffic import Traffic

SHADOW_BLOCKS = 65_536  # that a shadow holds at most: a larger cache is sampled
NO_PATHS = Paths(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Candidate(NamedTuple):
    """What a policy may go by: `Tables` of its own and the class of each request in them."""

    since: NDArray[np.int64]
    values: Floats
    classes: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Sample:
    """A share `rate` of the traffic's conversations: its `requests`, by ascending number."""

    rate: float
    requests: Ints
    traffic: Traffic
    moved: Segments


class Shadows:
    """Shadows of one traffic, for caches of any size."""

    rule: ClassVar[Rule] = RETURNS

    def __init__(self, traffic: Traffic, refit_s: float, learned: Sequence[Candidate]) -> None:
        """`learned` has a candidate for each class set, with the same refits."""
        self._traffic, self._learned = traffic, tuple(learned)
        self._refits = refits_of(traffic, refit_s)
        self._looks = refits_of(traffic, refit_s / self.rule.looks)
        nothing = np.zeros(len(traffic.leaf), dtype=np.int32)
        self._simple = tuple(
            Candidate(np.zeros(1, dtype=np.int64), np.full((1, 2, AGES), worth), nothing)
            for worth in (0.0, 1.0)  # nothing is worth anything: LRU; all the same: need alone
        )
        self._samples: dict[float, _Sample] = {}

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All that is chosen from; the first is what the policy falls back to."""
        return (*self._simple, *self._learned)

    def tables(self) -> Tables:
        """The tables that choose for each cache; as they are, those of the first class set."""
        values = np.concatenate([one.values for one in self._learned], axis=1)
        return Tables(self._refits.since, values, self._learned[0].classes, self.choose)

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """The tables of the candidates that are taken up, each from then on.

        A request keeps the class of the set that was in force, or had been last, when it came. Each
        set's classes are refitted all the time.
        """
        taken = self.taken(self.costs(policy, capacity_blocks))
        changed = np.flatnonzero(np.diff(taken, prepend=-1))
        since = np.unique(np.concatenate((self._refits.since, self._looks.since[changed])))
        now = taken[_row(self._looks.since, since)]
        begins = np.cumsum([0, *(one.values.shape[1] // 2 for one in self._learned)])
        every = [one.classes + begin for one, begin in zip(self._learned, begins, strict=False)]
        latest, sets = 0, []
        for candidate in now.tolist():
            latest = candidate - FIRST if candidate >= FIRST else latest
            sets.append(latest)
        requests = np.arange(len(self._traffic.leaf))
        classes = np.stack(every)[np.array(sets)[_row(since, requests)], requests]
        values = self.tables().values[_row(self._refits.since, since)]
        for candidate, one in enumerate(self._simple):
            values[now == candidate] = one.values[0, 0]
        return Tables(since, values, classes.astype(np.int32))

    def taken(self, costs: Floats) -> NDArray[np.int64]:
        """The candidate in force from each look of the guard on.

        `costs` (candidates, looks) is what shadows computed between a look and the next.
        """
        guard, found = Guard(len(costs), self.rule), []
        for number, cost in zip(self._looks.number.tolist(), costs.T.tolist(), strict=True):
            found.append(guard.decide(number))
            guard.computed(number, cost)
        return np.array(found, dtype=np.int64)

    def costs(self, policy: Policy, capacity_blocks: int) -> Floats:
        """Tokens beyond xi that each candidate's shadow computed, from each look to the next."""
        shape = len(self.candidates), len(self._looks.number)
        costs = np.zeros(shape)
        if capacity_blocks < 1:
            return costs
        sample = self._sample(capacity_blocks)
        past = TouchHistory(sample.moved, NO_NEXT_TOUCHES, NO_PATHS)  # all that lanes ask for
        small = max(round(sample.rate * capacity_blocks), 1)
        row = np.searchsorted(self._looks.number, self._looks.bin[sample.requests])
        for at, one in enumerate(self.candidates):
            since = np.searchsorted(sample.requests, one.since)
            tables = Tables(since, one.values, one.classes[sample.requests])
            done = replay(sample.traffic, policy, small, history=past, tables=tables)
            hit_tokens = done.hit_blocks.astype(np.int64) * self._traffic.block_size
            computed = sample.traffic.input_tokens - hit_tokens - policy.values["xi_tokens"]
            costs[at] = np.bincount(row, np.maximum(computed, 0.0), minlength=shape[1])
        return costs

    def _sample(self, capacity_blocks: int) -> _Sample:
        """All of the traffic, or of 2, 4, 8, ... conversations one."""
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
            self._samples[rate] = _Sample(rate, requests, some, last_touch_segments(some))
        return self._samples[rate]

    @cached_property
    def _place(self) -> Floats:
        """Of each request a number in [0, 1), the same for all of a conversation."""
        return uniform(first_turns(self._traffic, last_touch_segments(self._traffic)), seed=0)


def _row(since: Ints, requests: Ints) -> Ints:
    """Which of the rows that hold from requests `since` on holds for each of these."""
    return np.searchsorted(since, requests, side="right") - 1


def first_turns(traffic: Traffic, moved: Segments) -> Ints:
    """The request that began each one's conversation, as far as blocks tell.

    A request goes on with the latest one that is the whole beginning of it. One that leaves another
    half-way, as behind a head that many share, begins anew.
    """
    first = np.arange(len(traffic.leaf))
    whole = moved.end == traffic.length[moved.previous]
    first[moved.request[whole]] = moved.previous[whole]
    while not np.array_equal(first, first[first]):
        first = first[first]
    return first

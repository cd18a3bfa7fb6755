"""A trace ready to be replayed by every policy, and what is judged of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import ReadOptions
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.latency.profile import PRESETS
from kvscope.learning.offline.estimates import tables_for
from kvscope.policies.base import Policy
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.curve import HitCurve, lru_curve
from kvscope.replay.policy_options import Variant
from kvscope.replay.replay import NO_TABLES, Tables, history, replay
from kvscope.replay.traffic import traffic
from kvscope.replay.variants import bind, found_values
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts

WARMUP = 0.4  # of the requests, which do not count
DRAWS = 1_000
INTERVAL = (0.025, 0.975)
LEAST_GAP = 0.005  # of LRU's own figure: shares of less tell nothing
FEWEST = 10  # conversations that lose anything with LRU: fewer tell nothing either
NO_GAP = "–"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, told_and_drawn: Floats) -> Figure:
        """From the number as it is and as the draws have it."""
        drawn = np.sort(told_and_drawn[1:][np.isfinite(told_and_drawn[1:])])
        low, high = (float(drawn[int(np.ceil(rank * len(drawn))) - 1]) for rank in INTERVAL)
        return cls(float(told_and_drawn[0]), low, high)

    def __str__(self) -> str:
        """As tables show it."""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Judged:
    """The trace in a file; the requests after the first 40 % count."""

    def __init__(self, name: str, path: Path, read: ReadOptions | None = None) -> None:
        self.name = name
        with open_store(MEMORY) as store:
            trace = ingest(store, str(path), IngestOptions(read=read or ReadOptions())).trace
            self.prompts: Prompts = load_prompts(store, trace)
        self.traffic = traffic(self.prompts, standard())
        self.past = history(self.traffic)
        self._found = found_values(self.traffic, PRESETS["llama2-7b-a100"], None)
        self.first = int(len(self.prompts.leaf) * WARMUP)
        self.input_tokens = self.prompts.input_tokens[self.first :].astype(np.int64)
        known, self._conversation = np.unique(
            self.prompts.conversation[self.first :], return_inverse=True
        )
        self.conversations = len(known)

    @cached_property
    def curve(self) -> HitCurve:
        """LRU at every capacity."""
        return lru_curve(self.prompts, replace(standard(), warmup=WARMUP))

    @cached_property
    def _tables(self) -> dict[str, Tables]:
        return {
            policy.table: tables_for(self.traffic, policy)
            for policy in POLICIES
            if policy.table is not None
        }

    def tables(self, policy: Policy) -> Tables:
        """What the policy learns on the way."""
        return NO_TABLES if policy.table is None else self._tables[policy.table]

    def bound(self, name: str, xi_tokens: float) -> Policy:
        """The policy with parameters as the trace's first fifth says, and this xi if it has one."""
        kind = by_name(name)
        takes = any(one.name == "xi_tokens" for one in kind.parameters)
        return bind(Variant(kind, {"xi_tokens": xi_tokens} if takes else {}), self._found)

    def uncached(self, name: str, xi_tokens: int, capacity: int) -> Floats:
        """Uncached tokens of each request that counts."""
        policy = self.bound(name, float(xi_tokens))
        told = self.tables(policy)
        done = replay(self.traffic, policy, capacity, past=self.past, tables=told)
        return self.left(done.hit_blocks)

    def left(self, hit_blocks: NDArray[np.int32]) -> Floats:
        """The same from the hits of all requests."""
        hits = hit_blocks[self.first :].astype(np.int64) * self.prompts.block_size
        left: Floats = np.maximum(self.input_tokens - hits, 0).astype(np.float64)
        return left

    def conversations_in(self, some: NDArray[np.bool_]) -> int:
        """How many conversations some of the requests that count are of."""
        return len(np.unique(self._conversation[some]))

    @cached_property
    def _draws(self) -> Floats:
        """How often each conversation is in each draw; the first row has each of them once."""
        each = np.full(self.conversations, 1 / self.conversations)
        drawn = np.random.default_rng(0).multinomial(self.conversations, each, size=DRAWS)
        return np.concatenate((np.ones((1, self.conversations)), drawn))

    def sums(self, cost: Floats) -> Floats:
        """The sum over all requests that count, and over those of each draw."""
        of_each = np.bincount(self._conversation, cost, minlength=self.conversations)
        summed: Floats = self._draws @ of_each
        return summed

    def closed(self, xi: int, lru: Floats, best: Floats, own: Floats) -> str:
        """The share of the gap in tokens beyond `xi` that is closed, with its interval.

        From what each of them left uncached of the requests that count.
        """
        if self.conversations_in(lru > xi) < FEWEST:
            return NO_GAP
        base, least, had = (self.sums(np.maximum(one - xi, 0.0)) for one in (lru, best, own))
        gap = base - least
        if gap[0] <= LEAST_GAP * base[0]:
            return NO_GAP
        return str(Figure.of((base - had) / np.where(gap > 0, gap, np.nan)))

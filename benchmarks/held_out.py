"""Replay policies on a trace and compare them on its held-out requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.profiles import PROFILES
from benchmarks.tel_bound import tel_tokens_at_least
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import ReadOptions
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.latency.profile import PRESETS
from kvscope.learning.offline.learners import tables_for
from kvscope.policies.base import Policy
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.curve import HitCurve, lru_curve
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.policy_options import Variant, guarded
from kvscope.replay.replay import NO_TABLES, Replay, Tables, replay, touch_history
from kvscope.replay.traffic import traffic
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.synth.profiles import write_jsonl

WARMUP = 0.4  # share of the requests that are not counted
RESAMPLES = 1_000
INTERVAL = (0.025, 0.975)
LEAST_GAP = 0.005  # of LRU's figure; a share of a smaller gap says nothing
FEWEST_CONVERSATIONS = 10  # that lose anything under LRU
STRETCHES = 20  # of equally many requests, for intervals by time
LEVELS = (0.25, 0.5, 0.75)
"""Capacities: where LRU reaches these shares of the infinite cache's hit rate."""
WITH_GUARD = " with guard"  # behind the name of a policy
SAMPLES = ("to-c", "to-b", "agent", "birth-death", "regime-change")
MOONCAKE, SESSIONS = "mooncake_conversation.jsonl.gz", "weka_agent_sessions.jsonl.gz"
SESSIONS_PER_S = 1 / 200

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % CI."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> Estimate:
        """Return the estimate from the value itself, first, and those of the resamples."""
        resampled = np.sort(values[1:][np.isfinite(values[1:])])
        low, high = (float(resampled[int(np.ceil(rank * len(resampled))) - 1]) for rank in INTERVAL)
        return cls(float(values[0]), low, high)

    def __str__(self) -> str:
        """Return the text of a table's cell."""
        return f"{self.value:.2f} {self.interval}"

    @property
    def interval(self) -> str:
        """The text of the CI alone."""
        return f"[{self.low:.2f}, {self.high:.2f}]"


class HeldOut:
    """A trace whose requests after the first 40 % are counted."""

    def __init__(self, name: str, path: Path, read: ReadOptions | None = None) -> None:
        self.name = name
        with open_store(MEMORY) as store:
            trace = ingest(store, str(path), IngestOptions(read=read or ReadOptions())).trace
            self.trace = trace
            self.prompts: Prompts = load_prompts(store, trace)
        self.traffic = traffic(self.prompts, standard())
        self.past = touch_history(self.traffic)
        self._parameters = estimate_parameters(self.traffic, PRESETS["llama2-7b-a100"], None)
        self.first = int(len(self.prompts.leaf) * WARMUP)
        self.input_tokens = self.prompts.input_tokens[self.first :].astype(np.int64)
        conversations, self._conversation = np.unique(
            self.prompts.conversation[self.first :], return_inverse=True
        )
        self.conversations, counted = len(conversations), len(self.input_tokens)
        self._stretch = np.arange(counted) * STRETCHES // max(counted, 1)

    @cached_property
    def capacities(self) -> list[int]:
        """The capacities in blocks at which LRU reaches LEVELS of the ideal hit rate."""
        curve: HitCurve = lru_curve(self.prompts, replace(standard(), warmup=WARMUP))
        return [curve.capacity_for(level * curve.ideal) for level in LEVELS]

    @cached_property
    def _tables(self) -> dict[str, Tables]:
        return {
            policy.learner: tables_for(self.traffic, policy)
            for policy in POLICIES
            if policy.learner is not None
        }

    def bind(self, name: str, xi_tokens: float) -> Policy:
        """Return the policy with `xi_tokens` and parameters estimated from the first fifth."""
        kind = by_name(name.removesuffix(WITH_GUARD))
        has_xi = any(parameter.name == "xi_tokens" for parameter in kind.parameters)
        variant = Variant(kind, {"xi_tokens": xi_tokens} if has_xi else {})
        variant = guarded(variant) if name.endswith(WITH_GUARD) else variant
        return bind(variant, self._parameters)

    def replayed(
        self, name: str, xi_tokens: int, capacity: int, tables: Tables | None = None
    ) -> Replay:
        """Replay all requests, with the trace's own tables."""
        policy = self.bind(name, float(xi_tokens))
        if tables is None:
            tables = NO_TABLES if policy.learner is None else self._tables[policy.learner]
        return replay(self.traffic, policy, capacity, history=self.past, tables=tables)

    def uncached(
        self, name: str, xi_tokens: int, capacity: int, tables: Tables | None = None
    ) -> Floats:
        """Return the uncached tokens of each held-out request, with the trace's own tables."""
        result = self.replayed(name, xi_tokens, capacity, tables)
        hits = result.hit_blocks[self.first :].astype(np.int64) * self.prompts.block_size
        uncached: Floats = np.maximum(self.input_tokens - hits, 0).astype(np.float64)
        return uncached

    @cached_property
    def _resampled_conversations(self) -> Floats:
        return _resamples(self.conversations)

    @cached_property
    def _resampled_stretches(self) -> Floats:
        return _resamples(STRETCHES)

    def sums(self, cost: Floats, *, by_time: bool = False) -> Floats:
        """Return the sum of a cost over the held-out requests, first, and over each resample.

        Whole conversations are drawn, or 20 stretches of time.
        """
        group = self._stretch if by_time else self._conversation
        resamples = self._resampled_stretches if by_time else self._resampled_conversations
        summed: Floats = resamples @ np.bincount(group, cost, minlength=resamples.shape[1])
        return summed

    def share_closed(
        self, xi: int, start: Floats, optimum: Floats, own: Floats, *, by_time: bool = False
    ) -> Estimate | None:
        """Return which share of the gap in tokens beyond `xi` is closed, None without a gap.

        The arguments are uncached tokens per held-out request: where the gap starts, where it
        ends, and of the policy. The interval is by conversations, or by stretches of time.
        """
        if not self._has_gap(xi, start, optimum):
            return None
        first, least, reached = (
            self.sums(np.maximum(x - xi, 0.0), by_time=by_time) for x in (start, optimum, own)
        )
        gap = first - least
        return Estimate.of((first - reached) / np.where(gap > 0, gap, np.nan))

    def share_bound(self, xi: int, start: Floats, optimum: Floats, capacity: int) -> str | None:
        """Return the share of the same gap that no policy can exceed at a capacity, rounded up."""
        if not self._has_gap(xi, start, optimum):
            return None
        first, least = (float(np.maximum(x - xi, 0.0).sum()) for x in (start, optimum))
        touches = self.past.next_touches
        bound = tel_tokens_at_least(self.traffic, touches, capacity, xi, self.first)
        return f"{ceil((first - bound) / (first - least) * 100) / 100:.2f}"

    def _has_gap(self, xi: int, start: Floats, optimum: Floats) -> bool:
        """Return whether enough conversations lose enough for shares of the gap to say anything."""
        losing = self._conversation[start > xi]
        first, least = (float(np.maximum(x - xi, 0.0).sum()) for x in (start, optimum))
        enough = len(np.unique(losing)) >= FEWEST_CONVERSATIONS
        return enough and first - least > LEAST_GAP * first


def _resamples(groups: int) -> Floats:
    """Return how often each group is in each resample; once each in the first row."""
    each = np.full(groups, 1 / groups)
    counts = np.random.default_rng(0).multinomial(groups, each, size=RESAMPLES)
    return np.concatenate((np.ones((1, groups)), counts))


def published() -> Iterator[HeldOut]:
    """Yield the published traces if KVSCOPE_TRACES names their folder."""
    folder = os.environ.get("KVSCOPE_TRACES")
    if folder:
        yield HeldOut("Mooncake conversation", Path(folder) / MOONCAKE)
        read = ReadOptions(session_arrivals=SESSIONS_PER_S)
        yield HeldOut("Agent sessions", Path(folder) / SESSIONS, read)


def samples(names: Sequence[str] = SAMPLES) -> Iterator[HeldOut]:
    """Yield sample traces, by default all."""
    for name in names:
        yield HeldOut(f"Sample {name}", ROOT / "sample_traces" / f"{name}.jsonl.gz")


def generated(seeds: tuple[tuple[str, int, int], ...], folder: Path) -> Iterator[HeldOut]:
    """Yield traces of (profile, requests, seed), written to `folder`."""
    for profile, requests, seed in seeds:
        path = folder / f"{profile}-{seed}.jsonl.gz"
        write_jsonl(PROFILES[profile].generate(requests=requests, seed=seed), path)
        yield HeldOut(f"{profile}, {requests:,}, seed {seed}", path)

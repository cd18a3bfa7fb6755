"""What times to live give in a cache of one size: chosen, decided on and reported separately.

They are chosen on the first half of the requests, in an idle cache. The next quarter decides
whether they are advised, and the last one may refuse: against LRU in an idle cache, and on the
simulated engine, whose pool also holds the blocks of running requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Float64s, Int32s
from kvscope.core.directives import DEFAULT_PRIORITY
from kvscope.core.hits import HitDefinition
from kvscope.core.percentiles import at_rank
from kvscope.core.trace import Prompts
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.directives.offline import stated_tables
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.soft_ttl import PAUSE_TTL, PIN_SHARE, SoftTtl
from kvscope.replay.derived_traces import select
from kvscope.replay.replay import NO_TABLES, Tables, TouchHistory, replay, touch_history
from kvscope.replay.traffic import Traffic, traffic
from kvscope.retention.choice import best_steps, choose, rounded_up
from kvscope.retention.curves import ttl_curves
from kvscope.tuning.bootstrap import Gain
from kvscope.vllm_sim import EngineReplay, EngineSettings, StepCost, replay_engine

_EIGHTHS = 8
_STUDENT = 2.365  # Student's t of 7 degrees of freedom, 97.5 %
_FEWEST = 4 * _EIGHTHS
_MOST_SLOWER = 0.05  # of LRU's p95 TTFT on the engine
_PAUSES = (0.5, 0.75, 0.9, 0.95, 0.99)
_SHARES = (0.5, 0.8, 1.0)


class RetentionTrial(Struct, frozen=True):
    """Token hit rates in one capacity model against LRU's there.

    The rates and `gain`, a difference of rates with its 95 % CI, are of the last quarter of the
    requests; `deciding_gain` is of the one before. On an engine `p95_s` are percentiles of both
    quarters' TTFT, unloaded.
    """

    capacity_model: Literal["cache", "engine"]
    lru_token_hit_rate: float
    token_hit_rate: float
    gain: Gain
    deciding_gain: Gain
    lru_p95_s: float | None = None
    p95_s: float | None = None

    @property
    def better(self) -> bool:
        """Whether the deciding quarter gains significantly, and the last one too, nothing slower.

        A p95 TTFT that grows by up to 5 % counts as no slower.
        """
        slower = (
            self.lru_p95_s is not None
            and self.p95_s is not None
            and self.p95_s > (1 + _MOST_SLOWER) * self.lru_p95_s
        )
        return self.deciding_gain.significant and self.gain.value > 0 and not slower


class RetentionAdvice(Struct, frozen=True):
    """What times to live give in a cache of `capacity_blocks`, against LRU.

    `of` categories, or of what the requests state (`directives`, with pins for pauses), with
    `params`. `engine` is None where the idle cache gains nothing. `advised`: both are better.
    """

    of: Literal["categories", "directives"]
    params: Mapping[str, float]
    capacity_blocks: int
    capacity_bytes: int | None
    held_out_requests: int
    idle: RetentionTrial
    engine: RetentionTrial | None
    advised: bool


def best_ttls(requests: Traffic, categories: int, capacity_blocks: int) -> Float64s:
    """Return the TTLs by category with the most hits whose blocks fill the capacity on average.

    They are rounded up to two digits. Where all stays fit, they are infinite.
    """
    curves = ttl_curves(requests, categories)
    steps = best_steps(curves.by_category)
    budget = capacity_blocks * curves.end_s
    if steps.block_seconds.sum() <= budget:
        return np.full(categories, np.inf)
    chosen = choose(steps, curves.by_category, budget)
    return np.array([rounded_up(float(ttl)) for ttl in chosen.ttl_s])


def advise(
    prompts: Prompts,
    requests: Traffic,
    history: TouchHistory,
    definition: HitDefinition,
    capacity_blocks: int,
    profile: LatencyProfile,
    capacity_bytes: int | None = None,
) -> tuple[RetentionAdvice, ...]:
    """Return what is chosen on the first half and gives on the second; nothing for few requests.

    `requests` are the traffic of `prompts` by the definition, and `history` is theirs. Steps of the
    engine take the time of `profile`.
    """
    half = len(requests.leaf) // 2
    if half < _FEWEST:
        return ()
    past_prompts = select(prompts, np.arange(half))
    past = traffic(past_prompts, definition)
    seen = np.bincount(past.category, minlength=len(prompts.categories)) > 0
    ttl_s = np.where(seen, best_ttls(past, len(prompts.categories), capacity_blocks), np.inf)
    chosen: list[tuple[Literal["categories", "directives"], Policy, Tables]]
    chosen = [("categories", SoftTtl(), ttl_tables(ttl_s))]
    if past_prompts.directives is not None and prompts.directives is not None:
        pins = best_pins(past_prompts, past, capacity_blocks)
        chosen.append(("directives", pins, stated_tables(requests, prompts.directives, SoftTtl)))
    trials = _Trials(prompts, requests, history, capacity_blocks, profile)
    advice = []
    for kind, policy, tables in chosen:
        idle = trials.idle(policy, tables)
        engine = trials.engine(policy, tables) if idle.better else None
        advice.append(
            RetentionAdvice(
                of=kind,
                params={name: float(policy.values[name]) for name in (PAUSE_TTL, PIN_SHARE)}
                if kind == "directives"
                else {},
                capacity_blocks=capacity_blocks,
                capacity_bytes=capacity_bytes,
                held_out_requests=len(requests.leaf) - trials.last,
                idle=idle,
                engine=engine,
                advised=engine is not None and engine.better,
            )
        )
    return tuple(advice)


def best_pins(prompts: Prompts, requests: Traffic, capacity: int) -> SoftTtl:
    """Return `soft-ttl` with the pause TTL and share of pins that hit most in this cache.

    TTLs to choose from are percentiles of the stated pauses. Source: Continuum, CacheTTL.
    """
    stated = prompts.directives
    if stated is None:
        return SoftTtl()
    pauses = np.array([False, *(each.pause for each in stated.distinct)])[stated.number + 1]
    after = np.flatnonzero((prompts.parent >= 0) & pauses[prompts.parent])
    waits_s = prompts.arrival_s[after] - prompts.arrival_s[prompts.parent[after]]
    ttls_s = {SoftTtl().values[PAUSE_TTL]}
    if len(waits_s):
        ttls_s = {rounded_up(float(wait)) for wait in np.quantile(waits_s, _PAUSES)}
    history, tables = touch_history(requests), stated_tables(requests, stated, SoftTtl)

    def hits(policy: SoftTtl) -> int:
        done = replay(requests, policy, capacity, history=history, tables=tables)
        return int(done.hit_blocks.sum(dtype=np.int64))

    every = [
        SoftTtl({PAUSE_TTL: ttl, PIN_SHARE: share}) for ttl in sorted(ttls_s) for share in _SHARES
    ]
    return max(every, key=hits)


def ttl_tables(ttl_s: Float64s) -> Tables:
    """Return the table of `soft-ttl` with these TTLs by category."""
    rows = np.stack((ttl_s, np.full_like(ttl_s, DEFAULT_PRIORITY)), axis=-1)
    return Tables.of(np.zeros(1, dtype=np.int64), rows[np.newaxis])


class _Trials:
    """Replays of one trace in a cache, and on an engine with a pool, of so many blocks.

    Requests from `last` on are the last quarter, those from `half` to there the deciding one.
    """

    def __init__(
        self,
        prompts: Prompts,
        requests: Traffic,
        history: TouchHistory,
        capacity_blocks: int,
        profile: LatencyProfile,
    ) -> None:
        self._prompts, self._requests, self._history = prompts, requests, history
        self._capacity, self._profile = capacity_blocks, profile
        self.half = len(requests.leaf) // 2
        self.last = (self.half + len(requests.leaf)) // 2

    def idle(self, policy: Policy, tables: Tables) -> RetentionTrial:
        """Return a policy's trial in an idle cache."""
        hit_blocks = self._replayed(policy, tables)
        return self._trial("cache", hit_blocks, self._idle_lru)

    def _replayed(self, policy: Policy, tables: Tables) -> Int32s:
        done = replay(self._requests, policy, self._capacity, history=self._history, tables=tables)
        return done.hit_blocks

    @cached_property
    def _idle_lru(self) -> Int32s:
        return self._replayed(Lru(), NO_TABLES)

    @cached_property
    def _engine_lru(self) -> EngineReplay:
        return self._served(Lru(), NO_TABLES)

    def _served(self, policy: Policy, tables: Tables) -> EngineReplay:
        settings, cost = EngineSettings(self._capacity), StepCost.of(self._profile)
        return replay_engine(self._prompts, policy, settings, cost, tables=tables)

    def engine(self, policy: Policy, tables: Tables) -> RetentionTrial:
        """Return a policy's trial on the simulated engine; hits of rejected requests count as 0."""
        done, lru = self._served(policy, tables), self._engine_lru
        p95_s, lru_p95_s = (self._p95_s(run, ~lru.oversized) for run in (done, lru))
        return self._trial("engine", done.hit_blocks, lru.hit_blocks, lru_p95_s, p95_s)

    def _p95_s(self, run: EngineReplay, served: Bools) -> float:
        """Return the p95 TTFT of the requests `served` from `half` on, unloaded."""
        counted = np.flatnonzero(served[self.half :]) + self.half
        if not len(counted):
            return 0.0
        hits = run.hit_blocks[counted].astype(np.int64) * self._requests.block_size
        tokens = self._requests.input_tokens[counted].astype(np.int64)
        return at_rank(self._profile.ttft_s(tokens - hits, hits), 0.95)

    def _trial(
        self,
        model: Literal["cache", "engine"],
        hit_blocks: Int32s,
        lru: Int32s,
        lru_p95_s: float | None = None,
        p95_s: float | None = None,
    ) -> RetentionTrial:
        return RetentionTrial(
            model,
            self._rate(lru),
            self._rate(hit_blocks),
            self._gain(hit_blocks, lru, slice(self.last, None)),
            self._gain(hit_blocks, lru, slice(self.half, self.last)),
            lru_p95_s,
            p95_s,
        )

    def _gain(self, hit_blocks: Int32s, lru: Int32s, part: slice) -> Gain:
        """Return the gain of some requests; its CI is from eighths of them in order."""
        tokens = self._requests.input_tokens[part].astype(np.int64)
        more = (hit_blocks - lru)[part].astype(np.int64) * self._requests.block_size
        parts = zip(np.array_split(more, _EIGHTHS), np.array_split(tokens, _EIGHTHS), strict=True)
        eighths = np.array([gained.sum() / max(int(of.sum()), 1) for gained, of in parts])
        spread = _STUDENT * float(eighths.std(ddof=1)) / math.sqrt(_EIGHTHS)
        value = float(more.sum()) / max(int(tokens.sum()), 1)
        return Gain(value, value - spread, value + spread)

    def _rate(self, hit_blocks: Int32s) -> float:
        """Return the token hit rate of the last quarter."""
        hits = int(hit_blocks[self.last :].sum(dtype=np.int64)) * self._requests.block_size
        return hits / max(int(self._requests.input_tokens[self.last :].sum(dtype=np.int64)), 1)

"""How long blocks should live: every TTL's hits and memory, the best by category, and prices.

What is advised for a cache of a given size was chosen on the first half of the requests and
replayed on the second, against LRU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvscope.app.requests import RetentionRequest
from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.directives import DEFAULT_PRIORITY
from kvscope.core.errors import InputError
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.models import Model
from kvscope.learning.directives.offline import stated_tables
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.soft_ttl import PAUSE_TTL, PIN_SHARE, SoftTtl
from kvscope.replay.derived_traces import select
from kvscope.replay.leases import hold
from kvscope.replay.replay import Tables, TouchHistory, replay, touch_history
from kvscope.replay.traffic import Traffic, traffic
from kvscope.retention.choice import best_steps, choose, rounded_up
from kvscope.retention.curves import TtlCurves, ttl_curves
from kvscope.retention.prices import Charge, charges, prices

TTLS_S = (60.0, 300.0, 600.0, 1800.0, 3600.0, 86400.0)
CURVE_POINTS = 48
MOST_OF = 0.9
_EIGHTHS = 8
_STUDENT = 2.365  # Student's t of 7 degrees of freedom, 97.5 %
_FEWEST = 2 * _EIGHTHS
_PAUSES = (0.5, 0.75, 0.9, 0.95, 0.99)
_SHARES = (0.5, 0.8, 1.0)
KERNELS: tuple[type[Policy], ...] = (Lru, SoftTtl)


@dataclass(frozen=True, slots=True)
class TtlPoint:
    """What one TTL for all blocks hits and holds in a cache without other evictions: exact.

    The TTL runs from a block's last touch; None: forever. Bytes are None without a model.
    """

    ttl_s: float | None
    token_hit_rate: float
    share_of_ideal: float
    mean_blocks: float
    peak_blocks: int
    mean_bytes: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CategoryTtl:
    """Blocks last touched by one category: the TTL with 90 % of their possible hits, and the best.

    `share_of_hits` are their part of all possible hits. `ttl_s`, for the capacity that was named,
    gets `kept_share` of their hits and holds `mean_blocks`, by the sum of exact curves; None
    without a capacity.
    """

    category: str
    requests: int
    share_of_hits: float
    most_ttl_s: float
    ttl_s: float | None = None
    kept_share: float | None = None
    mean_blocks: float | None = None


@dataclass(frozen=True, slots=True)
class HeldOutGain:
    """A hit rate of held-out requests against LRU's, with a 95 % CI of the difference."""

    token_hit_rate: float
    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0


@dataclass(frozen=True, slots=True)
class RetentionAdvice:
    """What times to live give in a cache of `capacity_blocks`, against LRU.

    `of` categories, or of what the requests state (`directives`, with pins for pauses). They and
    `params` were chosen on the first half of the requests; the rates are of the other, held out.
    `advised`: the gain is significant.
    """

    of: Literal["categories", "directives"]
    params: Mapping[str, float]
    capacity_blocks: int
    capacity_bytes: int | None
    held_out_requests: int
    lru_token_hit_rate: float
    gain: HeldOutGain
    advised: bool


@dataclass(frozen=True, slots=True)
class Retention:
    """What retention of blocks gives on a trace; `landmarks` are for the screen, `curve` a plot."""

    trace: Trace
    model: Model | None
    definition: HitDefinition
    landmarks: tuple[TtlPoint, ...]
    curve: tuple[TtlPoint, ...]
    most: TtlPoint
    categories: tuple[CategoryTtl, ...]
    advice: tuple[RetentionAdvice, ...]
    charges: tuple[Charge, ...]
    prices_date: str


def retention(trace: Trace, prompts: Prompts, request: RetentionRequest) -> Retention:
    """Return what every TTL gives, which are best, and what providers would charge.

    Raises InputError for a trace whose sessions have no common clock, and UsageError for a capacity
    that holds no block.
    """
    if np.any(prompts.clock >= 1):
        raise InputError(
            "its sessions have no common clock, so no TTL can be judged",
            where=trace.name,
            remedy="ingest it with --session-arrivals poisson:RATE",
        )
    requests = traffic(prompts, request.definition)
    history = touch_history(requests)
    names = prompts.categories
    curves = ttl_curves(requests, len(names), history.segments)
    named = request.capacities.in_blocks(request.model, trace.block_size)
    capacity = named[0] if named else None
    ttl_s = None if capacity is None else best_ttls(requests, len(names), capacity)
    points = _Points(requests, curves, request.model)
    longest_s = max(curves.end_s, 1.0)
    shown = [ttl for ttl in TTLS_S if ttl < longest_s]
    grid = np.geomspace(max(longest_s * 1e-4, 0.1), longest_s, CURVE_POINTS)
    return Retention(
        trace=trace,
        model=request.model,
        definition=request.definition,
        landmarks=tuple(points.at(ttl) for ttl in (*shown, math.inf)),
        curve=tuple(points.at(float(ttl)) for ttl in grid),
        most=points.at(rounded_up(curves.overall.ttl_for(MOST_OF))),
        categories=_categories(requests, names, curves, ttl_s),
        advice=() if capacity is None else _advice(prompts, requests, history, request, capacity),
        charges=charges(prompts),
        prices_date=prices().date,
    )


def stated_ttl(result: Retention) -> float | None:
    """Return the TTL for requests to state: of advised pins, else of the category with most hits.

    None where LRU is to be kept.
    """
    advised = [advice for advice in result.advice if advice.advised]
    for advice in advised:
        if PAUSE_TTL in advice.params:
            return advice.params[PAUSE_TTL]
    known = [row.ttl_s for row in result.categories if row.ttl_s]
    return known[0] if advised and known else None


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


@dataclass(frozen=True, slots=True)
class _Points:
    """What one TTL for all hits and holds, for any number of TTLs."""

    requests: Traffic
    curves: TtlCurves
    model: Model | None

    def at(self, ttl_s: float) -> TtlPoint:
        """Return the point of a TTL."""
        curve, size, model = self.curves.overall, self.requests.block_size, self.model
        held = hold(self.requests, np.full(len(self.requests.leaf), ttl_s))
        ideal, hits = int(curve.hit_tokens[-1]), int(curve.hits(ttl_s))
        return TtlPoint(
            ttl_s=None if math.isinf(ttl_s) else ttl_s,
            token_hit_rate=hits / max(int(self.requests.input_tokens.sum(dtype=np.int64)), 1),
            share_of_ideal=hits / ideal if ideal else 1.0,
            mean_blocks=held.mean_blocks,
            peak_blocks=held.peak_blocks,
            mean_bytes=None if model is None else held.mean_blocks * model.bytes_for(size),
            peak_bytes=None if model is None else model.bytes_for(held.peak_blocks * size),
        )


def _categories(
    requests: Traffic, names: tuple[str, ...], curves: TtlCurves, ttl_s: Float64s | None
) -> tuple[CategoryTtl, ...]:
    """Return the categories whose blocks are hit, those with the most hits first."""
    ideal = max(int(curves.overall.hit_tokens[-1]), 1)
    count = np.bincount(requests.category, minlength=len(names))
    rows = []
    for number, curve in enumerate(curves.by_category):
        possible = int(curve.hit_tokens[-1])
        row = CategoryTtl(
            category=names[number],
            requests=int(count[number]),
            share_of_hits=possible / ideal,
            most_ttl_s=rounded_up(curve.ttl_for(MOST_OF)),
        )
        if ttl_s is not None:
            ttl = float(ttl_s[number])
            row = CategoryTtl(
                row.category,
                row.requests,
                row.share_of_hits,
                row.most_ttl_s,
                ttl,
                int(curve.hits(ttl)) / possible if possible else 1.0,
                float(curve.held(ttl)) / curves.end_s if curves.end_s else 0.0,
            )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: -row.share_of_hits))


def _advice(
    prompts: Prompts,
    requests: Traffic,
    history: TouchHistory,
    request: RetentionRequest,
    capacity: int,
) -> tuple[RetentionAdvice, ...]:
    """Return what is chosen on the first half and gives on the second; nothing for few requests."""
    half, model = len(requests.leaf) // 2, request.model
    if half < _FEWEST:
        return ()
    past_prompts = select(prompts, np.arange(half))
    past = traffic(past_prompts, request.definition)
    seen = np.bincount(past.category, minlength=len(prompts.categories)) > 0
    ttl_s = np.where(seen, best_ttls(past, len(prompts.categories), capacity), np.inf)
    chosen: list[tuple[Literal["categories", "directives"], Policy, Tables]]
    chosen = [("categories", SoftTtl(), ttl_tables(ttl_s))]
    if past_prompts.directives is not None and prompts.directives is not None:
        policy = best_pins(past_prompts, past, capacity)
        stated = stated_tables(requests, prompts.directives, SoftTtl)
        chosen.append(("directives", policy, stated.chosen(policy, capacity)))
    lru = replay(requests, Lru(), capacity, history=history).hit_blocks
    advice = []
    for kind, own_policy, tables in chosen:
        done = replay(requests, own_policy, capacity, history=history, tables=tables)
        gain = _gain(done.hit_blocks, lru, requests, half)
        advice.append(
            RetentionAdvice(
                of=kind,
                params={name: float(own_policy.values[name]) for name in (PAUSE_TTL, PIN_SHARE)}
                if kind == "directives"
                else {},
                capacity_blocks=capacity,
                capacity_bytes=None
                if model is None
                else model.bytes_for(capacity * requests.block_size),
                held_out_requests=len(requests.leaf) - half,
                lru_token_hit_rate=_rate(lru, requests, half),
                gain=gain,
                advised=gain.significant,
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


def _gain(hit_blocks: Int32s, lru: Int32s, requests: Traffic, first: int) -> HeldOutGain:
    """Return the gain of the requests from `first` on; its CI is from eighths of them in order."""
    size, tokens = requests.block_size, requests.input_tokens[first:].astype(np.int64)
    more = (hit_blocks - lru)[first:].astype(np.int64) * size
    parts = zip(np.array_split(more, _EIGHTHS), np.array_split(tokens, _EIGHTHS), strict=True)
    eighths = np.array([part.sum() / max(int(of.sum()), 1) for part, of in parts])
    spread = _STUDENT * float(eighths.std(ddof=1)) / math.sqrt(_EIGHTHS)
    value = float(more.sum()) / max(int(tokens.sum()), 1)
    rate = _rate(hit_blocks, requests, first)
    return HeldOutGain(rate, value, value - spread, value + spread)


def ttl_tables(ttl_s: Float64s) -> Tables:
    """Return the table of `soft-ttl` with these TTLs by category."""
    rows = np.stack((ttl_s, np.full_like(ttl_s, DEFAULT_PRIORITY)), axis=-1)
    return Tables.of(np.zeros(1, dtype=np.int64), rows[np.newaxis])


def _rate(hit_blocks: Int32s, requests: Traffic, first: int) -> float:
    """Return the token hit rate of the requests from `first` on."""
    hits = int(hit_blocks[first:].sum(dtype=np.int64)) * requests.block_size
    return hits / max(int(requests.input_tokens[first:].sum(dtype=np.int64)), 1)

"""How long blocks should live: every TTL's hits and memory, the best by category, and prices.

What is advised for a cache of a given size was replayed on requests that did not choose it.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from kvscope.app.latency import latency_for
from kvscope.app.requests import RetentionRequest
from kvscope.core.arrays import Float64s
from kvscope.core.errors import InputError
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.models import Model
from kvscope.policies.soft_ttl import PAUSE_TTL
from kvscope.replay.leases import hold
from kvscope.replay.replay import touch_history
from kvscope.replay.traffic import Traffic, traffic
from kvscope.retention.advice import RetentionAdvice, advise, best_ttls
from kvscope.retention.choice import rounded_up
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


class TtlPoint(Struct, frozen=True):
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


class CategoryTtl(Struct, frozen=True):
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


class Retention(Struct, frozen=True):
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

    Raises InputError for a trace whose sessions have no common clock, or whose TTFTs do not
    determine the latency that they were to, and UsageError for a capacity that holds no block.
    """
    if np.any(prompts.clock >= 1):
        raise InputError(
            "its sessions have no common clock, so no TTL can be judged",
            where=trace.name,
            remedy="ingest it with --session-arrivals poisson:RATE",
        )
    profile = latency_for(trace, request.profile, None, lambda: prompts).profile
    named = request.capacities.in_blocks(request.model, trace.block_size)
    capacity = named[0] if named else None
    requests = traffic(prompts, request.definition)
    history = touch_history(requests)
    names = prompts.categories
    curves = ttl_curves(requests, len(names), history.segments)
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
        advice=()
        if capacity is None
        else advise(
            prompts,
            requests,
            history,
            request.definition,
            capacity,
            profile,
            None if request.model is None else request.model.bytes_for(capacity * trace.block_size),
        ),
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


class _Points(Struct, frozen=True):
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

"""What one time to live (TTL) for all blocks hits and holds, and the best one by category."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s
from kvscope.deployment.models import Model
from kvscope.policies.soft_ttl import PAUSE_TTL
from kvscope.replay.leases import hold
from kvscope.replay.traffic import Traffic
from kvscope.retention.advice import RetentionAdvice
from kvscope.retention.choice import rounded_up
from kvscope.retention.curves import TtlCurves

MOST_OF = 0.9


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


class TtlPoints(Struct, frozen=True):
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


def best_by_category(
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


def stated_ttl(
    advice: Sequence[RetentionAdvice], categories: Sequence[CategoryTtl]
) -> float | None:
    """Return the TTL for requests to state: of advised pins, else of the category with most hits.

    None where LRU is to be kept.
    """
    advised = [each for each in advice if each.advised]
    for each in advised:
        if PAUSE_TTL in each.params:
            return each.params[PAUSE_TTL]
    known = [row.ttl_s for row in categories if row.ttl_s]
    return known[0] if advised and known else None

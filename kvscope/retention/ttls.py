"""What one time to live (TTL) for all blocks hits and holds, and which one each category needs."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from kvscope.deployment.models import Model
from kvscope.replay.traffic import Traffic
from kvscope.retention.curves import TtlCurves
from kvscope.retention.ttl_replay import replay_ttls

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
    """Blocks last touched by one category: their part of all possible hits.

    `most_ttl_s` is the TTL with 90 % of their hits.
    """

    category: str
    requests: int
    share_of_hits: float
    most_ttl_s: float


class TtlPoints(Struct, frozen=True):
    """What one TTL for all hits and holds, for any number of TTLs."""

    requests: Traffic
    curves: TtlCurves
    model: Model | None

    def at(self, ttl_s: float) -> TtlPoint:
        """Return the point of a TTL."""
        curve, size, model = self.curves.overall, self.requests.block_size, self.model
        held = replay_ttls(self.requests, np.full(len(self.requests.leaf), ttl_s))
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


def ttls_by_category(
    requests: Traffic, names: tuple[str, ...], curves: TtlCurves
) -> tuple[CategoryTtl, ...]:
    """Return the categories whose blocks are hit, those with the most hits first."""
    ideal = max(int(curves.overall.hit_tokens[-1]), 1)
    count = np.bincount(requests.category, minlength=len(names))
    rows = (
        CategoryTtl(
            category=names[number],
            requests=int(count[number]),
            share_of_hits=int(curve.hit_tokens[-1]) / ideal,
            most_ttl_s=rounded_up(curve.ttl_for(MOST_OF)),
        )
        for number, curve in enumerate(curves.by_category)
    )
    return tuple(sorted(rows, key=lambda row: -row.share_of_hits))


def rounded_up(ttl_s: float) -> float:
    """Return a TTL to state in a request: two significant digits, in whole seconds from 10 s on."""
    if not 0 < ttl_s < math.inf:
        return ttl_s
    unit = 10.0 ** (math.floor(math.log10(ttl_s)) - 1)
    return float(f"{math.ceil(round(ttl_s / unit, 6)) * unit:.10g}")

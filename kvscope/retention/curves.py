"""Hits and memory of every time to live (TTL), exactly, from the gaps between touches of blocks."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Float64s, Int64s
from kvscope.replay.last_touch import Segments, last_touch_segments
from kvscope.replay.traffic import Traffic


class TtlCurve(Struct, frozen=True):
    """What blocks hit and hold that live for a TTL after each touch.

    J stays of blocks, from a touch to the next one or to the trace's end, in order of `length_s`.
    The other arrays (J + 1 entries) sum the shortest stays: their `blocks`, `block_seconds`, and
    the `hit_tokens` of the look-ups that end them.
    """

    length_s: Float64s
    blocks: Int64s
    block_seconds: Float64s
    hit_tokens: Int64s

    @classmethod
    def of(cls, length_s: Float64s, blocks: Int64s, hit_tokens: Int64s) -> TtlCurve:
        """Return the curve of stays in any order."""
        order = np.argsort(length_s, kind="stable")
        length_s, blocks = length_s[order], blocks[order]
        return cls(
            length_s,
            np.concatenate([[0], np.cumsum(blocks)]),
            np.concatenate([[0.0], np.cumsum(blocks * length_s)]),
            np.concatenate([[0], np.cumsum(hit_tokens[order])]),
        )

    def hits(self, ttl_s: Float64s | float) -> Int64s:
        """Return the tokens hit with each TTL: those of blocks touched again within it."""
        return np.asarray(self.hit_tokens[self._within(ttl_s)])

    def held(self, ttl_s: Float64s | float) -> Float64s:
        """Return the block-seconds held with each TTL."""
        within = self._within(ttl_s)
        longer = self.blocks[-1] - self.blocks[within]
        beyond = np.where(longer > 0, ttl_s, 0.0) * longer  # an infinite TTL outlives no stay
        return np.asarray(self.block_seconds[within] + beyond)

    def knots(self) -> Float64s:
        """Return the TTLs at which hits grow, ascending: 0 and the distinct gaps that hit."""
        grows = np.diff(self.hit_tokens) > 0
        return np.unique(np.concatenate([[0.0], self.length_s[grows]]))

    def ttl_for(self, share: float) -> float:
        """Return the least TTL with at least this share (0–1) of the hits of an infinite one."""
        at = int(np.searchsorted(self.hit_tokens, share * self.hit_tokens[-1] - 1e-9))
        return float(self.length_s[at - 1]) if at else 0.0

    def _within(self, ttl_s: Float64s | float) -> Int64s:
        return np.asarray(np.searchsorted(self.length_s, ttl_s, side="right"))


class TtlCurves(Struct, frozen=True):
    """The curve of one TTL for all requests, and by category of the request that touched last.

    With one TTL a block's ancestors were touched no earlier than itself, so that hits are prefixes:
    `overall` is exact. `by_category` are the blocks that each category's requests touched last.
    """

    overall: TtlCurve
    by_category: tuple[TtlCurve, ...]
    end_s: float


def ttl_curves(traffic: Traffic, categories: int, segments: Segments | None = None) -> TtlCurves:
    """Return the exact curves of a trace with so many categories; `segments` saves their search."""
    segments = segments or last_touch_segments(traffic)
    requests = len(traffic.leaf)
    end_s = float(traffic.arrival_s[-1]) if requests else 0.0
    request, previous = segments.request, segments.previous.astype(np.int64)
    start, end = segments.start.astype(np.int64), segments.end.astype(np.int64)
    hit_blocks = np.maximum(np.minimum(end, traffic.look[request]) - start, 0)
    taken = np.bincount(previous, end - start, minlength=requests).astype(np.int64)
    last = traffic.length + traffic.anonymous.astype(np.int64) - taken
    length_s = np.concatenate(
        [traffic.arrival_s[request] - traffic.arrival_s[previous], end_s - traffic.arrival_s]
    )
    blocks = np.concatenate([end - start, last])
    hit_tokens = np.concatenate([hit_blocks * traffic.block_size, np.zeros_like(last)])
    touched_by = np.concatenate([previous, np.arange(requests)])
    category = traffic.category[touched_by]

    def curve(which: Bools) -> TtlCurve:
        return TtlCurve.of(length_s[which], blocks[which], hit_tokens[which])

    return TtlCurves(
        curve(np.ones(len(blocks), dtype=np.bool_)),
        tuple(curve(category == number) for number in range(categories)),
        end_s,
    )

"""Times to live (TTL) of blocks: exact hits and blocks held for any TTL, from reuse gaps."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path
from kvscope.deployment.models import Model
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import Traffic

MOST_OF = 0.9
NOT_HELD = -1.0
"""The TTL of a request that neither looks anything up nor leaves anything cached."""


class TtlCurve(Struct, frozen=True):
    """Hits and blocks held as a function of the TTL, which each access of a block renews.

    `length_s` are J stays, ascending: times from an access of blocks to their next access or to the
    trace's end. Entry k of the other arrays (J + 1) is the sum over the k shortest stays: of their
    `blocks`, of `block_seconds`, and of `hit_tokens` in the next accesses.
    """

    length_s: Float64s
    blocks: Int64s
    block_seconds: Float64s
    hit_tokens: Int64s

    @classmethod
    def of(cls, length_s: Float64s, blocks: Int64s, hit_tokens: Int64s) -> TtlCurve:
        """Return the curve of J stays in any order: their lengths, blocks and hit tokens."""
        order = np.argsort(length_s, kind="stable")
        length_s, blocks = length_s[order], blocks[order]
        return cls(
            length_s,
            np.concatenate([[0], np.cumsum(blocks)]),
            np.concatenate([[0.0], np.cumsum(blocks * length_s)]),
            np.concatenate([[0], np.cumsum(hit_tokens[order])]),
        )

    def hits(self, ttl_s: Float64s | float) -> Int64s:
        """Return the hit tokens for each TTL: those of blocks accessed again within the TTL."""
        return np.asarray(self.hit_tokens[self._within(ttl_s)])

    def held(self, ttl_s: Float64s | float) -> Float64s:
        """Return the block-seconds held for each TTL, until the trace's end at most."""
        within = self._within(ttl_s)
        longer = self.blocks[-1] - self.blocks[within]
        beyond = np.where(longer > 0, ttl_s, 0.0) * longer  # an infinite TTL outlives no stay
        return np.asarray(self.block_seconds[within] + beyond)

    def knots(self) -> Float64s:
        """Return the TTLs at which hits grow, ascending: 0, and the distinct gaps before hits."""
        grows = np.diff(self.hit_tokens) > 0
        return np.unique(np.concatenate([[0.0], self.length_s[grows]]))

    def ttl_for(self, share: float) -> float:
        """Return the least TTL with at least `share` (0–1) of the hits of an infinite TTL."""
        at = int(np.searchsorted(self.hit_tokens, share * self.hit_tokens[-1] - 1e-9))
        return float(self.length_s[at - 1]) if at else 0.0

    def _within(self, ttl_s: Float64s | float) -> Int64s:
        return np.asarray(np.searchsorted(self.length_s, ttl_s, side="right"))


class TtlCurves(Struct, frozen=True):
    """Curves of a TTL that is equal for all blocks: of all blocks, and by category.

    With an equal TTL, a block never outlives its ancestors, so hits are prefixes: `overall` is
    exact, and `by_category` its parts; with other TTLs by category these are estimates. A stay has
    the category of the request that touched the blocks at its start. `end_s` is the trace's end.
    """

    overall: TtlCurve
    by_category: tuple[TtlCurve, ...]
    end_s: float


def ttl_curves(traffic: Traffic, categories: int) -> TtlCurves:
    """Return the curves of a trace, overall and of each of its `categories`, numbered from 0."""
    segments = last_touch_segments(traffic)
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


class TtlReplay(Struct, frozen=True):
    """Hits and blocks held with a TTL per request, up to the trace's end (`end_s`).

    `hit_blocks` are the leading blocks that each of the trace's R requests hits at its arrival.
    `block_seconds` is the sum over blocks of the time held; `peak_blocks` the most held at once.
    """

    hit_blocks: Int32s
    block_seconds: float
    peak_blocks: int
    end_s: float

    @property
    def mean_blocks(self) -> float:
        """The time-weighted mean of blocks held; 0 if the trace has no duration."""
        return self.block_seconds / self.end_s if self.end_s > 0 else 0.0


def replay_ttls(traffic: Traffic, ttl_s: Float64s) -> TtlReplay:
    """Return hits and blocks held if each request's blocks are held for its TTL from its arrival.

    `ttl_s` has an entry for each of R requests; inf: no limit, NOT_HELD (-1): the request holds and
    hits nothing. A block is held until the latest end of the TTLs of all requests that touched it,
    so a short TTL never shortens a longer one, and a block is held at least as long as its
    descendants: hits are prefixes.
    """
    expiry_s = traffic.arrival_s + np.maximum(ttl_s, 0.0)
    requests = len(traffic.leaf)
    hits = np.zeros(requests, dtype=np.int32)
    end_s = float(traffic.arrival_s[-1]) if requests else 0.0
    owner = np.full(len(traffic.block_parent), -1, dtype=np.int32)
    block_seconds, peak = _hold(
        traffic,
        expiry_s,
        np.asarray(ttl_s) < 0,
        np.argsort(expiry_s, kind="stable"),
        end_s,
        np.empty(int(traffic.length.max(initial=0)), dtype=np.int32),
        owner,
        np.zeros(requests, dtype=np.int64),
        hits,
    )
    return TtlReplay(hits, float(block_seconds), int(peak), end_s)


@kernel
def _hold(
    traffic: Traffic,
    expiry_s: Float64s,
    without: Bools,
    by_expiry: Int64s,
    end_s: float,
    path: Int32s,
    owner: Int32s,
    owned: Int64s,
    hits: Int32s,
) -> tuple[float, int]:
    """Write the hit blocks of each request to `hits`; return block-seconds held and peak blocks.

    `expiry_s` (R entries) is the time until which a request holds its blocks, `without` (R) whether
    it holds and hits nothing; `by_expiry` has the R requests by ascending `expiry_s`. Scratch
    space: `path` for the longest prompt; `owner` (N + 1), by block the request whose TTL holds or
    held it, at first -1; `owned` (R), the number of blocks that a request's TTL holds, at first 0.
    """
    requests = len(traffic.leaf)
    held, peak, expired, block_seconds = 0, 0, 0, 0.0
    for request in range(requests):
        if without[request]:
            continue
        now_s = traffic.arrival_s[request]
        while expired < requests and expiry_s[by_expiry[expired]] < now_s:
            held -= owned[by_expiry[expired]]
            expired += 1
        length = traffic.length[request]
        write_path(traffic.block_parent, traffic.leaf[request], path, 0, length)
        alive = 0
        while alive < length:
            before = owner[path[alive]]
            if before < 0 or expiry_s[before] < now_s:
                break
            alive += 1
        hits[request] = min(alive, traffic.look[request])
        added = length - alive + traffic.anonymous[request]
        until_s = min(expiry_s[request], end_s)
        for depth in range(alive):
            before = owner[path[depth]]
            if expiry_s[before] <= expiry_s[request]:
                block_seconds += until_s - min(expiry_s[before], end_s)
                owned[before] -= 1
                owned[request] += 1
                owner[path[depth]] = request
        for depth in range(alive, length):
            owner[path[depth]] = request
        block_seconds += added * (until_s - now_s)
        owned[request] += added
        held += added
        peak = max(peak, held)
    return block_seconds, peak


class TtlPoint(Struct, frozen=True):
    """Hits and memory of an equal TTL for all blocks, exact for a cache without other evictions.

    `ttl_s` counts from a block's last touch, None for no limit. `share_of_ideal` is the share of
    the hits of an infinite TTL. Bytes are None without a model.
    """

    ttl_s: float | None
    token_hit_rate: float
    share_of_ideal: float
    mean_blocks: float
    peak_blocks: int
    mean_bytes: float | None = None
    peak_bytes: int | None = None


class CategoryTtl(Struct, frozen=True):
    """TTL statistics of the blocks last touched by requests of one category.

    `share_of_hits` is their share of all hits of an infinite TTL, `most_ttl_s` the least TTL with
    90 % of their own hits, rounded up. `requests` counts the category's requests.
    """

    category: str
    requests: int
    share_of_hits: float
    most_ttl_s: float


class TtlPoints(Struct, frozen=True):
    """Computes hits and memory of any TTL that is equal for all blocks of a trace."""

    requests: Traffic
    curves: TtlCurves
    model: Model | None

    def at(self, ttl_s: float) -> TtlPoint:
        """Return the hits and memory of the TTL `ttl_s`, in seconds; infinity: no limit."""
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
    """Return the TTL statistics of each category, sorted by hits, the most first."""
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
    """Return a TTL in seconds rounded up to two significant digits; 0 and infinity unchanged."""
    if not 0 < ttl_s < math.inf:
        return ttl_s
    unit = 10.0 ** (math.floor(math.log10(ttl_s)) - 1)
    return float(f"{math.ceil(round(ttl_s / unit, 6)) * unit:.10g}")

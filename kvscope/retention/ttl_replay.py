"""Blocks that live for a time after a touch: what they hit and hold in a cache without eviction."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path
from kvscope.replay.traffic import Traffic

NOT_HELD = -1.0
"""The TTL of a request that neither looks anything up nor leaves anything cached."""


class TtlReplay(Struct, frozen=True):
    """What blocks hit and hold that live for a time after a touch; `end_s` is the trace's end.

    `hit_blocks` (R entries) are leading blocks that are held at the look-up. `block_seconds` sums
    the time that blocks are held, up to the trace's end; `peak_blocks` are held at once.
    """

    hit_blocks: Int32s
    block_seconds: float
    peak_blocks: int
    end_s: float

    @property
    def mean_blocks(self) -> float:
        """The blocks held on average over the trace; 0 for one without a span."""
        return self.block_seconds / self.end_s if self.end_s > 0 else 0.0


def replay_ttls(traffic: Traffic, ttl_s: Float64s) -> TtlReplay:
    """Hold the blocks of each request for its TTL (R entries, in seconds) after its arrival.

    A block is held until the latest end of the TTLs of all requests that touched it, so a short TTL
    never shortens a longer one, and a block is held as long as its descendants: hits are prefixes.
    A request with NOT_HELD as TTL holds and hits nothing.
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
    """Fill `hits`; return the block-seconds held and the peak in blocks.

    The request that holds a block is its `owner` (N + 1 entries), and each owns `owned` blocks.
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

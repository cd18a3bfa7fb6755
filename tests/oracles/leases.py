"""Leases of blocks in plain Python: each block knows until when it is held."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kvscope.replay.traffic import Traffic
from tests.oracles.replay import left_behind


class Held(NamedTuple):
    """What leases hit and hold; see `kvscope.replay.leases.Leases`."""

    hit_blocks: list[int]
    granted: list[bool]
    block_seconds: float
    peak_blocks: int


def hold(traffic: Traffic, ttl_s: Sequence[float], budget_blocks: float = float("inf")) -> Held:
    """Return what the leases of all requests hit and hold; a negative TTL is no lease."""
    end_s = float(traffic.arrival_s[-1])
    until: dict[Hashable, float] = {}
    hits, granted = [], []
    seconds, peak = 0.0, 0
    for at, blocks in enumerate(left_behind(traffic)):
        now = float(traffic.arrival_s[at])
        until = {block: end for block, end in until.items() if end >= now}
        leading = 0
        while leading < len(blocks) and blocks[leading] in until:
            leading += 1
        served = ttl_s[at] >= 0
        hits.append(min(leading, int(traffic.look[at])) if served else 0)
        granted.append(served and len({*until, *blocks}) <= budget_blocks)
        if granted[-1]:
            for block in blocks:
                before = until.get(block, now)
                until[block] = max(before, now + ttl_s[at])
                seconds += min(until[block], end_s) - min(before, end_s)
        peak = max(peak, len(until))
    return Held(hits, granted, seconds, peak)

"""Times to live of blocks in plain Python: each block knows until when it is held."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kvscope.replay.traffic import Traffic
from tests.oracles.replay import left_behind


class Held(NamedTuple):
    """What blocks hit and hold; see `kvscope.retention.ttls.TtlReplay`."""

    hit_blocks: list[int]
    block_seconds: float
    peak_blocks: int


def replay_ttls(traffic: Traffic, ttl_s: Sequence[float]) -> Held:
    """Return what the blocks of all requests hit and hold; a negative TTL holds none."""
    end_s = float(traffic.arrival_s[-1])
    until: dict[Hashable, float] = {}
    hits = []
    seconds, peak = 0.0, 0
    for at, blocks in enumerate(left_behind(traffic)):
        now = float(traffic.arrival_s[at])
        until = {block: end for block, end in until.items() if end >= now}
        leading = 0
        while leading < len(blocks) and blocks[leading] in until:
            leading += 1
        served = ttl_s[at] >= 0
        hits.append(min(leading, int(traffic.look[at])) if served else 0)
        if served:
            for block in blocks:
                before = until.get(block, now)
                until[block] = max(before, now + ttl_s[at])
                seconds += min(until[block], end_s) - min(before, end_s)
        peak = max(peak, len(until))
    return Held(hits, seconds, peak)

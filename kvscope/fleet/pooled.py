"""The reference that loses nothing to routing: one cache of the fleet's size, one queue for all."""

from __future__ import annotations

from heapq import heapreplace

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.fleet.replay import FleetReplay
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.traffic import Traffic


def pooled_fleet(
    traffic: Traffic, hit_blocks: Int32s, profile: LatencyProfile, replicas: int
) -> FleetReplay:
    """Return what N replicas do that share one cache and one queue, first come, first served.

    `hit_blocks` (R) are those of a replay at N times the capacity. A request goes to the replica
    that is free first. Decoding is left out: `end_s` is NaN. In open loop only.
    """
    requests = len(traffic.leaf)
    inputs = traffic.input_tokens.astype(np.int64)
    hit_tokens = np.minimum(hit_blocks.astype(np.int64) * traffic.block_size, inputs)
    prefill_s = profile.ttft_s(inputs - hit_tokens, hit_tokens).tolist()
    free = [(0.0, number) for number in range(replicas)]  # equal, and so a heap
    replica, begin_s = np.empty(requests, dtype=np.int32), np.empty(requests)
    for request, arrival_s in enumerate(traffic.arrival_s.tolist()):
        free_s, number = free[0]
        start_s = max(arrival_s, free_s)
        replica[request], begin_s[request] = number, start_s
        heapreplace(free, (start_s + prefill_s[request], number))
    return FleetReplay(
        replicas,
        replica,
        hit_blocks,
        hit_blocks,
        np.arange(requests, dtype=np.int32),
        traffic.arrival_s,
        begin_s,
        begin_s + np.array(prefill_s),
        np.full(requests, np.nan),
        np.zeros(replicas, dtype=np.int64),
    )

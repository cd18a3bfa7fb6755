"""Routers that see only the order of requests: they split a trace before any replay.

Every replica then has a trace of its own, so LRU's exact curve over all capacities takes one pass
per replica, and policies with hindsight can run too.
"""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Prompts
from kvscope.fleet.kernel import Asked
from kvscope.fleet.replay import no_view
from kvscope.replay.curve import HitCurve, lru_curve
from kvscope.replay.derived_traces import select
from kvscope.replay.stack_distances import LruDistances, lru_distances
from kvscope.replay.traffic import Traffic
from kvscope.routers.base import MemorySizes, Prompt, Router


def assignment(
    traffic: Traffic, routed: Asked, router: Router, replicas: int, *, seed: int = 0
) -> Int32s:
    """Return the replica of each request (R), by the trace's arrival times.

    Raises UsageError for a router that sees more than the order of requests.
    """
    if router.sees != "order":
        raise UsageError(
            f"{router.name} sees more than the order of requests",
            where="--router",
            remedy="replay a capacity at a time",
        )
    requests, parents = len(traffic.leaf), traffic.block_parent
    view, path = no_view(replicas, 0, traffic.block_size), np.zeros(1, dtype=np.int32)
    sizes = MemorySizes(replicas, requests, len(parents), 1, traffic.block_size, 0, parents)
    memory, p = router.memory(sizes, seed), router.settings()
    tokens, keys = traffic.input_tokens.tolist(), routed.key.tolist()
    chosen = [
        router.choose(
            Prompt(request, now_s, tokens[request], keys[request], 0, 0), path, view, memory, p
        )
        for request, now_s in enumerate(traffic.arrival_s.tolist())
    ]
    return np.array(chosen, dtype=np.int32)


def fleet_distances(prompts: Prompts, definition: HitDefinition, replica: Int32s) -> LruDistances:
    """Return the LRU stack distance of each block looked up again, in its replica's LRU list.

    `replica` (R) is the assignment; first look-ups have no entry. `live` is the longest list's.
    """
    members = [np.flatnonzero(replica == number) for number in np.unique(replica)]
    parts = [lru_distances(select(prompts, requests), definition) for requests in members]
    request = [own[part.request] for own, part in zip(members, parts, strict=True)]
    return LruDistances(
        np.concatenate(request).astype(np.int32),
        np.concatenate([part.depth for part in parts]),
        np.concatenate([part.blocks for part in parts]),
        np.concatenate([part.distance for part in parts]),
        max(part.live for part in parts),
    )


def fleet_curve(prompts: Prompts, definition: HitDefinition, replica: Int32s) -> HitCurve:
    """Return the hits of a fleet of LRU caches at every capacity of a replica, exactly.

    Hit definitions that look up every block, whether or not those before it hit, are not supported.
    """
    return lru_curve(prompts, definition, fleet_distances(prompts, definition, replica))

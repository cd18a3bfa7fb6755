"""One fleet over one trace: the replica of each request, its hits and its times."""

from __future__ import annotations

from heapq import heapreplace

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.jit import Function, Opaque, Referenced
from kvscope.core.trace import Prompts
from kvscope.fleet.caches import empty_fleet
from kvscope.fleet.kernel import (
    OPEN,
    Arrivals,
    Asked,
    CacheLimits,
    Replicas,
    Served,
    fleet_kernel,
)
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.base import Policy
from kvscope.replay.costs import costs
from kvscope.replay.kernels.keys import Heap
from kvscope.replay.replay import NO_TABLES, Tables, functions_of
from kvscope.replay.traffic import Traffic
from kvscope.routers.base import Fetch, MemorySizes, ReplicaLoad, Router, Truth, View

MOST_REPLICAS = 4096


class PoolUse(Struct, frozen=True):
    """Chunks of KV files in a shared pool: `held` at the end, evicted, `refused` as it was full."""

    held: int
    evictions: int
    refused: int


class FleetReplay(Struct, frozen=True):
    """The replica, hits and times of R requests on N replicas, in the order of the trace.

    `replica` served each request and hit `hit_blocks` of its leading blocks, copied ones included;
    `best_blocks` is the most that any replica held. `order` lists the requests as they arrived.
    Times are seconds after the trace's start: `arrival_s` as simulated, `begin_s` the start of its
    prefill or of the copy before it, `token_s` its first token, `end_s` its last. `evictions` (N)
    counts blocks. With files below CPU tiers, `read_blocks` of the hits came from files; `pool` is
    the use of shared files. All tiers together stored `stored_chunks`. On simulated engines,
    `before` (R x 2) are the steps planned and the blocks evicted by its replica before the request
    arrived. In an autoscaled fleet, `age_s` (R) is the replica's time in service by then, infinity
    for the initial replicas.
    """

    replicas: int
    replica: Int32s
    hit_blocks: Int32s
    best_blocks: Int32s
    order: Int32s
    arrival_s: Float64s
    begin_s: Float64s
    token_s: Float64s
    end_s: Float64s
    evictions: Int64s
    read_blocks: Int32s | None = None
    pool: PoolUse | None = None
    stored_chunks: int = 0
    before: Int64s | None = None
    age_s: Float64s | None = None

    @property
    def ttft_s(self) -> Float64s:
        """The TTFT of each request, from its simulated arrival (s)."""
        return self.token_s - self.arrival_s


def asked(prompts: Prompts) -> Asked:
    """Return the properties of each request that routers see."""
    full = np.minimum(prompts.input_tokens // prompts.block_size, prompts.blocks)
    return Asked(
        np.ascontiguousarray(prompts.leaf, dtype=np.int32),
        np.ascontiguousarray(prompts.blocks, dtype=np.int32),
        full.astype(np.int32),
        prompts.conversation.astype(np.int64),
    )


def arrivals(
    traffic: Traffic, think_s: Float64s | None = None, after: Int32s | None = None
) -> Arrivals:
    """Return arrivals at the trace's times, or `think_s` after the end of another request.

    The other request is `after`, by default the previous turn. `think_s` (R) is OPEN for requests
    that arrive at the trace's time.
    """
    requests = len(traffic.leaf)
    think_s = np.full(requests, OPEN) if think_s is None else think_s
    later = np.flatnonzero(think_s >= 0).astype(np.int32)
    parent = (traffic.parent if after is None else after)[later]
    turns = later[np.argsort(parent, kind="stable")]
    starts = np.zeros(requests + 1, dtype=np.int64)
    np.cumsum(np.bincount(parent, minlength=requests), out=starts[1:])
    opening = np.flatnonzero(think_s < 0)
    keys, numbers = np.empty(requests), np.empty(requests, dtype=np.int32)
    keys[: len(opening)], numbers[: len(opening)] = traffic.arrival_s[opening], opening
    size = np.array([len(opening)], dtype=np.int64)  # ascending, and so a heap
    return Arrivals(think_s, starts, turns, Heap(keys, numbers, size))


def replay_fleet(
    traffic: Traffic,
    routed: Asked,
    profile: LatencyProfile,
    policy: Policy,
    router: Router,
    replicas: int,
    capacity_blocks: int,
    *,
    think_s: Float64s | None = None,
    after: Int32s | None = None,
    tables: Tables = NO_TABLES,
    seed: int = 0,
) -> FleetReplay:
    """Replay `traffic` on `replicas` of `capacity_blocks` each, behind `router`.

    `think_s` and `after` close the loop: see `arrivals`. A learned policy's `tables` come from the
    whole fleet's traffic. `seed` is for randomized routers. Raises UsageError for policies with
    hindsight and for a number of replicas out of range.
    """
    if not 1 <= replicas <= MOST_REPLICAS:
        raise UsageError(
            f"{replicas} replicas",
            where="--replicas",
            remedy=f"give a number from 1 to {MOST_REPLICAS}",
        )
    tables = tables.chosen(policy, capacity_blocks)
    traffic = tables.classified(policy, traffic)
    requests, blocks = len(traffic.leaf), len(traffic.block_parent)
    caches = empty_fleet(policy, traffic, replicas, capacity_blocks, tables)
    longest = int(routed.blocks.max(initial=0)) + 1
    memory = router.memory(
        MemorySizes(
            replicas,
            requests,
            blocks,
            longest,
            traffic.block_size,
            capacity_blocks,
            traffic.block_parent,
        ),
        seed,
    )
    scrape_s = router.values.get("scrape_s", 0.0)
    event_lag_s, reported = router.values.get("event_lag_s", 0.0), caches
    if event_lag_s > 0:
        reported = empty_fleet(policy, traffic, replicas, capacity_blocks, tables)
    view = no_view(replicas, capacity_blocks, traffic.block_size, scrape_s > 0, event_lag_s > 0)
    counts = _empty_served(requests)
    kernel = fleet_kernel(type(policy))
    fleet = Replicas(
        np.zeros(replicas),
        np.zeros((blocks if router.counts_blocks else 1, replicas), dtype=np.int32),
    )
    limits = CacheLimits(
        capacity_blocks,
        policy.makes_room,
        policy.values.get("ttl_s", np.inf),
        scrape_s,
        event_lag_s,
        router.counts_blocks,
    )
    events = Heap(
        np.empty(3 * requests), np.empty(3 * requests, dtype=np.int32), np.zeros(1, dtype=np.int64)
    )
    kernel(
        Referenced(traffic),
        Referenced(routed),
        Referenced(arrivals(traffic, think_s, after)),
        costs(profile),
        limits,
        Referenced(traffic.of_requests(np.arange(requests))),  # copies, to be put in order
        Referenced(caches),
        Referenced(reported),
        Referenced(fleet),
        Referenced(view),
        Referenced(events),
        np.zeros(longest, dtype=np.int32),
        Function(type(router).choose, Router.choose, memory),
        Opaque(memory),
        router.settings(),
        Referenced(counts),
        functions_of(policy),
    )
    place = np.empty(requests, dtype=np.int64)
    place[counts.request] = np.arange(requests)
    return FleetReplay(
        replicas,
        counts.replica[place],
        counts.hit[place],
        counts.best[place],
        counts.request,
        _arrived(traffic, counts, place, think_s, after),
        counts.begin_s[place],
        counts.token_s[place],
        counts.end_s[place],
        caches.evictions,
    )


def _arrived(
    traffic: Traffic,
    served: Served,
    place: Int64s,
    think_s: Float64s | None,
    after: Int32s | None,
) -> Float64s:
    """Return the simulated arrival time (s) of each request, in the order of the trace.

    `place` (R) is each request's row in `served`. A `think_s` (s) of at least 0 follows the end of
    request `after`, by default the previous turn.
    """
    if think_s is None:
        return traffic.arrival_s
    ended_s = served.end_s[place][np.maximum(traffic.parent if after is None else after, 0)]
    return np.where(think_s < 0, traffic.arrival_s, ended_s + think_s)


def no_view(
    replicas: int,
    capacity_blocks: int,
    block_size: int,
    scraped: bool = False,
    lagging: bool = False,
) -> View:
    """Return the view of an idle fleet with empty caches.

    Loads are up to date unless `scraped`, blocks reported by KV events unless `lagging`.
    """
    load, cached_blocks = _no_load(replicas), np.zeros(replicas, dtype=np.int32)
    truth = Truth(
        cached_blocks,
        np.zeros(replicas, dtype=np.int64),
        np.zeros(replicas),
        np.zeros(replicas),
    )
    return View(
        replicas,
        capacity_blocks,
        block_size,
        load,
        _no_load(replicas) if scraped else load,
        cached_blocks.copy() if lagging else cached_blocks,
        np.zeros(1, dtype=np.int32),
        truth,
        Fetch(np.zeros(1, dtype=np.int32), np.zeros(1)),
    )


def among(view: View, replicas: int) -> View:
    """Return a view of the first `replicas` alone, which shares the arrays of `view`."""

    def part(load: ReplicaLoad) -> ReplicaLoad:
        return ReplicaLoad(*(column[:replicas] for column in load))

    truth = view.truth
    return view._replace(
        replicas=replicas,
        own=part(view.own),
        scraped=part(view.scraped),
        reported_blocks=view.reported_blocks[:replicas],
        truth=Truth(
            truth.cached_blocks[:replicas],
            truth.new_blocks[:replicas],
            truth.prefill_s[:replicas],
            truth.wait_s[:replicas],
        ),
    )


def _no_load(replicas: int) -> ReplicaLoad:
    return ReplicaLoad(*(np.zeros(replicas, dtype=np.int64) for _ in ReplicaLoad._fields))


def _empty_served(requests: int) -> Served:
    request, replica, hit, best, uncached = (np.zeros(requests, dtype=np.int32) for _ in range(5))
    begin_s, token_s, end_s = (np.zeros(requests) for _ in range(3))
    return Served(request, replica, hit, best, uncached, begin_s, token_s, end_s)


def pooled_fleet(
    traffic: Traffic, hit_blocks: Int32s, profile: LatencyProfile, replicas: int
) -> FleetReplay:
    """Return the replay of N replicas that share one cache and one queue, first come, first served.

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

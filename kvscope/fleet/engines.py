"""A fleet whose replicas are simulated vLLMs: requests share steps, and running ones pin blocks.

Routers see the state at a request's arrival. Replicas simulate whole steps, so a cache as a router
sees it may be ahead by the step in progress (a real engine's KV events, sent after a step, are
behind by one). If KV events have a lag, each engine has a copy that is simulated up to the lag
before the arrival: events report the copy's blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import UsageError
from kvscope.core.jit import Function, Opaque, Referenced
from kvscope.core.trace import Prompts
from kvscope.fleet.engine_loads import no_counts
from kvscope.fleet.engines_kernel import (
    Engines,
    FleetPaths,
    Loads,
    SentRequests,
    Sights,
    run_engines,
)
from kvscope.fleet.machines import Machines, idle_machines, layouts, renew
from kvscope.fleet.replay import FleetReplay, PoolUse, among, arrivals, asked, no_view
from kvscope.fleet.scaling import Schedule
from kvscope.policies.base import Policy
from kvscope.replay.costs import Costs
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.routers.base import MemorySizes, Router, View
from kvscope.vllm_sim import EngineSettings, StepCost
from kvscope.vllm_sim.engine import engine_function
from kvscope.vllm_sim.replay import loaded_blocks, never_start
from kvscope.vllm_sim.state import engine_traffic, idle_machine

_SLICE = 1000  # arrivals between two checks for an interrupt
Route = Callable[[int, int], int]
"""Routes the arrivals from one number to before another; returns the number of the next one."""


def replay_engines(
    prompts: Prompts,
    policy: Policy,
    router: Router,
    replicas: int,
    settings: EngineSettings,
    cost: StepCost,
    *,
    think_s: Float64s | None = None,
    after: Int32s | None = None,
    tables: Tables = NO_TABLES,
    seed: int = 0,
    scaled: Schedule | None = None,
) -> FleetReplay:
    """Replay a trace on `replicas` simulated vLLMs of these settings, behind `router`.

    A request with a `think_s` of at least 0 arrives that long after the end of request `after` (by
    default the previous turn). `tables` are the policy's, `seed` a random router's. In the result,
    `begin_s` is when a request is admitted; one longer than a pool is rejected: no hits, nan for
    times. `best_blocks` includes blocks computed between arrival and admission if the request hit
    them, `hit_blocks` also blocks loaded from a CPU tier. Routers see pools, not tiers; to them a
    request waits for the prefill time of the tokens before it, without decodes. With `scaled`, the
    schedule sets the number of replicas: a removed one finishes the requests sent to it, and can be
    added again only then, with an empty cache. Raises UsageError for a policy without lanes and for
    a router that copies prefixes.
    """
    if router.copies:
        raise UsageError(
            f"{router.name} copies prefixes between replicas, which simulated vLLMs do not",
            where="--router",
            remedy="take --time-model queue",
        )
    known = idle_machine(prompts, policy, settings, cost, tables=tables)
    requests, routed = known.requests, asked(prompts)
    count, size = len(requests), prompts.block_size
    scrape_s = router.values.get("scrape_s", 0.0)
    lag_s = router.values.get("event_lag_s", 0.0)
    machines = idle_machines(known, replicas, 2 if lag_s > 0 else 1)
    rows = layouts(machines.each, len(machines.sent))
    addresses = rows.ctypes.data + rows.strides[0] * np.arange(len(rows))
    view = no_view(replicas, settings.usable_blocks, size, scrape_s > 0, lag_s > 0)
    longest = int(max(routed.blocks.max(initial=0), requests.length.max(initial=0))) + 1
    parents = known.parents
    sizes = MemorySizes(
        replicas, count, len(parents), longest, size, settings.usable_blocks, parents
    )
    memory = router.memory(sizes, seed)
    due = arrivals(engine_traffic(prompts), think_s, after)
    sent = _nothing_sent(replicas, count, closed=len(due.turns) > 0)
    simulate: Any = run_engines  # which takes tuples of arrays as `Referenced`
    before = (
        Referenced(Engines(engine_function(known), addresses)),
        Referenced(machines),
        Referenced(routed),
        Referenced(FleetPaths(parents, *np.zeros((2, longest), dtype=np.int32))),
        Referenced(due),
        _costs(cost),
        Sights(router.sees in {"load", "truth"}, router.counts_blocks, scrape_s, lag_s),
    )
    loads = Referenced(_no_loads(replicas, count, scraped=scrape_s > 0))

    def route_of(view: View, memory: Any) -> Route:
        choose = Function(type(router).choose, Router.choose, memory)
        after = (loads, Referenced(sent), choose, Opaque(memory), router.settings())
        return partial(simulate, *before, Referenced(view), *after)

    route = route_of(view, memory)
    if scaled is None:
        _route(route, 0, count)
        route(count, count + 1)
        return _outcome(machines, sent)
    # Replicas that serve are the first ones, so that routers see no others.
    age_s, joined_s, active, slot = np.full(count, np.inf), np.full(replicas, -np.inf), 0, 0
    while slot < count:
        now_s, present = float(due.due.keys[0]), active
        wanted, changes_s = scaled.at(now_s)
        active = min(active, wanted) if slot else wanted
        while active < wanted and machines.now_s[active] == np.inf:  # it has ended all it had
            renew(machines, active, known)
            for load in (view.own, view.scraped):
                load.processed[active] = load.sent_tokens[active] = 0
            joined_s[active] = now_s
            active += 1
        if active != present:
            route = route_of(among(view, active), router.among(memory, active, seed))
        end = int(np.searchsorted(requests.arrival_s, changes_s)) if active == wanted else slot + 1
        _route(route, slot, end)
        served = sent.request[slot:end]
        age_s[served] = requests.arrival_s[served] - joined_s[sent.replica[served]]
        slot = end
    route(count, count + 1)
    return replace(_outcome(machines, sent), age_s=age_s)


def _route(route: Route, begin: int, end: int) -> None:
    """Route the arrivals `begin` to `end` (excluded), in slices that notice an interrupt."""
    while begin < end:
        reached = route(begin, min(begin + _SLICE, end))
        if reached == begin:
            raise UsageError(
                f"{end - begin:,} requests never arrive: they follow others that never end"
            )
        begin = reached


def _nothing_sent(replicas: int, count: int, *, closed: bool) -> SentRequests:
    request, replica, place, best = (np.zeros(count, dtype=np.int32) for _ in range(4))
    steps, evicted = np.zeros((2, count), dtype=np.int64)
    request_at, uncached = (np.empty((replicas, count), dtype=np.int32) for _ in range(2))
    return SentRequests(
        request,
        replica,
        place,
        best,
        steps,
        evicted,
        request_at,
        uncached,
        np.empty((replicas, count if closed else 0), dtype=np.int32),
        np.zeros(replicas, dtype=np.int64),
    )


def _no_loads(replicas: int, count: int, *, scraped: bool) -> Loads:
    own = no_counts(replicas, count)
    return Loads(own, no_counts(replicas, count) if scraped else own, np.array([-np.inf]))


def _costs(cost: StepCost) -> Costs:
    """Return the costs of a prefill alone in its step, decoding free: what routers see as times."""
    return Costs(
        cost.base_s, cost.floor_s, cost.prefill_token_s, cost.prefill_pair_s, 0.0, 0.0, 0.0
    )


def _outcome(machines: Machines, sent: SentRequests) -> FleetReplay:
    replicas = len(sent.opened)
    each, at = machines.each, (sent.replica, sent.place)
    rows: Any = each.requests[at]
    hit_blocks, read_blocks, stored = np.maximum(rows.hits, 0).astype(np.int32), None, 0
    pool = each.offload.pool[0, 0]
    if each.offload.members.size:
        if each.offload.state.stuck.any():
            unfinished = np.isnan(rows.finished_s[rows.oversized == 0])
            raise never_start(int(unfinished.sum()), "--tier-size")
        members: Any = each.offload.members[at]
        size = int(each.state.block_size[0, 0])
        loaded = loaded_blocks(rows, members, size)
        hit_blocks += loaded
        tiers: Any = each.offload.state[:replicas, 0]
        stored = int((tiers.stored - tiers.read_chunks).sum())
        if each.offload.state.storage.any():
            read_blocks = np.minimum(members.read, loaded).astype(np.int32)
    return FleetReplay(
        replicas=replicas,
        replica=sent.replica,
        hit_blocks=hit_blocks,
        best_blocks=np.maximum(sent.best, hit_blocks),
        order=sent.request,
        arrival_s=rows.arrival_s.copy(),
        begin_s=rows.admitted_s.copy(),
        token_s=rows.first_token_s.copy(),
        end_s=rows.finished_s.copy(),
        evictions=each.state.evictions[:replicas, 0].copy(),
        read_blocks=read_blocks,
        pool=PoolUse(int(pool.chunks), int(pool.evictions), int(pool.full))
        if pool.shared
        else None,
        stored_chunks=stored,
        before=np.stack([sent.steps, sent.evicted], axis=1),
    )

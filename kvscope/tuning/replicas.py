"""One trace over several replicas, each with its own cache, behind a router.

Router `session` needs only the order of requests, so each replica is an independent replay. A
conversation's replica stays the same when the trace grows, unless the conversation is inferred and
its first request changes. Other routers are those of `kvscope fleet`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.arrays import STEP, Int32s, fraction, mixed
from kvscope.core.trace import Prompts
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.fleet.disaggregated import PrefillSplit, Stages
from kvscope.fleet.outcome import Slo
from kvscope.fleet.replay import asked
from kvscope.fleet.split import assignment
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.policies.base import Policy
from kvscope.replay.curve import first_counted
from kvscope.replay.derived_traces import select
from kvscope.replay.metrics import ServedRequests, serve
from kvscope.replay.sweep import chunk_blocks, engine_of, serve_replay
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.routers.balancers import Session, VllmDp
from kvscope.routers.base import Router
from kvscope.tuning.target import Target
from kvscope.vllm_sim import EngineSettings

SESSION: Router = Session()
"""The router in front of a deployment's replicas, where none is named."""


def router_of(where: ResolvedDeployment | None) -> Router:
    """Return a deployment's router: vLLM's balancer for data-parallel ranks, else `session`."""
    return SESSION if where is None or where.dp == 1 else VllmDp()


def conversation_draws(prompts: Prompts, seed: int = 0) -> NDArray[np.float64]:
    """Return a random number (0-1) for each request, by which conversations are sampled whole."""
    states = (prompts.conversation.astype(np.uint64) + np.uint64(seed + 1)) * STEP
    return np.asarray(fraction(mixed(states)))


class Replica(Struct, frozen=True):
    """The numbers of the requests that one replica serves (ascending), and their workload."""

    requests: NDArray[np.int64]
    workload: Workload


def split_over(workload: Workload, replicas: int) -> tuple[Replica, ...]:
    """Return the replicas of a workload that serve at least one request."""
    prompts = workload.prompts
    if replicas == 1:
        return (Replica(np.arange(len(prompts.leaf)), workload),)
    number = assignment(workload.traffic, asked(workload.prompts), SESSION, replicas)
    chosen = (np.flatnonzero(number == replica) for replica in range(replicas))
    return tuple(
        Replica(requests, _part(workload, requests)) for requests in chosen if len(requests)
    )


def replica_of(
    workload: Workload, replicas: int, router: Router, policy: Policy, capacity_blocks: int
) -> Int32s:
    """Return the number of the replica that serves each request (R); 0 for a rejected request."""
    if router.sees == "order":
        return assignment(workload.traffic, asked(workload.prompts), router, replicas)
    sweep = fleet_sweep(workload, capacity_blocks, Target(1.0))
    return np.maximum(sweep.replay(Fleet(router, policy, replicas)).replica, 0)


def thinned(workload: Workload, share: float) -> Workload:
    """Return the workload of a random share (0-1) of the conversations, at least one.

    The conversations of a smaller share are among those of a larger one.
    """
    draws = conversation_draws(workload.prompts, seed=1)
    return _part(workload, np.flatnonzero(draws <= max(share, float(draws.min()))))


def serve_replicas(replicas: Sequence[Replica], request: ReplayRequest) -> list[ServedRequests]:
    """Return how each replica's requests are served, from a replay of `request` per replica."""
    return [serve_replay(replica.workload, request).served for replica in replicas]


def together(
    workload: Workload, replicas: Sequence[Replica], parts: Sequence[ServedRequests]
) -> ServedRequests:
    """Return the results of all requests, in the workload's order, from those of each replica."""
    if len(parts) == 1 and parts[0].prompts is workload.prompts:
        return parts[0]

    def column(name: str) -> Any:
        columns = [getattr(part, name) for part in parts]
        if any(values is None for values in columns):
            return None
        whole = np.empty(len(workload.prompts.leaf), dtype=columns[0].dtype)
        for replica, values in zip(replicas, columns, strict=True):
            whole[replica.requests] = values
        return whole

    given = {"prompts", "first", "stored_blocks"}
    return ServedRequests(
        prompts=workload.prompts,
        first=_first(workload),
        stored_blocks=sum(part.stored_blocks for part in parts),
        **{name: column(name) for name in ServedRequests.__struct_fields__ if name not in given},
    )


def fleet_sweep(
    workload: Workload,
    capacity_blocks: int,
    target: Target,
    above: Callable[[EngineSettings], EngineSettings] | None = None,
) -> FleetSweep:
    """Return a sweep over fleets whose replicas each have the engine of the workload's setting.

    `above` takes that engine and returns it with a tier below its pool; None: no tier. Without an
    engine in the setting, `above` is not called.
    """
    setting, engine = workload.setting, None
    if setting.capacity_model == "engine":
        engine = engine_of(setting, capacity_blocks, workload.prompts.block_size)
        engine = above(engine) if above else engine
    return FleetSweep(
        workload,
        capacity_blocks,
        Slo(target.slo_s, target.percentile, target.tpot_slo_s),
        engine=engine,
    )


def serve_fleet(
    workload: Workload,
    capacity_blocks: int,
    target: Target,
    fleet: Fleet,
    seed: int,
    above: Callable[[EngineSettings], EngineSettings] | None = None,
    split: PrefillSplit | None = None,
) -> ServedRequests:
    """Return the results of a workload's requests in a fleet, at `capacity_blocks` per replica.

    `above` returns its engine with a tier below the pool; `split`: some prefill, others decode.
    """
    sweep = fleet_sweep(workload, capacity_blocks, target, above)
    if split is None:
        done = sweep.replay(fleet, seed)
    else:
        stages = Stages(sweep, fleet, split.link, seed=seed)
        done = stages.replayed(split.prefill, fleet.replicas - split.prefill)
    setting, prompts = workload.setting, workload.prompts
    served = serve(prompts, setting.definition, done.hit_blocks, workload.profile)
    tpot_s = None
    if setting.holds_running:
        later = prompts.output_tokens.astype(np.int64) - 1
        tpot_s = np.where(later > 0, (done.end_s - done.token_s) / np.maximum(later, 1), np.nan)
    each = chunk_blocks(sweep.engine, prompts.block_size) if sweep.engine else 0
    pool = done.pool  # whose files no replica writes again
    stored_blocks = each * (pool.held + pool.evictions if pool else done.stored_chunks)
    return replace(served, queued_ttft_s=done.ttft_s, tpot_s=tpot_s, stored_blocks=stored_blocks)


def _first(workload: Workload) -> int:
    return first_counted(workload.prompts, workload.setting.definition)


def _part(workload: Workload, requests: NDArray[np.int64]) -> Workload:
    """Return the workload of some requests; those counted in the whole workload are counted."""
    setting, first = workload.setting, int(np.searchsorted(requests, _first(workload)))
    share = min((first + 0.5) / len(requests), 1.0)  # half a request more gives `first` back
    setting = replace(
        setting,
        definition=replace(setting.definition, warmup=share),
        isolate=None,  # the workload's prompts are isolated already
    )
    return Workload(select(workload.prompts, requests), setting, workload.windows)

"""What the options of `fleet` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.deployment import resolved_deployment
from kvscope.app.options import (
    FleetOptions,
    ReplicaOptions,
    TimeModel,
)
from kvscope.app.requests.common import (
    BASELINE,
    DEFAULT_PERCENTILE,
    Capacities,
    check_engine_runs,
    hit_definition,
    kv_model,
    latency_profile,
    stated_capacities,
    stated_slo,
)
from kvscope.core.errors import UsageError
from kvscope.core.runs import RunSetting
from kvscope.deployment.models import Model
from kvscope.fleet.options import ROUTED
from kvscope.replay.policy_options import (
    VLLM,
    Variant,
    parse_policies,
    parse_variants,
)
from kvscope.replay.settings import (
    run_setting,
)

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.fleet.outcome import Slo
    from kvscope.policies.base import Policy
    from kvscope.routers.base import Router
    from kvscope.vllm_sim import EngineSettings


class FleetRequest(Struct, frozen=True):
    """Which fleets to replay, and the SLO that the fewest replicas have to meet.

    `capacities` has that of a replica. Without `routers_named`, routers that need sessions are left
    out where the trace has none. `engine` has the limits of simulated vLLMs, its blocks aside: for
    their time model, or to check the answer of a deployment's queues; else None.
    """

    setting: RunSetting
    slo: Slo
    routers: tuple[Router, ...]
    variants: tuple[Variant, ...]
    replicas: tuple[int, ...]
    capacities: Capacities
    model: Model | None = None
    deployment: ResolvedDeployment | None = None
    time_model: TimeModel = "queue"
    engine: EngineSettings | None = None
    closed_loop: bool = False
    seeds: int = 1
    routers_named: bool = True
    on: str | None = None


def fleet_request(options: FleetOptions) -> FleetRequest:
    """Return what the options of `fleet` ask for."""
    named = stated_capacities(
        None if options.capacity is None else (options.capacity,),
        None if options.capacity_blocks is None else (options.capacity_blocks,),
    )
    request = fleet_of(options, named)
    if request.capacities == Capacities():
        raise UsageError(
            "how much a replica caches is not stated",
            where="--capacity-blocks",
            remedy="name it, or --capacity with --model, or a deployment: --gpu and --model",
        )
    return request


def fleet_of(options: FleetOptions, named: Capacities) -> FleetRequest:
    """Return what `fleet` asks for with these capacities of a replica, by default its pool."""
    from kvscope.fleet.options import parse_routers, router_variants, split_assignments
    from kvscope.fleet.outcome import Slo
    from kvscope.policies.registry import check_required

    slo_s = stated_slo(options.slo)
    where = resolved_deployment(
        ReplicaOptions(
            **{name: getattr(options, name) for name in ReplicaOptions.__struct_fields__}
        )
    )
    if where is not None and where.traffic == "replica":
        raise UsageError(
            "a fleet needs the traffic of all replicas, and the deployment's trace holds one's",
            where="--traffic",
            remedy="take a trace of the whole fleet, with --traffic fleet",
        )
    where = where and where.as_cache  # of queues; simulated vLLMs have a hybrid model's groups
    sizes_named = bool(named.sizes_bytes)
    kv = (
        where.model if where else kv_model(options.model, options.kv_dtype, sizes_named=sizes_named)
    )
    if sizes_named and kv is None:
        raise UsageError("bytes need a model", where="--capacity", remedy="name one with --model")
    if where is not None and named == Capacities():
        named = Capacities(tokens=(where.pool.tokens,))
    profile = where.latency if where else latency_profile(options.latency)
    kinds = parse_routers(options.router or ROUTED)
    assigned, of_policies = split_assignments(kinds, options.param or ())
    policies = parse_policies(options.policy, "--policy")
    for policy in policies:
        if policy.hindsight:
            raise UsageError(
                f"{policy.name} is an oracle, which no engine can run",
                where="--policy",
                remedy="leave it out: a pooled cache with it is shown anyway",
            )
        if policy.name != BASELINE and where is not None and where.kv_groups is not None:
            raise UsageError(
                f"{policy.name} is not replayed on fleets of hybrid models",
                where="--policy",
                remedy="leave it out: vLLM's order is lru",
            )
    time_model = options.time_model or _usual_time_model(where, kinds, policies)
    engine = _engine_limits(options, time_model, where)
    if copying := [kind.name for kind in kinds if kind.copies and time_model == "engine"]:
        raise UsageError(
            f"{copying[0]} copies prefixes between replicas, which simulated vLLMs do not",
            where="--time-model engine",
            remedy="leave it out of --router, or take --time-model queue",
        )
    variants = parse_variants(policies, of_policies)
    for variant in variants:
        check_required(variant.policy, variant.given, "--policy")
    if options.time_model == "engine":
        check_engine_runs(variants, "--policy")
    return FleetRequest(
        setting=run_setting(hit_definition(None, "carried", options.warmup), profile, slo_s=slo_s),
        slo=Slo(slo_s, options.percentile or DEFAULT_PERCENTILE, options.tpot_slo),
        routers=tuple(
            router for kind in kinds for router in router_variants(kind, assigned.get(kind, []))
        ),
        variants=tuple(variants),
        replicas=options.replicas,
        capacities=named,
        model=kv,
        deployment=where,
        time_model=time_model,
        engine=engine,
        closed_loop=options.closed_loop,
        seeds=options.seeds,
        routers_named=options.router is not None,
        on=options.on,
    )


def _usual_time_model(
    where: ResolvedDeployment | None,
    routers: Sequence[type[Router]],
    policies: Sequence[type[Policy]],
) -> TimeModel:
    """Return "engine" for a deployment on vLLM, with routers and policies that it can simulate."""
    from kvscope.policies.base import LanePolicy  # late: loads NumPy

    simulated = where is not None and where.engine.name == VLLM
    followed = all(issubclass(policy, LanePolicy) for policy in policies)
    if simulated and followed and not any(router.copies for router in routers):
        return "engine"
    return "queue"


def _engine_limits(
    options: FleetOptions, time_model: TimeModel, where: ResolvedDeployment | None
) -> EngineSettings | None:
    """Return the limits of a simulated vLLM, its blocks aside; None where none is simulated.

    Raises UsageError where SGLang would have to be.
    """
    from kvscope.vllm_sim import EngineSettings

    if time_model == "queue" and (where is None or where.engine.name != VLLM):
        return None
    if where is not None and where.engine.name != VLLM:
        raise UsageError(
            "SGLang's scheduler is not simulated",
            where="--time-model engine",
            remedy="take --time-model queue",
        )
    limits, usual = where or options, EngineSettings(1)
    if where is not None:
        usual = usual.in_version(where.engine)
    return replace(
        usual,
        max_num_seqs=limits.max_num_seqs or usual.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens or usual.max_num_batched_tokens,
    )

"""What the options of a use case ask for; mistakes are refused before any trace is read.

UsageError names the option that is wrong. This module and what it imports load no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.app.deployment import resolved_deployment
from kvscope.app.options import (
    AnalyzeOptions,
    ExplainOptions,
    FleetOptions,
    ReplicaOptions,
    RetentionOptions,
    SimulateOptions,
    TierOptions,
    TimeModel,
    TuneOptions,
)
from kvscope.app.values import TierSize
from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition, Outputs, compatible, standard
from kvscope.core.runs import RunSetting
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.models import KvDtype, Model, resolve_model
from kvscope.fleet.options import ROUTED
from kvscope.latency.file import load_profile
from kvscope.latency.profile import (
    DEFAULT_PROFILE,
    FROM_TRACE,
    MODELS,
    TO_FIT,
    LatencyProfile,
)
from kvscope.replay.policy_options import (
    ALL,
    HYBRID,
    VLLM,
    Variant,
    contenders,
    guarded,
    parse_policies,
    parse_variants,
    refitted,
)
from kvscope.replay.settings import (
    engine_setting,
    policies_for,
    run_setting,
    with_capacity_model,
)
from kvscope.tuning.target import Limits, Target

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.fleet.outcome import Slo
    from kvscope.routers.base import Router
    from kvscope.tuning.file import EngineTable, RecommendationFile
    from kvscope.tuning.tier_prices import TierKind, TierPrice
    from kvscope.vllm_sim import EngineSettings

BASELINE = "lru"
DEFAULT_PERCENTILE = 0.95
WINDOWS = "--warmup, --validation, --judge"


@dataclass(frozen=True, slots=True)
class Capacities:
    """Capacities in blocks, in bytes and in tokens, each as it was named."""

    blocks: tuple[int, ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    @property
    def named(self) -> bool:
        """Whether there are any."""
        return self != Capacities()

    def in_blocks(self, model: Model | None, block_size: int) -> list[int]:
        """Return them all in blocks of `block_size` tokens, ascending and distinct.

        Raises UsageError for a size in bytes that holds no block of the model.
        """
        fitting = [model.blocks_in(size, block_size) for size in self.sizes_bytes if model]
        if model is not None and 0 in fitting:
            raise UsageError(
                "holds not one block",
                where="--capacity",
                remedy=(
                    f"a block of {model.name} takes"
                    f" {units.format_size(model.bytes_for(block_size))}"
                ),
            )
        return sorted({*self.blocks, *fitting, *(tokens // block_size for tokens in self.tokens)})


@dataclass(frozen=True, slots=True)
class AnalyzeRequest:
    """What an analysis shows beyond the trace itself, of requests `from_s` until `until_s`.

    That of a dataset takes at most `memory_bytes` (None: half of what is free).
    """

    definition: HitDefinition = standard()
    model: Model | None = None
    hbm_bytes: int | None = None
    capacities: Capacities = Capacities()
    deployment: ResolvedDeployment | None = None
    from_s: float | None = None
    until_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """Which replays to run: `points` capacities, or else the named ones, or else DEFAULT_POINTS.

    Tiers have capacities of their own.
    """

    setting: RunSetting
    variants: tuple[Variant, ...]
    capacities: Capacities = Capacities()
    points: int | None = None
    model: Model | None = None
    deployment: ResolvedDeployment | None = None
    on: str | None = None


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """The one replay whose misses to explain, and the number or id of a request, None for all.

    Without a capacity nothing is evicted. `pooled`: one cache, also where the trace names workers.
    """

    replayed: SimulateRequest
    request: str | None = None
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class RetentionRequest:
    """For which model, and for a cache of which size, times to live are to be judged.

    Steps of the engine that judges them too take the time of `profile`.
    """

    profile: LatencyProfile
    definition: HitDefinition = standard()
    model: Model | None = None
    capacities: Capacities = Capacities()


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, for which target; without a deployment it is a study of a cache alone.

    `warmup`, `validation` and `judge` are shares of the requests, None for the defaults;
    `range_bytes` bounds the search for the least capacity. `given` names the options that the user
    chose: the others are listed as assumptions.
    """

    target: Target
    setting: RunSetting
    profile: LatencyProfile
    variants: tuple[Variant, ...]
    capacities: Capacities = Capacities()
    range_bytes: tuple[int, int] | None = None
    model: Model | None = None
    hbm_bytes: int | None = None
    warmup: float | None = None
    validation: float | None = None
    judge: float | None = None
    limits: Limits = Limits()
    deployment: ResolvedDeployment | None = None
    given: frozenset[str] = field(default_factory=frozenset)
    on: str | None = None


@dataclass(frozen=True, slots=True)
class FleetRequest:
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


@dataclass(frozen=True, slots=True)
class FleetTuningRequest:
    """The routers, policies, capacities and SLO of a fleet to choose.

    `limits` say how much a policy may harm. `latency_named`: whether --latency is stated.
    """

    fleet: FleetRequest
    limits: Limits
    latency_named: bool


@dataclass(frozen=True, slots=True)
class TierTuningRequest:
    """One engine to tune a tier for; `sizes` and `offload` are None for the defaults."""

    tune: TuneRequest
    sizes: tuple[TierSize, ...] | None
    offload: tuple[str, ...] | None
    prices: dict[TierKind, TierPrice]


def analyze_request(options: AnalyzeOptions) -> AnalyzeRequest:
    """Return what the options of `analyze` ask for."""
    return replace(
        _analysis(options),
        from_s=options.from_,
        until_s=options.until,
        memory_bytes=options.memory,
    )


def _analysis(options: AnalyzeOptions) -> AnalyzeRequest:
    """Return the same for a whole trace."""
    definition = hit_definition(options.compat, options.outputs, options.warmup)
    capacities = Capacities(options.capacity_blocks or (), options.capacity or ())
    where = resolved_deployment(options)
    if where is not None:
        if options.hbm is not None:
            raise UsageError("the deployment has a pool", where="--hbm", remedy="leave it out")
        return AnalyzeRequest(definition, where.model, where.pool_bytes, capacities, where.as_cache)
    kv = kv_model(options.model, options.kv_dtype)
    if kv is None and (options.hbm or options.capacity):
        option = "--hbm" if options.hbm else "--capacity"
        raise UsageError("needs a model", where=option, remedy="name one with --model")
    return AnalyzeRequest(definition, kv, options.hbm, capacities)


def simulate_request(options: SimulateOptions) -> SimulateRequest:
    """Return what the options of `simulate` ask for."""
    recommended = _recommendation(options)
    where = None if recommended else resolved_deployment(options)
    if where is not None:
        _check_simulated(options, where)
    kv = (
        where.model
        if where
        else kv_model(options.model, options.kv_dtype, sizes_named=bool(options.capacity))
    )
    definition = hit_definition(options.compat, options.outputs, options.warmup)
    slo_s = recommended.target.slo_s if recommended else options.slo
    if recommended:
        profile = recommended.profile
    else:
        profile = where.latency if where else latency_profile(options.latency)
    setting = replace(
        run_setting(definition, profile, slo_s=slo_s),
        rate_scale=above_zero(options.rate_scale),
        isolate=options.isolate,
        sample_rate=options.sample,
        coarsen=options.coarsen,
    )
    named = (options.capacity, options.capacity_blocks, options.points)
    engine = _engine(recommended, where)
    limits = engine or options
    setting = with_capacity_model(
        setting,
        "engine" if engine else options.capacity_model,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        tiers=options.tiers,
        tier_mode=options.tier_mode,
        offload=options.offload,
        capacities_named=any(capacity is not None for capacity in named),
    )
    if recommended and recommended.deployment is not None:
        setting = replace(setting, kv_groups=recommended.deployment.kv_groups)
    if recommended:
        variants = _with_lru(recommended)
    else:
        hybrid = setting.capacity_model == "engine" and kv is not None and _grouped(kv)
        named_policies = policies_for(setting, options.policies, hybrid=hybrid)
        variants = parse_variants(named_policies, options.param or ())
        if options.policies not in {None, ALL}:
            from kvscope.policies.registry import check_required  # late: loads NumPy

            for variant in variants:
                check_required(variant.policy, variant.given, "--policies")
    if options.refit is not None:
        variants = [refitted(variant, options.refit) for variant in variants]
    if not setting.exact:
        variants = _estimated(options, variants)
    capacities = Capacities(
        options.capacity_blocks or (),
        options.capacity or (),
        _stated_tokens(recommended, where),
    )
    return SimulateRequest(
        setting, tuple(variants), capacities, options.points, kv, where, options.on
    )


def _estimated(options: SimulateOptions, variants: list[Variant]) -> list[Variant]:
    """Return the variants of which a sample, or coarse blocks, can say how near they are.

    Raises UsageError for a sample that is too small, and where a policy was named that is not one.
    """
    from kvscope.replay.sampling import LEAST_RATE  # late: loads NumPy

    if options.sample < LEAST_RATE:
        raise UsageError(
            f"no error can be stated below {LEAST_RATE:.0%}",
            where=f"--sample {options.sample:.3g}",
            remedy="replay more, or larger blocks with --coarsen",
        )
    scaling = [variant for variant in variants if variant.policy.scales]
    others = {variant.policy.name for variant in variants if not variant.policy.scales}
    if others and options.policies not in {None, ALL}:
        raise UsageError(
            f"a sample does not show what {', '.join(sorted(others))} does in the whole trace",
            where=f"--policies, {'--sample' if options.sample < 1 else '--coarsen'}",
            remedy="leave out one of them",
        )
    return scaling


def explain_request(options: ExplainOptions) -> ExplainRequest:
    """Return what the options of `explain` ask for."""
    if options.capacity is not None and options.capacity_blocks is not None:
        raise UsageError(
            "one cache has one capacity",
            where="--capacity, --capacity-blocks",
            remedy="leave out one of them",
        )
    stated = {each.name: getattr(options, each.name) for each in fields(ReplicaOptions)}
    replayed = simulate_request(
        SimulateOptions(
            **stated,
            replicas=options.replicas,
            policies=options.policy,
            param=options.param,
            capacity=None if options.capacity is None else (options.capacity,),
            capacity_blocks=None if options.capacity_blocks is None else (options.capacity_blocks,),
            outputs=options.outputs,
        )
    )
    if len(replayed.variants) != 1:
        raise UsageError(
            f"{len(replayed.variants)} policies or settings",
            where="--policy, --param",
            remedy="name one policy, with one value of each parameter",
        )
    if replayed.capacities == Capacities() and replayed.variants[0].policy.name != BASELINE:
        raise UsageError(
            "needs a capacity",
            where=f"--policy {options.policy}",
            remedy="add --capacity or --capacity-blocks",
        )
    return ExplainRequest(replayed, options.request, options.pooled)


def retention_request(options: RetentionOptions) -> RetentionRequest:
    """Return what the options of `retention` ask for."""
    sizes = None if options.capacity is None else (options.capacity,)
    blocks = None if options.capacity_blocks is None else (options.capacity_blocks,)
    return RetentionRequest(
        latency_profile(options.latency),
        hit_definition(None, options.outputs, 0.0),
        kv_model(options.model, options.kv_dtype, sizes_named=sizes is not None),
        _capacities(sizes, blocks),
    )


def _engine(
    recommended: RecommendationFile | None, where: ResolvedDeployment | None
) -> ResolvedDeployment | EngineTable | None:
    """Return the deployment whose vLLM is replayed, None for a cache alone.

    Raises UsageError for a recommendation that is for several replicas.
    """
    if recommended is None:
        return where if where and where.engine.name == VLLM else None
    table = recommended.deployment
    if table is None or parse_engine(table.engine).name != VLLM:
        return None
    if table.replicas > 1:
        raise UsageError(
            "one engine is replayed",
            where="--recommendation",
            remedy=f"it is for {table.replicas} replicas: use kvscope tune",
        )
    return table


def _grouped(model: Model) -> bool:
    """Return whether vLLM caches the layers of a model in groups that kvscope simulates."""
    return model.kv_groups(1) is not None


def _stated_tokens(
    recommended: RecommendationFile | None, where: ResolvedDeployment | None
) -> tuple[int, ...]:
    """Return the capacity that a recommendation or a deployment states, in tokens."""
    if recommended:
        return (recommended.capacity_tokens,)
    return (where.pool.tokens,) if where else ()


def _check_simulated(options: SimulateOptions, where: ResolvedDeployment) -> None:
    """Raise UsageError for options that contradict a deployment."""
    names = ("capacity", "capacity_blocks", "points", "tiers")
    named = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
    if named:
        raise UsageError("the deployment has a pool", where=named[0], remedy="leave it out")
    if where.replicas > 1 and where.traffic == "fleet":
        raise UsageError(
            "one engine is replayed",
            where=f"--replicas {where.replicas}",
            remedy="add --traffic replica for one replica's trace, or use kvscope tune",
        )


def tune_request(options: TuneOptions) -> TuneRequest:
    """Return what the options of `tune` ask for."""
    if options.percentile is not None and options.max_violations is not None:
        raise UsageError(
            "both state the target",
            where="--percentile, --max-violations",
            remedy="leave out one of them",
        )
    capacities = _capacities(options.capacity, options.capacity_blocks)
    if len(capacities.blocks + capacities.sizes_bytes) > 1:
        raise UsageError(
            "one cache has one capacity",
            where="--capacity" if options.capacity else "--capacity-blocks",
            remedy="name one, or let --fleet choose among several",
        )
    if options.router is not None:
        raise UsageError("a fleet alone has a router", where="--router", remedy="add --fleet")
    where = resolved_deployment(options)
    _check_view(options, where)
    profile = where.latency if where else latency_profile(options.latency)
    setting = replace(
        run_setting(hit_definition(None, options.outputs, 0.0), profile, slo_s=options.slo),
        rate_scale=above_zero(options.rate_scale),
        isolate=options.isolate,
    )
    if where and where.engine.name == VLLM:
        setting = engine_setting(setting, where.max_num_seqs, where.max_num_batched_tokens)
    kv = (
        where.model
        if where
        else kv_model(
            options.model or MODELS.get(profile.name),
            options.kv_dtype,
            sizes_named=options.capacity is not None,
        )
    )
    if options.capacity_range is not None and kv is None:
        raise UsageError("bytes need a model", where="--capacity-range", remedy="name --model")
    shares = (options.warmup, options.validation, options.judge)
    stated: Mapping[str, object] = {
        "--latency": options.latency,
        "--model": options.model,
        "--capacity": options.capacity or options.capacity_blocks,
        "--percentile": options.percentile or options.max_violations,
        WINDOWS: next((share for share in shares if share is not None), None),
        "--policies": options.policies,
    }
    target = Target(
        options.slo,
        options.percentile or DEFAULT_PERCENTILE,
        view="queued" if where else options.view or "unloaded",
        tpot_slo_s=options.tpot_slo,
    )
    if options.max_violations is not None:
        percentile = round(1 - options.max_violations, 9)
        target = replace(target, percentile=percentile, measure="violations")
    engine = where.engine.name if where else VLLM
    hybrid = where is not None and where.kv_groups is not None
    return TuneRequest(
        target=target,
        setting=setting,
        profile=profile,
        variants=tuple(_contenders(options.policies, options.param, engine, hybrid=hybrid)),
        capacities=capacities,
        range_bytes=options.capacity_range,
        model=kv,
        hbm_bytes=options.hbm,
        warmup=options.warmup,
        validation=options.validation,
        judge=options.judge,
        limits=Limits(
            max_p50_regression=options.max_p50_regression, min_throughput=options.min_throughput
        ),
        deployment=where,
        given=frozenset(name for name, value in stated.items() if value is not None),
        on=options.on,
    )


def fleet_request(options: FleetOptions) -> FleetRequest:
    """Return what the options of `fleet` ask for."""
    named = _capacities(
        None if options.capacity is None else (options.capacity,),
        None if options.capacity_blocks is None else (options.capacity_blocks,),
    )
    request = _fleets(options, named)
    if request.capacities == Capacities():
        raise UsageError(
            "how much a replica caches is not stated",
            where="--capacity-blocks",
            remedy="name it, or --capacity with --model, or a deployment: --gpu and --model",
        )
    return request


def _capacities(sizes_bytes: tuple[int, ...] | None, blocks: tuple[int, ...] | None) -> Capacities:
    """Return the capacities that --capacity or --capacity-blocks names."""
    if sizes_bytes is not None and blocks is not None:
        raise UsageError(
            "both state the capacity", where="--capacity, --capacity-blocks", remedy="leave out one"
        )
    return Capacities(blocks or (), sizes_bytes or ())


def _fleets(options: FleetOptions, named: Capacities) -> FleetRequest:
    """Return what `fleet` asks for with these capacities of a replica, by default its pool."""
    from kvscope.fleet.options import parse_routers, router_variants, split_assignments
    from kvscope.fleet.outcome import Slo

    where = resolved_deployment(
        ReplicaOptions(
            **{each.name: getattr(options, each.name) for each in fields(ReplicaOptions)}
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
    engine = _engine_limits(options, where)
    if copying := [kind.name for kind in kinds if kind.copies and options.time_model == "engine"]:
        raise UsageError(
            f"{copying[0]} copies prefixes between replicas, which simulated vLLMs do not",
            where="--time-model engine",
            remedy="leave it out of --router, or take --time-model queue",
        )
    return FleetRequest(
        setting=run_setting(
            hit_definition(None, "carried", options.warmup), profile, slo_s=options.slo
        ),
        slo=Slo(options.slo, options.percentile or DEFAULT_PERCENTILE, options.tpot_slo),
        routers=tuple(
            router for kind in kinds for router in router_variants(kind, assigned.get(kind, []))
        ),
        variants=tuple(parse_variants(policies, of_policies)),
        replicas=options.replicas,
        capacities=named,
        model=kv,
        deployment=where,
        time_model=options.time_model,
        engine=engine,
        closed_loop=options.closed_loop,
        seeds=options.seeds,
        routers_named=options.router is not None,
        on=options.on,
    )


def fleet_tuning_request(options: TuneOptions) -> FleetTuningRequest:
    """Return what `tune --fleet` asks for: by default every router that is no reference.

    Raises UsageError for an option that a fleet's choice does not take, and for a reference.
    """
    taken = {each.name for each in fields(FleetOptions)}
    taken -= {"replicas", "warmup", "param", "tpot_slo", "capacity", "capacity_blocks", "router"}
    own = {"policies", "param", "capacity", "capacity_blocks", "router"}
    own |= {"max_p50_regression", "min_throughput"}
    for each in fields(TuneOptions):
        if each.name not in taken | own and getattr(options, each.name) != each.default:
            raise UsageError(
                "the choice of a fleet does not take it",
                where=f"--{each.name.replace('_', '-')}",
                remedy="leave it out, or leave out --fleet",
            )
    from kvscope.fleet.options import parse_routers, split_assignments

    stated = {each.name: getattr(options, each.name) for each in fields(TuneOptions)}
    kinds = parse_routers(options.router or ALL)
    if options.router not in {None, ALL}:
        for kind in kinds:
            if kind.reference:
                raise UsageError(
                    f"{kind.name} is a reference, which no program offers",
                    where="--router",
                    remedy="leave it out: `kvscope fleet` shows it",
                )
    kinds = [kind for kind in kinds if not kind.reference]
    param = list(options.param or ())
    _, of_policies = split_assignments(kinds, param)
    request = _fleets(
        FleetOptions(
            **{name: stated[name] for name in taken & stated.keys()},
            router=",".join(kind.name for kind in kinds),
            param=[each for each in param if each not in of_policies],
        ),
        _capacities(options.capacity, options.capacity_blocks),
    )
    where = request.deployment
    engine = where.engine.name if where else VLLM
    hybrid = where is not None and where.kv_groups is not None
    if hybrid and options.policies not in {None, BASELINE}:
        raise UsageError(
            "only lru is replayed on fleets of hybrid models",
            where="--policies",
            remedy="leave it out, or leave out --fleet to tune one engine",
        )
    variants = [] if hybrid else _contenders(options.policies, of_policies, engine)
    return FleetTuningRequest(
        replace(
            request,
            variants=tuple(variants),
            replicas=(1,),
            routers_named=options.router is not None,
        ),
        Limits(
            max_p50_regression=options.max_p50_regression, min_throughput=options.min_throughput
        ),
        options.latency is not None,
    )


def tier_tuning_request(options: TuneOptions, tiers: TierOptions) -> TierTuningRequest:
    """Return what `tune --tiers` asks for: one engine, its pool, and the tiers to compare below it.

    Raises UsageError for an option that it does not take, and for what cannot be simulated.
    """
    own = {"policies", "param", "capacity", "capacity_blocks", "capacity_range", "router", "hbm"}
    for name in sorted(own | {"outputs", "view"}):
        default = next(each.default for each in fields(TuneOptions) if each.name == name)
        if getattr(options, name) != default:
            raise UsageError(
                "the choice of a tier does not take it",
                where=f"--{name.replace('_', '-')}",
                remedy="leave it out, or leave out --tiers",
            )
    request = tune_request(options)
    where = request.deployment
    if where is None or where.model is None:
        raise UsageError(
            "needs an engine with a pool", where="--tiers", remedy="name it: --gpu and --model"
        )
    if where.engines > 1:
        raise UsageError(
            "one engine is replayed",
            where=f"--replicas {where.replicas}",
            remedy="add --traffic replica for one replica's trace",
        )
    if where.model.hybrid:
        raise UsageError(
            "offloading is modelled for models of full attention only",
            where="--tiers",
            remedy="leave it out for this model",
        )
    setting = engine_setting(request.setting, where.max_num_seqs, where.max_num_batched_tokens)
    return TierTuningRequest(
        replace(request, setting=setting), tiers.tier_sizes, tiers.offload, _prices(tiers)
    )


def _prices(tiers: TierOptions) -> dict[TierKind, TierPrice]:
    """Return the price of each kind of memory: as stated, or as the data file has it."""
    from kvscope.tuning.tier_prices import STATED, TierPrice, tier_prices

    known = tier_prices()

    def of(price: TierPrice, stated: float | None, writes: float | None = None) -> TierPrice:
        writes = price.writes_per_day if writes is None else writes
        if stated is None:
            return TierPrice(price.gib_hour, price.source, writes)
        return TierPrice(stated, STATED, writes)

    ssd = of(known.ssd, tiers.ssd_price, tiers.ssd_writes_per_day)
    return {"dram": of(known.dram, tiers.dram_price), "ssd": ssd}


def _engine_limits(
    options: FleetOptions, where: ResolvedDeployment | None
) -> EngineSettings | None:
    """Return the limits of a simulated vLLM, its blocks aside; None where none is simulated.

    Raises UsageError where SGLang would have to be.
    """
    from kvscope.vllm_sim import EngineSettings

    if options.time_model == "queue" and (where is None or where.engine.name != VLLM):
        return None
    if where is not None and where.engine.name != VLLM:
        raise UsageError(
            "SGLang's scheduler is not simulated",
            where="--time-model engine",
            remedy="take --time-model queue",
        )
    limits, usual = where or options, EngineSettings(1)
    return replace(
        usual,
        max_num_seqs=limits.max_num_seqs or usual.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens or usual.max_num_batched_tokens,
    )


def _check_view(options: TuneOptions, where: ResolvedDeployment | None) -> None:
    """Raise UsageError for options that contradict a deployment, or need one."""
    if where is None:
        if options.tpot_slo is not None:
            raise UsageError(
                "output tokens are timed on an engine alone",
                where="--tpot-slo",
                remedy="name the deployment: --gpu and --model",
            )
        return
    capacity = options.capacity or options.capacity_blocks or options.capacity_range
    for wrong, what, option, remedy in (
        (
            capacity is not None,
            "the deployment has a pool",
            "--capacity",
            "leave it out, or state the pool with --num-gpu-blocks",
        ),
        (
            options.view == "unloaded",
            "a deployment's TTFT is queued",
            "--view unloaded",
            "leave it out",
        ),
        (
            options.outputs != "carried",
            "an engine caches outputs",
            "--outputs",
            "leave it out",
        ),
        (
            options.tpot_slo is not None and where.engine.name != VLLM,
            "SGLang's output tokens are not simulated",
            "--tpot-slo",
            "leave it out",
        ),
    ):
        if wrong:
            raise UsageError(what, where=option, remedy=remedy)


def hit_definition(compat: str | None, outputs: Outputs, warmup: float) -> HitDefinition:
    """Return the definition of a hit: that of the tool `compat`, or by `outputs` and `warmup`."""
    if not 0 <= warmup < 1:
        raise UsageError(f"not below 100%: {warmup:.0%}", where="--warmup", remedy="try 20%")
    if compat is None:
        return standard(warmup=warmup, outputs=outputs)
    if outputs != "carried" or warmup:
        raise UsageError(
            "settles outputs and warm-up itself",
            where=f"--compat {compat}",
            remedy="leave out --outputs and --warmup",
        )
    return compatible(compat)


def kv_model(
    name: str | None, kv_dtype: KvDtype | None, *, sizes_named: bool = False
) -> Model | None:
    """Return the model called `name`, or None.

    Raises UsageError for a precision or sizes in bytes without a model.
    """
    if name is None:
        if kv_dtype:
            raise UsageError("needs a model", where="--kv-dtype", remedy="name one with --model")
        if sizes_named:
            raise UsageError(
                "bytes need a model", where="--capacity", remedy="name one with --model"
            )
        return None
    try:
        return resolve_model(name, kv_dtype)
    except UsageError as error:
        raise UsageError(error.what, where=error.where or "--model", remedy=error.remedy) from error


def latency_profile(latency: str | None) -> LatencyProfile:
    """Return the latency profile called `latency`, or the default one; TO_FIT for `trace`."""
    if latency == FROM_TRACE:
        return TO_FIT
    try:
        return load_profile(latency or DEFAULT_PROFILE)
    except UsageError as error:
        raise UsageError(error.what, where="--latency", remedy=error.remedy) from error


def above_zero(rate_scale: float) -> float:
    """Return the factor of the arrival rate. Raises UsageError unless it is above 0 and finite."""
    if not 0 < rate_scale < float("inf"):
        raise UsageError(
            f"not above 0: {rate_scale:g}", where="--rate-scale", remedy="write for example 2"
        )
    return rate_scale


def _recommendation(options: SimulateOptions) -> RecommendationFile | None:
    """Return the recommendation in the file that the options name, if they name one.

    Raises UsageError for options that say what the file settles.
    """
    path = options.recommendation
    if path is None:
        return None
    settled = ("policies", "param", "capacity", "capacity_blocks", "points", "tiers", "latency")
    named = [
        f"--{name.replace('_', '-')}"
        for name in (*settled, "slo")
        if getattr(options, name) is not None
    ]
    if named:
        raise UsageError(
            "the recommendation settles this",
            where=", ".join(named),
            remedy=f"leave it out, or edit {path}",
        )
    from kvscope.tuning.file import read_recommendation  # loads kernels

    return read_recommendation(Path(path))


def _with_lru(recommended: RecommendationFile) -> list[Variant]:
    """Return LRU, and what is recommended where that is another policy."""
    from kvscope.policies.lru import Lru

    policy = recommended.policy
    best = Variant(type(policy), policy.values, policy.evicts)
    return [best] if policy.name == BASELINE else [Variant(Lru), best]


def _contenders(
    policies: str | None, params: Sequence[str] | None, engine: str, *, hybrid: bool = False
) -> list[Variant]:
    """Return what may replace LRU. Raises UsageError for an oracle.

    And for a policy without an order for a `hybrid` model's blocks, or with one for those alone.
    """
    named = parse_policies(policies or contenders(engine, hybrid=hybrid))
    own = parse_policies(HYBRID)
    for policy in named:
        if policies != ALL and policy.name != BASELINE and (policy in own) != hybrid:
            what = "has no order for" if hybrid else "is for"
            raise UsageError(
                f"{policy.name} {what} the blocks of hybrid models",
                where="--policies",
                remedy=f"take {contenders(engine, hybrid=hybrid)}",
            )
    named = [policy for policy in named if policy.name == BASELINE or (policy in own) == hybrid]
    for policy in named:
        if policy.hindsight and policies != ALL:
            raise UsageError(
                f"{policy.name} is an oracle, which no engine can run",
                where="--policies",
                remedy="leave it out: oracles are always shown",
            )
    kinds = [policy for policy in named if not policy.hindsight and policy.name != BASELINE]
    variants = parse_variants(kinds, params or ())
    return [guarded(variant) for variant in variants] if engine == VLLM else variants

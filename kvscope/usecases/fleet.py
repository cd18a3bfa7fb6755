"""Find the fewest replicas that meet an SLO, and the router in front of them.

Replays the trace with every router, policy and number of replicas; says what each router loses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.app import options as opt
from kvscope.app import values
from kvscope.app.deployment import resolved_deployment
from kvscope.app.gates import PERCENTILES, VERDICT, Figures, Known, ttft_figures
from kvscope.app.requests import (
    BASELINE,
    DEFAULT_PERCENTILE,
    Capacities,
    FleetRequest,
    above_zero,
    check_engine_runs,
    check_sglang_runs,
    check_varied,
    hit_definition,
    kv_model,
    latency_profile,
    stated_capacities,
    stated_slo,
    varied,
)
from kvscope.core.errors import Stopped, UsageError
from kvscope.core.files import STANDARD_STREAM
from kvscope.deployment.speculative import not_beside
from kvscope.fleet.options import RANKS_ROUTER, ROUTED
from kvscope.replay.policy_options import VLLM, Variant, parse_policies, parse_variants
from kvscope.replay.settings import run_setting, setting_profile, with_groups
from kvscope.usecases.base import Opened, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.executor import Executor
    from kvscope.core.runs import RunSetting
    from kvscope.core.trace import Prompts, Trace
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.deployment.kv_groups import KvGroups
    from kvscope.deployment.models import Model
    from kvscope.fleet.autoscaled import AutoscaledFleet
    from kvscope.fleet.closed_loop import ThinkTimes
    from kvscope.fleet.disaggregated import DisaggregatedFleet
    from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep, PooledCache
    from kvscope.latency.profile import LatencyProfile
    from kvscope.policies.base import Policy
    from kvscope.replay.curve import HitCurve
    from kvscope.routers.base import Router
    from kvscope.tuning.least import FleetSize
    from kvscope.tuning.pool_sizes import PoolSize
    from kvscope.tuning.tiers import TierCandidate
    from kvscope.vllm_sim import EngineSettings

MEETS, MISSES, OVERLOADED = "meets-slo", "misses-slo", "overloaded"
MISSES_ON_ENGINES = "misses-on-engines"
VERDICTS = (MEETS, MISSES_ON_ENGINES, MISSES, OVERLOADED)
_COUNTS = tuple(range(1, 17))  # of replicas, by default
_FIGURES = ("replicas", *PERCENTILES, "tpot-p95", "attainment", "hit-rate")


class FleetOptions(opt.ReplicaOptions, frozen=True, kw_only=True):
    """Options of `fleet`: the deployment, what to compare, and the SLO.

    `tpot_slo` is a time per output token (s) to meet as well as `slo`. `warmup` is the share (0 to
    1) of the requests that only fill the caches. Random routers are replayed with `router_seeds`
    seeds. `on` is a Ray cluster for replays (None: threads), `perfetto` the answer's timeline file.
    """

    slo: opt.SloToMeet = None
    percentile: opt.Percentile = None
    tpot_slo: float | None = opt.Time("Time per output token to meet as well, for example 50ms.")
    replicas: tuple[int, ...] = opt.option(
        "Replicas of the engine that serve the traffic: the numbers to try.",
        "LOW..HIGH or N,...",
        values.counts,
        "1..16",
        value=_COUNTS,
    )
    router: str | None = opt.Names(
        "Routers to compare (see `kvscope routers`); all: every one. Of ranks (--dp) vllm-dp.",
        default=ROUTED,
    )
    policy: str = opt.Names("Eviction policies of the replicas to try.", value="lru")
    capacity: int | None = opt.Size(
        "Capacity of the cache of each replica, for example 40GiB; needs --model.",
        default="the deployment's pool",
    )
    capacity_blocks: int | None = opt.Blocks("Capacity in blocks, of each replica.")
    tier_size: values.TierSize | None = opt.option(
        "Size of the CPU memory below the pool, to which each replica offloads as its vLLM does;"
        " dram:64GiB+ssd:1TiB has an SSD below, dram:64GiB+shared:8TiB a pool that all replicas"
        " share (:bandwidth=40GB/s for all of them, :evict=lru). Routers do not see it.",
        "SIZE",
        values.tier_size,
    )
    param: list[str] | None = opt.option(
        "Set a parameter of a router or a policy, for example dynamo@1.6.temperature=0.5;"
        " several values are replayed each. Repeatable.",
        "NAME.PARAMETER=VALUE,...",
    )
    time_model: opt.TimeModel | None = opt.option(
        "How a replica takes time. queue: one prefill after the other, decodes apart. engine:"
        " a simulated vLLM or SGLang, whose pool also holds running requests.",
        default="engine with a deployment, else queue",
    )
    closed_loop: bool = opt.option(
        "Let a turn arrive its think time after the simulated end of the previous one.", value=False
    )
    rate_scale: opt.RateScale = 1.0
    router_seeds: int = opt.Count("Seeds to replay routers with that draw at random.", value=3)
    warmup: float = opt.Share(
        "Share of the requests, from the start, that fill the caches and are not counted: by"
        " default those before `tune`'s validation window.",
        default="50%",
        value=0.5,
    )
    on: opt.On = None
    autoscale: opt.Autoscale = None
    disaggregate: opt.Disaggregate = None
    perfetto: str | None = opt.Target(
        "Write a timeline of the answer for ui.perfetto.dev: a process a replica; queue, prefill"
        " and decode of each counted request; how many wait and run; an engine's steps and evicted"
        " blocks since the previous one. Compressed if PATH ends in .gz."
    )


def fleet_request(options: FleetOptions) -> FleetRequest:
    """Return the request in the options of `fleet`."""
    from kvscope.fleet.options import parse_routers, router_variants, split_assignments
    from kvscope.fleet.outcome import Slo
    from kvscope.policies.registry import check_required

    named = stated_capacities(options.capacity, options.capacity_blocks)
    slo_s = stated_slo(options.slo)
    where = resolved_deployment(
        opt.ReplicaOptions(
            **{name: getattr(options, name) for name in opt.ReplicaOptions.__struct_fields__}
        )
    )
    if where is not None:
        where.require_fleet()
        _check_ranks(where, options.replicas)
        where = where.as_cache  # of queues; simulated vLLMs have a hybrid model's groups
    sizes_named = bool(named.sizes_bytes)
    kv = kv_model(options.model, options.kv_dtype, where, sizes_named=sizes_named)
    if sizes_named and kv is None:
        raise UsageError("bytes need a model", where="--capacity", remedy="name one with --model")
    if where is not None and named == Capacities():
        named = Capacities(tokens=(where.pool.tokens,))
    if named == Capacities():
        raise UsageError(
            "how much a replica caches is not stated",
            where="--capacity-blocks",
            remedy="name it, or --capacity with --model, or a deployment: --gpu and --model",
        )
    profile = where.latency if where else latency_profile(options.latency)
    ranks = where is not None and where.dp > 1
    kinds = parse_routers(options.router or (RANKS_ROUTER if ranks else ROUTED))
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
    tiered = options.tier_size is not None
    if copying := [
        kind.name for kind in kinds if kind.copies and (time_model == "engine" or tiered)
    ]:
        raise UsageError(
            f"{copying[0]} copies prefixes between replicas, which simulated vLLMs do not",
            where="--tier-size" if tiered else "--time-model engine",
            remedy="leave it out of --router"
            + (", or leave --tier-size out" if tiered else ", or take --time-model queue"),
        )
    if tiered and (kv is None or engine is None or time_model == "queue"):
        modelled = kv is not None and (where is None or where.engine.name == VLLM)
        raise UsageError(
            "a tier is simulated below vLLM's scheduler" if modelled else "needs vLLM and a model",
            where="--tier-size",
            remedy="take --time-model engine" if modelled else "name --model, and no other engine",
        )
    time_model = "queue" if engine is None else time_model
    _check_variations(options, time_model, kv, where)
    variants = parse_variants(policies, of_policies)
    for variant in variants:
        check_required(variant.policy, variant.given, "--policy")
    if options.time_model == "engine":
        _check_engine_runs(variants, options, on_sglang=engine is None)
    return FleetRequest(
        setting=_setting(options, profile, slo_s),
        slo=Slo(slo_s, options.percentile or DEFAULT_PERCENTILE, options.tpot_slo),
        routers=tuple(
            router for kind in kinds for router in router_variants(kind, assigned.get(kind, []))
        ),
        variants=tuple(variants),
        replicas=(where.dp,) if where and ranks else options.replicas,
        capacities=named,
        model=kv,
        deployment=where,
        time_model=time_model,
        engine=engine,
        tier=options.tier_size,
        closed_loop=options.closed_loop,
        seeds=options.router_seeds,
        routers_named=options.router is not None,
        on=options.on,
        perfetto=options.perfetto,
        autoscale=options.autoscale,
        disaggregate=options.disaggregate,
    )


def _setting(options: FleetOptions, profile: LatencyProfile, slo_s: float) -> RunSetting:
    """Return the run setting. Raises UsageError for a rate scale with a closed loop."""
    if options.closed_loop and options.rate_scale != 1:
        raise UsageError(
            "in closed loop, arrivals follow think times",
            where="--rate-scale",
            remedy="leave --closed-loop out",
        )
    setting = run_setting(hit_definition(None, "carried", options.warmup), profile, slo_s=slo_s)
    return replace(setting, rate_scale=above_zero(options.rate_scale))


def _check_ranks(where: ResolvedDeployment, replicas: tuple[int, ...]) -> None:
    """Raise UsageError if --dp ranks are the replicas and --replicas states another number."""
    if where.dp > 1 and replicas not in {_COUNTS, (where.dp,)}:
        raise UsageError(
            f"the replicas are the {where.dp} ranks of one engine (--dp)",
            where="--replicas",
            remedy="leave it out, and take another --dp for another number",
        )


def _check_variations(
    options: FleetOptions,
    time_model: opt.TimeModel,
    model: Model | None,
    where: ResolvedDeployment | None,
) -> None:
    """Raise UsageError if autoscaling or disaggregation is not simulated with these options."""
    asked = varied(options.autoscale, options.disaggregate)
    needs = "" if time_model == "engine" else "take --time-model engine, and no other engine"
    check_varied(asked, where, model, needs)
    others = {"--closed-loop": options.closed_loop, "--tier-size": options.tier_size is not None}
    others["event_lag_s"] = any(".event_lag_s=" in each for each in options.param or ())
    for other in (other for other, there in others.items() if asked and there):
        what, remedy = f"not simulated beside {other}", f"leave {other} out"
        raise UsageError(what, where=asked[0], remedy=remedy)


def _check_engine_runs(
    variants: Sequence[Variant], options: FleetOptions, *, on_sglang: bool
) -> None:
    """Raise UsageError for policies or a closed loop that simulated engines do not support."""
    if not on_sglang:
        check_engine_runs(variants, "--policy")
        return
    check_sglang_runs(variants, "--policy")
    if options.closed_loop:
        remedy = "leave it out, or take --time-model queue"
        raise UsageError(
            "a simulated SGLang has an open loop", where="--closed-loop", remedy=remedy
        )


def _usual_time_model(
    where: ResolvedDeployment | None,
    routers: Sequence[type[Router]],
    policies: Sequence[type[Policy]],
) -> opt.TimeModel:
    """Return "engine" for a deployment on vLLM that simulates all of these, else "queue"."""
    from kvscope.policies.base import LanePolicy  # late: loads NumPy

    simulated = where is not None and where.engine.name == VLLM
    followed = all(issubclass(policy, LanePolicy) for policy in policies)
    if simulated and followed and not any(router.copies for router in routers):
        return "engine"
    return "queue"


def _engine_limits(
    options: FleetOptions, time_model: opt.TimeModel, where: ResolvedDeployment | None
) -> EngineSettings | None:
    """Return the limits of a simulated vLLM, without its blocks; None if none is simulated."""
    from kvscope.vllm_sim import EngineSettings

    if where.engine.name != VLLM if where else time_model == "queue":
        return None
    limits, usual = where or options, EngineSettings(1)
    if where is not None:
        if where.engine.drafts_in_pool and options.tier_size is not None:
            raise not_beside(where.engine.drafter, "a CPU tier", "--tier-size")
        usual = usual.in_version(where.engine)
    return replace(
        usual,
        max_num_seqs=limits.max_num_seqs or usual.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens or usual.max_num_batched_tokens,
    )


class FleetLine(Struct, frozen=True):
    """A router with a policy, by number of replicas; `fewest` is null if none meet the SLO."""

    DOCUMENT: ClassVar[str] = (
        "router=router.name policy=policy.name reference=router.reference fewest flags"
    )
    router: Router
    policy: Policy
    runs: tuple[FleetRun, ...]

    @property
    def fewest(self) -> int | None:
        """The fewest replicas that meet the SLO (see `tuning.least.fewest`); None if none do."""
        from kvscope.tuning.least import fewest

        meets = {run.fleet.replicas: run.meets for run in self.runs}
        return fewest(lambda counts: map(meets.__getitem__, counts), tuple(meets))

    @property
    def flags(self) -> tuple[str, ...]:
        """The launch flags of the router."""
        return self.router.flags()

    def at(self, replicas: int) -> FleetRun | None:
        """Return the run with this number of replicas, None if there is none."""
        return next((run for run in self.runs if run.fleet.replicas == replicas), None)


class Loop(Struct, frozen=True):
    """When requests arrive: `open`, at the trace's times, or `closed`, after think times.

    The document's counts are those of `think`, null in open loop. They count follow-up requests by
    the origin of the think time: `stated` by the trace, `recorded` (gap less the trace's duration)
    or `estimated` (gap less service on an idle replica); `floored` counts those raised to 0.
    """

    DOCUMENT: ClassVar[str] = (
        "kind recorded=think.recorded estimated=think.estimated floored=think.floored"
        " stated=think.stated"
    )
    think: ThinkTimes | None

    @property
    def kind(self) -> Literal["open", "closed"]:
        """The kind of loop."""
        return "closed" if self.think else "open"


class CapacityCurve(Struct, frozen=True):
    """LRU's exact hit rate by a replica's blocks.

    The router sees only the order and the sessions of requests. Points from a sixteenth to sixteen
    times the present capacity, at the chosen number of replicas.
    """

    router: str
    capacity_blocks: tuple[int, ...]
    hit_rate: tuple[float, ...]


class FleetStudy(Struct, frozen=True, kw_only=True, dict=True):
    """The result of `kvscope fleet`; `lines` are ranked, routers that no program offers last.

    `verdict` is meets-slo, misses-on-engines, misses-slo or overloaded. `fewest` is null if no
    number of replicas meets the SLO; `chosen` is then the largest. `fewest_interval` is its 95 %
    interval (a null end: more than were compared; null: no `fewest`, or the ranks of one engine),
    found by resampling requests (`size`, not in documents). `pooled` is the reference of one cache
    for the chosen replicas. `on_engines`: an answer of the time model `queue` that meets the SLO,
    replayed on the deployment's simulated vLLMs; `groups` has a hybrid model's layers. `tier`, if
    requested, is below each replica's pool; `pooled` and the curves have none. A shared pool is
    replayed in several `pool_sizes`, ascending. `autoscaled` and `disaggregated`, if requested,
    have the answer's router and policy with autoscaling, or with separate prefill and decode
    replicas. Policies learn from the whole fleet's traffic. `lru_curves` are over the capacity of a
    replica (now `capacity_blocks`), by label of router, for routers that see only the order and
    the sessions of requests, in open loop (`think` None); `pooled_curve` is that of one cache.
    """

    DOCUMENT: ClassVar[str] = (
        "trace model=request.model deployment=request.deployment latency"
        " time_model=request.time_model loop slo_ms=request.slo.ttft_s"
        " percentile=request.slo.percentile tpot_slo_ms=request.slo.tpot_s"
        " warmup=request.setting.definition.warmup rate_scale=request.setting.rate_scale"
        " capacity_blocks capacity_tokens capacity_bytes"
        " tier pool_sizes autoscaled disaggregated"
        " verdict words fewest fewest_interval chosen price_hour pooled on_engines lines=ranked"
        " fleets curves"
    )
    trace: Trace
    request: FleetRequest
    capacity_blocks: int
    think: ThinkTimes | None
    lines: tuple[FleetLine, ...]
    pooled: PooledCache | None = None
    on_engines: FleetRun | None = None
    lru_curves: Mapping[str, HitCurve] = field(default_factory=dict)
    pooled_curve: HitCurve | None = None
    size: FleetSize | None = None
    groups: KvGroups | None = None
    tier: TierCandidate | None = None
    pool_sizes: tuple[PoolSize, ...] = ()
    autoscaled: AutoscaledFleet | None = None
    disaggregated: DisaggregatedFleet | None = None

    @cached_property
    def ranked(self) -> tuple[FleetLine, ...]:
        """The lines, fewest replicas first, then by TTFT; routers that no program offers last."""

        def rank(line: FleetLine) -> tuple[bool, float, float, float]:
            run = line.at(line.fewest or self.request.replicas[-1])
            outcome = None if run is None else run.outcome
            ttft_s = math.inf if outcome is None else outcome.target_ttft_s
            within = 0.0 if outcome is None else outcome.latencies.attainment
            return line.router.reference, line.fewest or math.inf, ttft_s, -within

        return tuple(sorted(self.lines, key=rank))

    @property
    def best(self) -> FleetLine:
        """The line with the fewest replicas, among routers that programs offer if there are any."""
        return self.ranked[0]

    @property
    def fewest(self) -> int | None:
        """The fewest replicas that meet the SLO on the best line; None if none do."""
        return self.best.fewest

    @property
    def chosen(self) -> int:
        """The number of replicas that tables show: the fewest, or the most that were tried."""
        return self.fewest or self.request.replicas[-1]

    @property
    def answer(self) -> FleetRun:
        """The best line's run with the chosen number of replicas."""
        run = self.best.at(self.chosen)
        assert run is not None  # noqa: S101  (a study without it is not made)
        return run

    @property
    def verdict(self) -> str:
        """The verdict, one of VERDICTS."""
        if self.fewest is not None:
            holds = self.on_engines is None or self.on_engines.meets
            return MEETS if holds else MISSES_ON_ENGINES
        return OVERLOADED if self.answer.outcome.latencies.overloaded else MISSES

    @property
    def of_ranks(self) -> bool:
        """Whether the replicas are the ranks of one engine, so that their number is fixed."""
        return self.request.deployment is not None and self.request.deployment.dp > 1

    @property
    def price_hour(self) -> float | None:
        """Price of the chosen replicas for an hour, None where it is not known."""
        where = self.request.deployment
        return None if where is None else where.price_of(where.tp * self.chosen)

    @property
    def latency(self) -> LatencyProfile:
        """The latency of a replica."""
        return setting_profile(self.request.setting)

    @property
    def loop(self) -> Loop:
        """When requests arrive."""
        return Loop(self.think)

    @property
    def capacity_tokens(self) -> int:
        """The tokens that a replica caches."""
        return self.capacity_blocks * self.trace.block_size

    @property
    def capacity_bytes(self) -> int | None:
        """The bytes that a replica caches, None without a model."""
        return self.request.model.bytes_for(self.capacity_tokens) if self.request.model else None

    @property
    def time_model(self) -> str:
        """The simulation of replicas: `queue`, `engine`, or SGLang's `tree`."""
        request = self.request
        on_trees = request.time_model == "queue" and request.setting.on_tree
        return "tree" if on_trees and self.think is None else request.time_model

    @property
    def words(self) -> tuple[str, ...]:
        """The answer in words."""
        from kvscope.report.fleet import in_words

        return tuple(in_words(self))

    @property
    def fewest_interval(self) -> tuple[int | None, int | None] | None:
        """The 95 % interval (low, high) of `fewest`, over resampled requests; None without `size`.

        An end is None above the compared numbers: tried ones up to `most_compared(fewest)`.
        """
        return None if self.size is None else (self.size.low, self.size.high)

    @property
    def fleets(self) -> tuple[FleetRun, ...]:
        """All runs, the best line's first; `sent_tokens` is empty but for `chosen` replicas."""
        runs = (run for line in self.ranked for run in line.runs)
        return tuple(run if run.fleet.replicas == self.chosen else run.without_sent for run in runs)

    @property
    def curves(self) -> tuple[CapacityCurve, ...]:
        """LRU's curves at points around the present capacity."""
        import numpy as np

        steps = 2.0 ** np.arange(-4, 5)
        blocks = np.unique(np.maximum(np.round(self.capacity_blocks * steps), 1).astype(np.int64))
        return tuple(
            CapacityCurve(name, tuple(blocks.tolist()), tuple(curve.rate(blocks).tolist()))
            for name, curve in self.lru_curves.items()
        )


def run(opened: Opened, request: FleetRequest, monitor: Monitor) -> FleetStudy:
    """Return the results of every router, policy and number of replicas."""
    from kvscope.app.traces import replayable

    trace = opened.trace
    return fleet(trace, replayable(opened.stores, trace), request, monitor)


def fleet(trace: Trace, prompts: Prompts, request: FleetRequest, monitor: Monitor) -> FleetStudy:
    """Return the results of every router, policy and number of replicas.

    Raises Stopped once the monitor's `stop` is set; UsageError for more replicas than requests, for
    a router that needs sessions which the trace lacks, and for a capacity that holds no block;
    InputError for a trace without arrival times.
    """
    import numpy as np

    from kvscope.app.latency import timed
    from kvscope.app.monitor import replays_on
    from kvscope.app.traces import require_arrivals, routers_for
    from kvscope.characterize.distributions import Windows
    from kvscope.fleet.closed_loop import think_times
    from kvscope.fleet.sweep import Fleet, FleetSweep
    from kvscope.replay.derived_traces import at_rate
    from kvscope.replay.parameter_estimates import bind, estimate_parameters, used
    from kvscope.replay.policy_options import format_value
    from kvscope.replay.workload import Workload
    from kvscope.tuning.tiers import TierCandidate
    from kvscope.vllm_sim.offload_spec import own_offload

    require_arrivals(trace)
    if request.replicas[-1] > trace.requests:
        raise UsageError(
            f"{request.replicas[-1]} replicas for {trace.requests:,} requests",
            where="--replicas",
            remedy="take fewer replicas, or a longer trace",
        )
    routers = routers_for(trace, prompts, request.routers, monitor, named=request.routers_named)
    request, _ = timed(request, trace, prompts, monitor)
    if request.deployment is not None and request.deployment.engine.name != VLLM:
        setting, _ = with_groups(
            request.setting, request.model, trace.block_size, request.deployment
        )
        request = replace(request, setting=setting)
    (capacity,) = request.capacities.in_blocks(request.model, trace.block_size)
    prompts = at_rate(prompts, request.setting.rate_scale)
    workload = Workload(prompts, request.setting, Windows(1.0, 1))
    estimates = estimate_parameters(workload.traffic, workload.profile, request.slo.ttft_s)
    for name, estimate in used(request.variants, estimates).items():
        monitor.note(f"{name} is {format_value(name, estimate.value)}, {estimate.origin}")
    if np.any(prompts.clock >= 1):
        monitor.note("sessions have no common clock, so queues depend on where they were placed")
    think = None
    if request.closed_loop:
        think = think_times(prompts, workload.traffic, workload.profile)
    engine = request.engine_in_groups(trace.block_size)
    engine = engine and engine.on_pool(capacity, trace.block_size)
    version, tier = request.deployment.engine if request.deployment else None, None
    if engine is not None and request.tier is not None:
        tier = TierCandidate(own_offload(version), *request.tier)
        engine = _above(tier, engine, request, trace.block_size)
    sweep = FleetSweep(
        workload,
        capacity,
        request.slo,
        think_s=None if think is None else think.think_s,
        after=None if think is None else think.after,
        seeds=request.seeds,
        engine=engine if request.time_model == "engine" else None,
    )
    policies = [bind(variant, estimates) for variant in request.variants]
    pairs = [(router, policy) for router in routers for policy in policies]
    fleets = [Fleet(*pair, replicas) for pair in pairs for replicas in request.replicas]
    with replays_on(request.on, monitor) as executor:
        runs = _runs(sweep, fleets, monitor, executor)
    count = len(request.replicas)
    study = FleetStudy(
        trace=trace,
        request=request,
        capacity_blocks=capacity,
        think=think,
        lines=tuple(
            FleetLine(*pair, tuple(runs[at * count : (at + 1) * count]))
            for at, pair in enumerate(pairs)
        ),
        groups=engine.groups if engine else None,
        tier=tier,
    )
    study = _with_references(study, sweep, engine, monitor)
    if request.perfetto is not None:
        _write_perfetto(request.perfetto, study, sweep, monitor)
    return study


def _write_perfetto(path: str, study: FleetStudy, sweep: FleetSweep, monitor: Monitor) -> None:
    from kvscope.replay.curve import first_counted
    from kvscope.report.perfetto import write_perfetto

    answer, fleet = study.answer, study.answer.fleet
    first = first_counted(sweep.prompts, study.request.setting.definition)
    with monitor.steps("writing the timeline"):
        write_perfetto(path, sweep.prompts, sweep.replay(fleet, answer.seed), first)
    if path != STANDARD_STREAM:
        what = f"{study.chosen} replicas with {fleet.policy.name} behind {fleet.router.name}"
        monitor.note(f"timeline of {what} written to {path}")


def _above(
    tier: TierCandidate, engine: EngineSettings, request: FleetRequest, block_size: int
) -> EngineSettings:
    """Return `engine` with the tier below its pool; UsageError if the tier holds no chunk."""
    from kvscope.replay.sweep import blocks_each

    block_bytes, gpus = request.block_bytes(engine, block_size)
    tier.require_chunk(block_bytes * blocks_each(engine.groups, block_size), "--tier-size")
    return tier.below(block_bytes, gpus).under(engine, block_size)


def _with_references(
    study: FleetStudy, sweep: FleetSweep, engine: EngineSettings | None, monitor: Monitor
) -> FleetStudy:
    """Return the study with replays around its answer: references, interval, pool sizes, curves."""
    from kvscope.fleet.autoscaled import AutoscaledFleet
    from kvscope.fleet.disaggregated import DisaggregatedFleet, Link
    from kvscope.fleet.options import router_label
    from kvscope.policies.base import LanePolicy
    from kvscope.policies.belady import Belady
    from kvscope.policies.lru import Lru
    from kvscope.tuning.least import most_compared, size_of
    from kvscope.tuning.pool_sizes import pool_sizes

    best, workload = study.best, sweep.workload
    simulated = isinstance(best.policy, LanePolicy) and not best.router.copies
    queues_meet = study.fewest is not None and sweep.engine is None
    if engine is not None and queues_meet and simulated:
        with monitor.steps("replaying the answer on simulated vLLMs"):
            study = replace(study, on_engines=sweep.run(study.answer.fleet, engine))
    with monitor.steps("replaying one cache for all"):
        workload.prepare([Lru(), Belady(), best.policy])
        study = replace(study, pooled=sweep.pooled(best.policy, study.chosen))
    if study.fewest is not None and not study.of_ranks:
        with monitor.steps("resampling requests"):
            most = most_compared(study.fewest)
            compared = [run for run in best.runs if run.fleet.replicas <= most]
            study = replace(study, size=size_of(sweep, compared))
    if sweep.engine is not None and study.tier is not None and study.tier.pool is not None:
        with monitor.steps("replaying the answer above other pools"):
            sizes = pool_sizes(sweep, sweep.engine, study.answer, study.tier, monitor.note)
            study = replace(study, pool_sizes=sizes)
    if (scaling := study.request.autoscale) is not None:
        with monitor.steps("replaying autoscaled replicas"):
            study = replace(study, autoscaled=AutoscaledFleet.of(sweep, study.answer, scaling))
    if (bytes_per_s := study.request.disaggregate) is not None:
        with monitor.steps("replaying prefill and decode replicas"):
            block_bytes, _ = study.request.block_bytes(engine, study.trace.block_size)
            link, most = Link(bytes_per_s, block_bytes), max(study.request.replicas[-1], 2)
            more = link, most, partial(monitor.check, "the search was finished")
            study = replace(study, disaggregated=DisaggregatedFleet.of(sweep, study.answer, *more))
    if study.think is not None or not any(isinstance(line.policy, Lru) for line in study.lines):
        return study
    curves = {
        router_label(router): sweep.lru_curve(router, study.chosen)
        for router in dict.fromkeys(line.router for line in study.lines)
        if router.sees == "order"
    }
    return replace(study, lru_curves=curves, pooled_curve=workload.curve)


def _runs(
    sweep: FleetSweep, fleets: Sequence[Fleet], monitor: Monitor, executor: Executor | None
) -> list[FleetRun]:
    """Return the runs of all fleets, in their order; raise Stopped if a stop prevented some."""
    with monitor.steps("compiling and preparing"):
        for _ in sweep.prepare(fleets):
            monitor.check("any fleet was replayed")
    runs = []
    with monitor.steps("replaying fleets", sum(map(sweep.replays, fleets))) as advance:
        for run in sweep.sweep(fleets, monitor.stop, executor):
            runs.append(run)
            advance(len(run.outcomes))
    if len(runs) < len(fleets):
        raise Stopped(f"stopped after {len(runs):,} of {len(fleets):,} fleets")
    return runs


def known_figures(request: FleetRequest) -> Known:
    """Return the names of a fleet's verdicts and figures (also `ROUTER.NAME`) for `--fail-on`."""
    routers = dict.fromkeys(router.name for router in request.routers)
    owned = (f"{router}.{figure}" for router in routers for figure in _FIGURES)
    return Known((*_FIGURES, *owned), VERDICTS)


def fleet_figures(study: FleetStudy) -> Figures:
    """Return the verdict, the answer's figures, and those of each router's best line."""
    figures: dict[str, float | str | None] = {
        VERDICT: study.verdict,
        **_line_figures(study.best, study.chosen),
    }
    for line in reversed(study.ranked):  # the best of a router's lines comes last
        of_line = _line_figures(line, study.chosen)
        figures |= {f"{line.router.name}.{name}": value for name, value in of_line.items()}
    return figures


def _line_figures(line: FleetLine, replicas: int) -> dict[str, float | None]:
    """Return a line's fewest replicas, and its figures at `replicas` replicas."""
    run = line.at(replicas)
    if run is None:
        return dict.fromkeys(_FIGURES)
    outcome, latencies = run.outcome, run.outcome.latencies
    ttft, tpot = latencies.ttft_ms, latencies.tpot_ms
    return {
        **(dict.fromkeys(PERCENTILES, math.inf) if ttft is None else ttft_figures(ttft)),
        "tpot-p95": None if tpot is None else tpot.p95 / 1e3,
        "attainment": latencies.attainment,
        "hit-rate": outcome.taken,
        "replicas": None if line.fewest is None else float(line.fewest),
    }


USE_CASE: UseCase[FleetOptions, FleetRequest, FleetStudy] = UseCase(
    name="fleet",
    title="kvscope fleet",
    options=FleetOptions,
    check=fleet_request,
    run=run,
    table="fleets",
    reporting="fleet",
    sections=(
        "answer",
        "routers",
        "losses",
        "replicas",
        "capacity",
        "pool",
        "autoscaling",
        "disaggregation",
        "assumed",
    ),
    known=known_figures,
    figures=fleet_figures,
    remembers=True,
    stops=True,
    keeps=True,
)

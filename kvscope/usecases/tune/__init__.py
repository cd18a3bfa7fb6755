"""Recommend policy, parameters and capacity for an SLO, with the gain and its uncertainty.

Searched, chosen and accepted on three windows of the trace. Writes recommendation.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.app import options as opt
from kvscope.app import values
from kvscope.app.deployment import names_no_machine, resolved_deployment
from kvscope.app.gates import RUN_FIGURES, VERDICT, Figures, Known, ttft_figures
from kvscope.app.requests import (
    DEFAULT_PERCENTILE,
    Capacities,
    above_zero,
    check_engine_runs,
    check_sglang_runs,
    check_varied,
    hit_definition,
    kv_model,
    latency_profile,
    policies_to_try,
    stated_capacities,
    stated_slo,
    varied,
)
from kvscope.core.errors import UsageError, placed
from kvscope.deployment.deployment import ResolvedDeployment, option, resolve
from kvscope.deployment.gpus import GPU_KEYS, resolve_gpu
from kvscope.deployment.speculative import not_beside
from kvscope.latency.profile import MODELS, LatencyProfile
from kvscope.replay.policy_options import ALL, SGLANG, VLLM, Variant, contenders
from kvscope.replay.settings import engine_setting, run_setting
from kvscope.tuning.target import HELD_OUT, VALIDATION, WARMUP, Limits, Target, check_shares
from kvscope.usecases.base import Opened, ResultFile, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.runs import RunSetting
    from kvscope.deployment.models import Model
    from kvscope.fleet.options import Scaling
    from kvscope.report.report import Report
    from kvscope.routers.base import Router
    from kvscope.tuning.tiers import TierKind, TierPrice
    from kvscope.usecases.tune.recommendation import Recommendation

WINDOWS = "--warmup, --validation, --judge"
COMMON_GPUS = ("l40s", "a100-80", "h100", "h200")
COMMON_MODEL = "llama3-8b"
"""The GPUs and the model on which LRU is shown while no machine is named."""
_OF_TIERS = ("tier_size", "offload", "dram_price", "ssd_price", "pool_price", "ssd_writes_per_day")

_MemoryPrice = partial(opt.option, metavar="PRICE", parse=values.memory_price)


class TuneOptions(opt.DeploymentOptions, frozen=True, kw_only=True):
    """Options of `tune`: the deployment, the SLO, what to compare, and limits.

    Shares (0 to 1) of the requests: `max_violations`, those beyond the SLO; `warmup`, `validation`
    and `judge`, those in the window of this name (`judge`: held-out). Shares of LRU's figures:
    `max_p50_regression`, the largest growth of the median TTFT, and `min_throughput`, the least
    prefill throughput. `ssd_writes_per_day` counts writes of an SSD's whole capacity. `also` are
    other machines to compare, `on` is the Ray cluster that replays (None: threads).
    """

    slo: opt.SloToMeet = None
    percentile: opt.Percentile = None
    max_violations: float | None = opt.option(
        "Instead of --percentile: largest share of requests beyond the SLO, for example 5%.",
        "SHARE",
        values.inner_share,
    )
    also: tuple[values.OtherMachine, ...] | None = opt.option(
        "Other machines to compare the deployment with: a GPU, or several for each replica, the"
        " precision of the weights, and the price of a GPU for an hour, for example"
        " l40s,2xh100:fp8@2.5.",
        "[Nx]GPU[:DTYPE][@PRICE],...",
        values.listed(values.other_machine),
    )
    view: Literal["unloaded", "queued"] | None = opt.option(
        "TTFT on an idle engine, or behind earlier requests. A deployment's is queued.",
        default="unloaded without a deployment",
    )
    capacity: tuple[int, ...] | None = opt.Sizes(
        "Capacity of the cache, without a deployment, for example 20GiB.",
        metavar="SIZE",
        default="where LRU gets half of the possible hits",
    )
    capacity_blocks: opt.CapacitiesBlocks = None
    router: str | None = opt.Names(
        "With --fleet: routers to compare (see `kvscope routers`).", default="all but references"
    )
    capacity_range: tuple[int, int] | None = opt.option(
        "Where to search for the least capacity, for example 5GiB..80GiB.",
        "LOW..HIGH",
        values.size_range,
        "all",
    )
    hbm: opt.Hbm = None
    policy: str | None = opt.Names(
        "Policies to replay, and that may replace LRU.", default=contenders()
    )
    param: opt.Params = None
    rate_scale: opt.RateScale = 1.0
    outputs: opt.Outputs = "carried"
    isolate: opt.Isolate = None
    warmup: float | None = opt.Share(
        "Share of the requests, from the start, that only fill the cache.", default="20%"
    )
    validation: float | None = opt.Share(
        "Share of the requests, before the held-out ones, that the choice is made on.",
        default="25%",
    )
    judge: float | None = opt.Share(
        "Share of the requests, at the end, that are held out: they accept the choice or"
        " reject it.",
        default="25%",
    )
    max_p50_regression: float = opt.Share(
        "Largest growth of the median TTFT against LRU that a policy may cause.",
        default="25%",
        value=0.25,
    )
    min_throughput: float = opt.Share(
        "Least prefill throughput that a policy may have, as a share of LRU's.",
        default="95%",
        value=0.95,
    )
    tpot_slo: float | None = opt.Time(
        "Time per output token to meet as well, for example 50ms; needs a deployment."
    )
    on: opt.On = None
    fleet: bool = opt.option(
        "Compare routers too, each with the fewest replicas that meet the SLO.", value=False
    )
    autoscale: opt.Autoscale = None
    disaggregate: opt.Disaggregate = None
    compare_tiers: bool = opt.option(
        "Compare memory below the GPU's pool in all sizes, and say whether to add some; see"
        " docs/tune.md.",
        value=False,
    )
    tier_size: tuple[values.TierSize, ...] | None = opt.option(
        "With --compare-tiers: sizes of the CPU memory below the pool, for example 32GiB,64GiB;"
        " dram:64GiB+ssd:1TiB has an SSD below, dram:64GiB+shared:8TiB a pool that all replicas"
        " share (options as in `kvscope fleet --tier-size`).",
        "SIZE,...",
        values.listed(values.tier_size),
        "up to 16 times the pool",
    )
    offload: tuple[str, ...] | None = opt.option(
        "With --compare-tiers: ways to offload to compare, as in `kvscope simulate --offload`.",
        "ENGINE,...",
        values.listed(values.called),
        "by engine",
    )
    dram_price: float | None = _MemoryPrice(
        "With --compare-tiers: price of a GiB of CPU memory for an hour, 0 for what is there.",
        default="0.004237",
    )
    ssd_price: float | None = _MemoryPrice(
        "With --compare-tiers: price of a GiB of SSD for an hour, 0 for what is there.",
        default="0.00011",
    )
    pool_price: float | None = _MemoryPrice(
        "With --compare-tiers: price of a GiB of a shared pool for an hour.", default="the SSD's"
    )
    ssd_writes_per_day: float | None = opt.option(
        "With --compare-tiers: writes of its whole capacity a day that the SSD is rated for.",
        "WRITES",
        values.drive_writes,
        "1.3",
    )


class TierRequest(Struct, frozen=True):
    """Memory to compare below the pool; `sizes` are None for the defaults.

    `offload` has the methods to compare (`vllm@0.33`), `prices` a price per kind of memory.
    """

    sizes: tuple[values.TierSize, ...] | None
    offload: tuple[str, ...]
    prices: dict[TierKind, TierPrice]


class TuneRequest(Struct, frozen=True):
    """The tuning request; without a deployment it is a study of a cache alone.

    `target` is the SLO with its percentile; `limits` bound how much slower than LRU a policy may
    be. `shares` are those of the warm-up, validation and held-out window; `range_bytes` bounds the
    search for the least capacity. `given` names the options that the user stated: the others are
    listed as assumptions. `also` (machines), `tiers` and `routers` are compared too; without
    `routers_named`, routers that need sessions are left out if the trace has none. `disaggregate`,
    if set, also compares prefill and decode on separate replicas; it is the bandwidth of their
    links (bytes per second). `on` is the Ray cluster that replays (None: threads). `machines` has a
    request for each common GPU if no machine is known.
    """

    target: Target
    setting: RunSetting
    profile: LatencyProfile
    variants: tuple[Variant, ...]
    capacities: Capacities = Capacities()
    range_bytes: tuple[int, int] | None = None
    model: Model | None = None
    hbm_bytes: int | None = None
    shares: tuple[float, float, float] = (WARMUP, VALIDATION, HELD_OUT)
    limits: Limits = Limits()
    deployment: ResolvedDeployment | None = None
    given: frozenset[str] = field(default_factory=frozenset)
    on: str | None = None
    also: tuple[ResolvedDeployment, ...] = ()
    tiers: TierRequest | None = None
    routers: tuple[Router, ...] = ()
    routers_named: bool = False
    autoscale: Scaling | None = None
    disaggregate: float | None = None
    machines: tuple[TuneRequest, ...] = ()


def tune_request(options: TuneOptions) -> TuneRequest:
    """Return the request in the options of `tune`."""
    if options.percentile is not None and options.max_violations is not None:
        raise UsageError(
            "both state the target",
            where="--percentile, --max-violations",
            remedy="leave out one of them",
        )
    slo_s = stated_slo(options.slo)
    capacities = stated_capacities(options.capacity, options.capacity_blocks)
    if len(capacities.blocks + capacities.sizes_bytes) > 1:
        raise UsageError(
            "one cache has one capacity",
            where="--capacity" if options.capacity else "--capacity-blocks",
            remedy="name one",
        )
    where = resolved_deployment(options)
    _check_view(options, where)
    tiers = _tier_request(options, where)
    profile = where.latency if where else latency_profile(options.latency)
    setting = replace(
        run_setting(hit_definition(None, options.outputs, 0.0), profile, slo_s=slo_s),
        rate_scale=above_zero(options.rate_scale),
        isolate=options.isolate,
    )
    if where and where.engine.name == VLLM:
        setting = engine_setting(setting, where.max_num_seqs, where.max_num_batched_tokens)
    named, sizes_named = options.model or MODELS.get(profile.name), options.capacity is not None
    kv = kv_model(named, options.kv_dtype, where, sizes_named=sizes_named)
    if options.capacity_range is not None and kv is None:
        raise UsageError("bytes need a model", where="--capacity-range", remedy="name --model")
    named_shares = (options.warmup, options.validation, options.judge)
    stated: Mapping[str, object] = {
        "--latency": options.latency,
        "--model": options.model,
        "--capacity": options.capacity or options.capacity_blocks,
        "--percentile": options.percentile or options.max_violations,
        WINDOWS: next((share for share in named_shares if share is not None), None),
        "--policy": options.policy,
    }
    target = Target(
        slo_s,
        options.percentile or DEFAULT_PERCENTILE,
        view="queued" if where else options.view or "unloaded",
        tpot_slo_s=options.tpot_slo,
    )
    if options.max_violations is not None:
        percentile = round(1 - options.max_violations, 9)
        target = replace(target, percentile=percentile, measure="violations")
    engine = where.engine.name if where else VLLM
    hybrid = where is not None and where.kv_groups is not None
    routers, params = _routers(options, where)
    variants = policies_to_try(options.policy, params, engine, hybrid=hybrid)
    if options.policy is not None and setting.capacity_model == "engine":
        check_engine_runs(variants, "--policy")
    if engine == SGLANG:
        check_sglang_runs(variants, "--policy")
    shares = (
        WARMUP if options.warmup is None else options.warmup,
        VALIDATION if options.validation is None else options.validation,
        HELD_OUT if options.judge is None else options.judge,
    )
    check_shares(*shares)
    return TuneRequest(
        target=target,
        setting=setting,
        profile=profile,
        variants=tuple(variants),
        capacities=capacities,
        range_bytes=options.capacity_range,
        model=kv,
        hbm_bytes=options.hbm,
        shares=shares,
        limits=Limits(
            max_p50_regression=options.max_p50_regression, min_throughput=options.min_throughput
        ),
        deployment=where,
        given=frozenset(name for name, value in stated.items() if value is not None),
        on=options.on,
        also=_others(options, where),
        tiers=tiers,
        routers=routers,
        routers_named=options.router is not None,
        autoscale=options.autoscale,
        disaggregate=options.disaggregate,
    )


def _others(
    options: TuneOptions, where: ResolvedDeployment | None
) -> tuple[ResolvedDeployment, ...]:
    """Return the deployment on each machine of --also, with derived pool and latency."""
    if options.also is None:
        return ()
    if where is None:
        remedy = "name it: --gpu and --model"
        raise UsageError("machines are compared with a deployment", where="--also", remedy=remedy)
    if where.engine.hicache is not None:
        raise UsageError(
            "machines are compared without HiCache",
            where="--also",
            remedy="leave out hicache_ratio, or tune the other machine: --gpu, --tp",
        )
    with placed("--also"):
        return tuple(
            elsewhere(
                where,
                max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=options.max_num_batched_tokens,
                **dict.fromkeys(GPU_KEYS),
                gpu=each.gpu,
                tp=each.tp,
                weight_dtype=each.weight_dtype or where.stated.weight_dtype,
                gpu_hour=each.gpu_hour or _price_known(where, each.gpu),
            )
            for each in options.also
        )


def elsewhere(where: ResolvedDeployment, **stated: Any) -> ResolvedDeployment:
    """Return the deployment on a machine as `stated`, with derived pool and latency.

    Raises UsageError if the model does not fit there.
    """
    derived: dict[str, Any] = {"num_gpu_blocks": None, "engine_log": None, "latency": None}
    return resolve(replace(where.stated, **derived, **stated))


def _price_known(where: ResolvedDeployment, gpu: str) -> float | None:
    """Return the deployment's GPU price if `gpu` is the same GPU, else None."""
    same = where.gpu is not None and resolve_gpu(gpu).name == where.gpu.name
    return where.stated.gpu_hour if same else None


def machine_requests(options: TuneOptions) -> list[TuneRequest]:
    """Return a request for each common GPU that holds the model; none if a machine is known.

    The default model is COMMON_MODEL. Raises UsageError if none of the GPUs holds the model.
    """
    if not names_no_machine(options):
        return []
    requests, model = [], options.model or COMMON_MODEL
    for gpu in COMMON_GPUS:
        where = replace(options, gpu=gpu, model=model, policy=None, param=None)
        try:
            requests.append(tune_request(where))
        except UsageError as error:
            if error.where != f"--gpu {resolve_gpu(gpu).name}":  # not that the model is too large
                raise
    if not requests:
        what = f"{model} fits on none of {', '.join(COMMON_GPUS)}"
        raise UsageError(what, where="--model", remedy="name --gpu and --tp, or --weight-dtype")
    return requests


def _routers(
    options: TuneOptions, where: ResolvedDeployment | None
) -> tuple[tuple[Router, ...], list[str]]:
    """Return the routers to compare (none without --fleet), and the policies' part of --param.

    By default all routers except references. Raises UsageError for --fleet without a deployment,
    --router without --fleet, and a named router that is a reference or not simulated.
    """
    params = list(options.param or ())
    if not options.fleet:
        if options.router is not None:
            raise UsageError("one cache has no router", where="--router", remedy="add --fleet")
        return (), params
    if where is None:
        raise UsageError(
            "replicas need a deployment",
            where="--fleet",
            remedy="name it: --gpu and --model; kvscope fleet also takes --capacity-blocks",
        )
    where.require_fleet()
    from kvscope.fleet.options import parse_routers, router_variants, split_assignments

    kinds = parse_routers(options.router or ALL)
    named = options.router not in {None, ALL}
    for kind in kinds if named else ():
        what = "is a reference, which no program offers" if kind.reference else ""
        if kind.copies and where.engine.name == VLLM:
            what = "copies prefixes between replicas, which simulated vLLMs do not"
        if what:
            raise UsageError(
                f"{kind.name} {what}",
                where="--router",
                remedy="leave it out: `kvscope fleet` shows it",
            )
    simulated = where.engine.name == VLLM
    kinds = [each for each in kinds if not each.reference and not (each.copies and simulated)]
    assigned, params = split_assignments(kinds, params)
    routers = (each for kind in kinds for each in router_variants(kind, assigned.get(kind, [])))
    return tuple(routers), params


def _tier_request(options: TuneOptions, where: ResolvedDeployment | None) -> TierRequest | None:
    """Return the memory to compare, None for none. Raises UsageError if it is not simulated."""
    if not options.compare_tiers:
        for name in _OF_TIERS:
            if getattr(options, name) is not None:
                remedy = "add --compare-tiers"
                raise UsageError("a tier alone has it", where=option(name), remedy=remedy)
        return None
    if where is None or where.model is None:
        raise UsageError(
            "needs an engine with a pool",
            where="--compare-tiers",
            remedy="name it: --gpu and --model",
        )
    if where.engine.drafts_in_pool:
        raise not_beside(where.engine.drafter, "a CPU tier", "--compare-tiers")
    if where.engine.name != VLLM:
        raise UsageError(
            f"tiers below {where.engine} are not simulated",
            where="--compare-tiers",
            remedy="leave it out, or take vLLM (--engine vllm@0.33)",
        )
    if where.model.hybrid and where.kv_groups is None:
        raise UsageError(
            where.not_switchable or f"the layers of {where.model.name} are not simulated",
            where="--compare-tiers",
            remedy="leave it out for this model",
        )
    from kvscope.tuning.tiers import OnGroups  # late: loads NumPy
    from kvscope.vllm_sim.offload_spec import OffloadSpec, own_offload

    if where.engines == 1 and any(size.pool for size in options.tier_size or ()):
        raise UsageError(
            "a shared pool needs 2 replicas or more",
            where="--tier-size",
            remedy="say how many there are (--replicas 2), or take ssd",
        )
    offload = options.offload or (own_offload(where.engine),)
    files, groups = any(size.files_bytes for size in options.tier_size or ()), where.kv_groups
    for text in offload:
        OnGroups(groups).require(OffloadSpec.parse(text, files=files))
    return TierRequest(options.tier_size, offload, _prices(options))


def _prices(options: TuneOptions) -> dict[TierKind, TierPrice]:
    """Return the price of each kind of memory: the stated one, or that of the data file."""
    from kvscope.tuning.tiers import STATED, tier_prices

    def stated(price: TierPrice, own: float | None) -> TierPrice:
        return price if own is None else replace(price, gib_hour=own, source=STATED)

    ssd = stated(tier_prices().ssd, options.ssd_price)
    if options.ssd_writes_per_day is not None:
        ssd = replace(ssd, writes_per_day=options.ssd_writes_per_day)
    dram = stated(tier_prices().dram, options.dram_price)
    return {"dram": dram, "ssd": ssd, "shared": stated(ssd, options.pool_price)}


def _check_view(options: TuneOptions, where: ResolvedDeployment | None) -> None:
    """Raise UsageError for options that contradict a deployment, or need one."""
    needs = "name the deployment: --gpu and --model"
    if where is not None:
        needs = "" if where.engine.name == VLLM else "leave it out, or take --engine vllm@0.33"
    asked = varied(options.autoscale, options.disaggregate)
    check_varied(asked, where, where.model if where else None, needs)
    if where is None:
        if options.tpot_slo is not None:
            raise UsageError(
                "output tokens are timed on an engine alone",
                where="--tpot-slo",
                remedy="name the deployment: --gpu and --model",
            )
        return
    if options.capacity or options.capacity_blocks or options.capacity_range:
        raise UsageError(
            "the deployment has a pool",
            where="--capacity",
            remedy="leave it out, or state the pool with --num-gpu-blocks",
        )
    of_ranks = "not compared for the ranks of one engine (--dp), but by kvscope fleet"
    for wrong, what, flag in (
        *(
            (where.dp > 1 and bool(given), of_ranks, name)
            for name, given in (
                ("--also", options.also),
                ("--fleet", options.fleet),
                ("--compare-tiers", options.compare_tiers),
            )
        ),
        (options.view == "unloaded", "a deployment's TTFT is queued", "--view unloaded"),
        (options.outputs != "carried", "an engine caches outputs", "--outputs"),
    ):
        if wrong:
            raise UsageError(what, where=flag, remedy="leave it out")


def check(options: TuneOptions) -> TuneRequest:
    """Return the request in the options, with common GPUs if no machine is known."""
    return replace(tune_request(options), machines=tuple(machine_requests(options)))


def run(opened: Opened, request: TuneRequest, monitor: Monitor) -> Recommendation:
    """Return the recommendation with its evidence."""
    from kvscope.app.traces import replayable
    from kvscope.usecases.tune.recommend import tune

    trace = opened.trace
    return tune(trace, replayable(opened.stores, trace), request, monitor)


def on_machines(opened: Opened, request: TuneRequest, monitor: Monitor) -> Report | None:
    """Return a report of LRU on common GPUs, with the next command; None if a machine is known.

    None also for a trace without arrival times, which allows only a cache study.
    """
    if not request.machines:
        return None
    from kvscope.app.traces import replayable
    from kvscope.usecases.tune import machines

    trace = opened.trace
    if not trace.span_s > 0:
        monitor.note("no GPU is simulated: queues need arrival times, which the trace lacks")
        return None
    prompts = replayable(opened.stores, trace)
    study = machines.study_machines(opened.source, trace, prompts, request.machines, monitor)
    return machines.report(study)


def known_figures(request: TuneRequest) -> Known:
    """Return the names of verdicts and held-out figures; UsageError if no machine is known."""
    if request.machines:
        raise UsageError(
            "nothing is recommended while no machine is known",
            where="--fail-on",
            remedy="name --gpu and --model",
        )
    from kvscope.tuning.rule import Verdict  # loads kernels

    return Known((*RUN_FIGURES, "throughput"), verdicts=get_args(Verdict))


def tune_figures(tuned: Recommendation) -> Figures:
    """Return the verdict, and the recommendation's figures on the held-out requests."""
    trial = tuned.recommended
    return {
        VERDICT: tuned.verdict,
        **ttft_figures(trial.times_ms),
        "hit-rate": trial.outcome.token_hit_rate,
        "attainment": trial.attainment,
        "tel": trial.tel_s,
        "throughput": trial.served_per_s,
    }


def _written(tuned: Recommendation, path: str, *, force: bool) -> str:
    from kvscope.usecases.tune.recommend import write_recommended

    return write_recommended(Path(path), replace(tuned, path=path), force=force)


def _text(tuned: Recommendation) -> str | None:
    from kvscope.usecases.tune.recommend import recommendation_text

    return recommendation_text(tuned)


def _summary(tuned: Recommendation) -> str:
    from kvscope.report.recommendation import verdict_in_words

    return verdict_in_words(tuned)[0]


USE_CASE: UseCase[TuneOptions, TuneRequest, Recommendation] = UseCase(
    name="tune",
    title="kvscope tune",
    schema=3,
    options=TuneOptions,
    check=check,
    run=run,
    table="rows",
    reporting="recommendation",
    sections=(
        *("options", "recommendation", "policies", "capacity", "to-set", "assumed"),
        *("why-this-xi", "why-this-capacity", "tried", "ttft-by-category", "which-machine"),
    ),
    known=known_figures,
    figures=tune_figures,
    remembers=True,
    stops=True,
    keeps=True,
    instead=on_machines,
    file=ResultFile("recommendation.toml", "no machine is known", _written, _text, _summary),
)

"""Replay a trace under eviction policies at several capacities: hits, TTFT, gap to oracles.

The store keeps finished runs (see `kvscope runs`) and does not repeat them. After Ctrl-C the
runs in progress are finished and kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from kvscope.app import options as opt
from kvscope.app.deployment import resolved_deployment
from kvscope.app.gates import BY_SLO, PERCENTILES, QUEUED, RUN_FIGURES, Figures, Known, ttft_figures
from kvscope.app.requests import (
    BASELINE,
    Capacities,
    SimulateRequest,
    above_zero,
    check_sglang_runs,
    hit_definition,
    kv_model,
    latency_profile,
)
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.runs import Run, RunSetting, hit_rate
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.models import Model
from kvscope.latency.profile import FROM_TRACE
from kvscope.replay.policy_options import (
    ALL,
    REPLAYED,
    VLLM,
    Variant,
    guarded,
    parse_variants,
)
from kvscope.replay.settings import policies_for, run_setting, tree_setting, with_capacity_model
from kvscope.usecases.base import Opened, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.app.simulate import Simulation
    from kvscope.core.percentiles import Percentiles
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.tuning.file import EngineTable, RecommendationFile

_QUEUED_FIGURES = tuple(f"{QUEUED}{name}" for name in (*PERCENTILES, *BY_SLO))


class SimulateOptions(opt.DeploymentOptions, frozen=True, kw_only=True):
    """Options of `simulate`: the policies to replay, where, and how hits count.

    `sample` is the share (0 to 1) of a dataset's blocks to replay. `tiers` are the pool and the
    memory below (`hbm=40GiB,dram=128GiB`), `offload` the version and options of vLLM's connector
    between them (`vllm@0.33`). `on` is the Ray cluster that replays (None: threads).
    """

    policy: str | None = opt.Names(
        "Policies to replay (see `kvscope policies`); all: every one that the capacity model"
        " can run.",
        default=REPLAYED,
    )
    capacity: opt.Capacities = None
    capacity_blocks: opt.CapacitiesBlocks = None
    points: int | None = opt.Count(
        "Number of capacities, from 1% to 100% of the one with which LRU loses nothing;"
        f" {opt.DEFAULT_POINTS} if no capacity is named."
    )
    capacity_model: Literal["cache", "engine"] = opt.option(
        "What the capacity holds. cache: idle blocks only. engine: vLLM's block pool, which"
        " also holds the blocks of running requests; a deployment's pool (vLLM's or SGLang's)"
        " always is one.",
        value="cache",
    )
    tiers: str | None = opt.option(
        "Replay vLLM with a CPU tier below its pool, instead of --capacity, for example"
        " hbm=40GiB,dram=128GiB; a third tier has the files below. A tier takes read, write"
        " (bandwidths) and latency.",
        "NAME=SIZE,...",
    )
    offload: str | None = opt.option(
        "Version and options of vLLM's OffloadingConnector, for --tiers: vllm@0.32 or"
        " vllm@0.33:eviction_policy=arc:blocks_per_chunk=4.",
        "ENGINE",
        default="vllm@0.33",
    )
    param: opt.Params = None
    slo: opt.Slo = None
    recommendation: str | None = opt.option(
        "Replay LRU and what `kvscope tune` recommends in this file: its policy, capacity,"
        " latency and SLO.",
        "PATH",
    )
    rate_scale: opt.RateScale = 1.0
    warmup: opt.Warmup = 0.0
    outputs: opt.Outputs = "carried"
    compat: opt.Compat = None
    isolate: opt.Isolate = None
    sample: float = opt.PositiveShare(
        "Of a dataset, replay only this share of the blocks, for example 10%, and estimate the"
        " whole, with the error.",
        default="100%",
        value=1.0,
    )
    on: opt.On = None


def simulate_request(options: SimulateOptions, *, replicas: bool = False) -> SimulateRequest:
    """Return the request in the options of `simulate`; `replicas` allows more than one."""
    recommended = _recommendation(options)
    where = None if recommended else resolved_deployment(options)
    if where is not None:
        _check_simulated(options, where, replicas=replicas)
    kv = kv_model(options.model, options.kv_dtype, where, sizes_named=bool(options.capacity))
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
    )
    setting = _on_engine(setting, options, _engine(recommended, where))
    table = recommended.deployment if recommended else None
    if table is not None:
        setting = table.simulated(setting)
    variants = _with_lru(recommended) if recommended else _named(options, where, kv, setting)
    if setting.on_tree:
        check_sglang_runs(variants, "--recommendation" if recommended else "--policy")
    if setting.tiers:
        _check_tiers(setting, kv)
    if not setting.exact:
        variants = _estimated(options, variants, definition)
    capacities = Capacities(
        options.capacity_blocks or (),
        options.capacity or (),
        (recommended.capacity_tokens,) if recommended else (where.pool.tokens,) if where else (),
    )
    return SimulateRequest(
        setting,
        tuple(variants),
        capacities,
        options.points,
        kv,
        where,
        options.on,
        recommended.tier if recommended else None,
        table.kv_bytes_per_token if table else None,
        recommended=recommended is not None,
    )


def _on_engine(
    setting: RunSetting, options: SimulateOptions, engine: ResolvedDeployment | EngineTable | None
) -> RunSetting:
    """Return the setting of a simulated vLLM, a simulated SGLang, or a cache alone."""
    named = (options.capacity, options.capacity_blocks, options.points)
    model, limits = options.capacity_model, engine or options
    seqs, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    version = "" if engine is None else str(engine.engine)
    on_vllm = bool(version) and parse_engine(version).name == VLLM
    on_sglang = bool(version) and not on_vllm
    setting = with_capacity_model(
        setting,
        "engine" if on_vllm else model,
        max_num_seqs=None if on_sglang and model == "cache" else seqs,
        max_num_batched_tokens=None if on_sglang and model == "cache" else tokens,
        tiers=options.tiers,
        offload=options.offload,
        capacities_named=any(capacity is not None for capacity in named),
    )
    if on_sglang and seqs and tokens:
        return tree_setting(replace(setting, capacity_model="cache"), version, seqs, tokens)
    return setting


def _named(
    options: SimulateOptions,
    where: ResolvedDeployment | None,
    model: Model | None,
    setting: RunSetting,
) -> list[Variant]:
    """Return the variants of `--policy`, by default the usual ones; guarded on a deployed vLLM."""
    groups = model.kv_groups(1) if model is not None else None
    hybrid = setting.capacity_model == "engine" and groups is not None
    policies = policies_for(setting, options.policy, hybrid=hybrid)
    variants = parse_variants(policies, options.param or ())
    if where is not None and where.engine.name == VLLM:
        variants = [guarded(variant) for variant in variants]
    if options.policy not in {None, ALL}:
        from kvscope.policies.registry import check_required  # late: loads NumPy

        for variant in variants:
            check_required(variant.policy, variant.given, "--policy")
    return variants


def _check_tiers(setting: RunSetting, model: Model | None) -> None:
    """Raise UsageError for tiers that cannot be replayed, whatever the trace's block size.

    Examples: text in another form and, without a model, capacities in bytes or a finite bandwidth.
    """
    from kvscope.replay.tier_spec import parse_tiers  # late: loads NumPy
    from kvscope.replay.tiers import read_s

    block_bytes = None if model is None else 0  # the trace says how many
    for tier in parse_tiers(setting.tiers, block_bytes=block_bytes)[1:]:
        read_s(tier, 1, block_bytes)


def _estimated(
    options: SimulateOptions, variants: list[Variant], definition: HitDefinition
) -> list[Variant]:
    """Return the variants whose hit rates can be estimated from a sample.

    Raises UsageError for a sample that is too small, for a definition or tenants that it cannot
    estimate, and for a named policy that cannot be estimated.
    """
    from kvscope.replay.sampling import LEAST_RATE, require_estimable  # late: loads NumPy

    require_estimable(definition)
    for where, wrong, what in (
        ("--isolate", options.isolate is not None, "a sample does not tell tenants apart"),
        (
            "--latency trace",
            options.latency == FROM_TRACE,
            "a sample does not show which requests waited",
        ),
    ):
        if wrong:
            raise UsageError(what, where=where, remedy=f"leave out {where} or --sample")
    if options.sample < LEAST_RATE:
        raise UsageError(
            f"no error can be stated below {LEAST_RATE:.0%}",
            where=f"--sample {options.sample:.3g}",
            remedy="replay more",
        )
    scaling = [variant for variant in variants if variant.policy.scales]
    others = {variant.policy.name for variant in variants if not variant.policy.scales}
    if others and options.policy not in {None, ALL}:
        raise UsageError(
            f"a sample does not show what {', '.join(sorted(others))} does in the whole trace",
            where="--policy, --sample",
            remedy="leave out one of them",
        )
    return scaling


def _engine(
    recommended: RecommendationFile | None, where: ResolvedDeployment | None
) -> ResolvedDeployment | EngineTable | None:
    """Return the deployment whose engine is replayed, None for a cache alone.

    Raises UsageError for a recommendation for several replicas.
    """
    table = recommended.deployment if recommended else None
    if table is not None and table.replicas > 1:
        raise UsageError(
            "one engine is replayed",
            where="--recommendation",
            remedy=f"it is for {table.replicas} replicas: use kvscope tune",
        )
    return table if recommended else where


def _check_simulated(
    options: SimulateOptions, where: ResolvedDeployment, *, replicas: bool
) -> None:
    """Raise UsageError for options that contradict a deployment."""
    names = ("capacity", "capacity_blocks", "points", "tiers")
    named = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
    if named:
        tiers = "name --model without --gpu, or take kvscope tune --compare-tiers"
        raise UsageError(
            "the deployment (--gpu) has a pool of its own",
            where=named[0],
            remedy=tiers if named[0] == "--tiers" else f"leave {named[0]} out",
        )
    if where.engines > 1 and not replicas:
        raise UsageError(
            "one engine is replayed",
            where=f"--dp {where.dp}" if where.dp > 1 else f"--replicas {where.replicas}",
            remedy="add --traffic replica for one replica's trace, or use kvscope tune",
        )


def _recommendation(options: SimulateOptions) -> RecommendationFile | None:
    """Return the recommendation in the file that the options name, None without one.

    Raises UsageError for options that the file determines.
    """
    path = options.recommendation
    if path is None:
        return None
    settled = ("policy", "param", "capacity", "capacity_blocks", "points", "tiers", "offload")
    named = [
        f"--{name.replace('_', '-')}"
        for name in (*settled, "latency", "slo")
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
    """Return LRU and the recommended policy; only the latter if it is LRU or has a tier."""
    from kvscope.policies.lru import Lru

    policy = recommended.policy
    best = Variant(type(policy), policy.values, policy.evicts)
    alone = policy.name == BASELINE or recommended.tier is not None
    return [best] if alone else [Variant(Lru), best]


def run(opened: Opened, request: SimulateRequest, monitor: Monitor) -> Simulation:
    """Return the requested runs: from the store, or replayed and stored."""
    from kvscope.app.simulate import simulate
    from kvscope.app.traces import sampleable

    trace = opened.trace
    if guards := [each.policy.name for each in request.variants if each.given.get("guard")]:
        monitor.note(f"with a guard, as tune sets them: {', '.join(guards)} (--param NAME.guard=0)")
    prompts = sampleable(opened.stores, trace, request.setting, monitor)
    return simulate(opened.stores, trace, prompts, request, monitor)


def known_figures(request: SimulateRequest) -> Known:
    """Return the names that conditions on replays at one capacity may use.

    A name alone is of the only or recommended policy. UsageError unless one capacity is replayed.
    """
    if (count := _capacities(request)) != 1:
        raise UsageError(
            f"needs one capacity, not {count}",
            where="--fail-on",
            remedy="name one with --capacity or --capacity-blocks",
        )
    settings = Counter(variant.policy.name for variant in request.variants)
    subject = (
        request.variants[-1].policy.name if request.recommended or len(settings) == 1 else None
    )
    known: list[str] = []
    missing: dict[str, tuple[str, str]] = {}
    for figure in (*RUN_FIGURES, *_QUEUED_FIGURES):
        owners = {f"{policy}.{figure}": policy for policy in settings}
        if subject is None:
            several = f"{len(settings)} policies are replayed"
            missing[figure] = several, f"name one, as in {next(iter(owners))}"
        else:
            owners = {figure: subject, **owners}
        for name, policy in owners.items():
            if settings[policy] > 1:
                several = f"{settings[policy]} settings of {policy} are replayed"
                missing[name] = several, "take one value of each --param"
            elif figure.removeprefix(QUEUED) in BY_SLO and request.setting.slo_s is None:
                missing[name] = "needs an SLO", "add --slo"
            else:
                known.append(name)
    return Known(tuple(known), missing=missing)


def _capacities(request: SimulateRequest) -> int:
    if request.setting.tiers:
        return 1
    named = request.capacities
    count = len(named.blocks) + len(named.sizes_bytes) + len(named.tokens)
    if request.points is None and count:
        return count
    return count + (request.points or opt.DEFAULT_POINTS)


def run_figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of policies with exactly one run, as `POLICY.NAME`.

    Figures of the only policy, or of the only one besides LRU, also have their plain names.
    """
    settings = Counter(run.policy for run in runs)
    figures: dict[str, float | None] = {}
    others = set(settings) - {BASELINE}
    subject = BASELINE if not others else next(iter(others)) if len(others) == 1 else None
    for run in runs:
        if settings[run.policy] > 1:
            continue
        of_run = _of_run(run)
        figures |= {f"{run.policy}.{name}": value for name, value in of_run.items()}
        if run.policy == subject:
            figures |= of_run
    return figures


def _of_run(run: Run) -> dict[str, float | None]:
    """Return the figures of one replay.

    A rejected request has no TTFT and misses the SLO: a percentile at such a request is None.
    """
    outcome = run.outcome
    answered = outcome.requests - (run.turned_away or 0)

    def times(ttft_ms: Percentiles) -> dict[str, float | None]:
        ranks = {name: -(-int(name[1:]) * outcome.requests // 100) for name in PERCENTILES}
        return {
            name: value if ranks[name] <= answered else None
            for name, value in ttft_figures(ttft_ms).items()
        }

    def by_slo(tel_ms: float | None, violations: int | None) -> dict[str, float | None]:
        if tel_ms is None or violations is None:
            return {}
        return {"attainment": (answered - violations) / outcome.requests, "tel": tel_ms / 1e3}

    queued: dict[str, float | None] = {}
    if outcome.queued_ttft_ms is not None:
        queued = times(outcome.queued_ttft_ms)
        queued |= by_slo(outcome.queued_tel_ms, outcome.queued_violations)
    elif not answered:
        queued = dict.fromkeys((*PERCENTILES, *BY_SLO))
    return {
        **times(outcome.ttft_ms),
        "hit-rate": hit_rate(run.setting, outcome),
        **by_slo(outcome.tel_ms, outcome.violations),
        **{f"{QUEUED}{name}": value for name, value in queued.items()},
    }


def _unfinished(simulation: Simulation) -> str:
    count = len(simulation.runs)
    total = count + simulation.unfinished
    return f"{count:,} of {total:,} runs are finished and kept" if count < total else ""


USE_CASE: UseCase[SimulateOptions, SimulateRequest, Simulation] = UseCase(
    name="simulate",
    title="kvscope simulate",
    schema=2,
    options=SimulateOptions,
    check=simulate_request,
    run=run,
    table="results",
    reporting="policies",
    sections=("summary", "policies", "tiers", "categories"),  # not each simulation has them all
    known=known_figures,
    figures=lambda simulation: run_figures(simulation.runs),
    remembers=True,
    stops=True,
    unfinished=_unfinished,
    of_run=lambda run: run_figures([run]),
)

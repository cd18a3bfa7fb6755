"""Tune: recommend policy, parameters and capacity for an SLO, and write recommendation.toml."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvscope.app.latency import TraceLatency, beyond_length, latency_for
from kvscope.app.monitor import Monitor, replays_on
from kvscope.app.traces import require_arrivals, routers_for
from kvscope.app.values import TierSize
from kvscope.characterize.distributions import round_windows
from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment, resolve
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.roofline import HIGH, LOW
from kvscope.fleet.disaggregated import Link
from kvscope.ingest.build import NO_COMMON_CLOCK
from kvscope.ingest.clocks import other_starts
from kvscope.latency.profile import MODELS
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import fit_for
from kvscope.policies.lru import Lru, retaining
from kvscope.replay.derived_traces import at_rate, isolate
from kvscope.replay.policy_options import SGLANG, VLLM, contenders, format_value
from kvscope.replay.settings import timed_by, with_groups
from kvscope.replay.traffic import traffic
from kvscope.tuning.file import AddedTier, EngineTable, TierTable, why_kept, write_recommendation
from kvscope.tuning.plan import Planner, ReplicaMachine
from kvscope.tuning.replicas import router_of
from kvscope.tuning.tiers import (
    HICACHE,
    OnGroups,
    Options,
    TierCandidate,
    TierOffer,
    sizes_to_compare,
    tier_prices,
)
from kvscope.tuning.tuner import End, Tuner, TuningOptions
from kvscope.usecases.tune import WINDOWS, TuneRequest, elsewhere
from kvscope.usecases.tune.recommendation import Assumption, Recommendation, RecordedLater
from kvscope.vllm_sim.offload_spec import OffloadSpec, own_offload

if TYPE_CHECKING:
    from kvscope.deployment.pool import KvPool


WHY_CONTENDERS = {
    VLLM: "their guards revert to LRU; vLLM runs them with kvscope's plugin",
    SGLANG: "what SGLang runs by flags",
}
BEYOND_RANGE = 0.01  # share of prompts beyond the measured lengths that is worth a warning
PREFILL_ENDS = (End("prefill half as long", 0.5), End("prefill twice as long", 2.0))

_POOLS, _ALL_POOLS = (0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TIER_ROWS = 6
_TIER_OPTIONS: Options = (
    ("offload_prompt_only", (False,)),
    ("store_threshold", (2,)),
    ("eviction_policy", ("arc",)),
)
"""The options of a CPU tier that are searched, first what is stored, then what leaves."""


def tune(
    trace: Trace, prompts: Prompts, request: TuneRequest, monitor: Monitor | None = None
) -> Recommendation:
    """Return the recommendation for `request`, with its evidence.

    Raises Stopped once the monitor's `stop` is set, InputError for a trace that is too short to be
    split or whose TTFTs do not determine a requested fit, UsageError for shares that cannot split
    it and for a capacity that holds no block.
    """
    monitor = monitor or Monitor()
    if request.deployment is not None:
        require_arrivals(trace)
    elif request.target.view == "queued":
        require_arrivals(trace, "take --view unloaded")
    latency = latency_for(trace, request.profile, request.deployment, lambda: prompts)
    where, profile = latency.deployment, latency.profile
    setting = timed_by(request.setting, profile)
    prompts = at_rate(prompts, setting.rate_scale)
    setting, model = with_groups(setting, request.model, trace.block_size, where)
    request = replace(request, model=model)
    capacities = request.capacities.in_blocks(request.model, trace.block_size)
    lowest, highest = 0, None
    if request.range_bytes is not None and request.model is not None:
        lowest, highest = (
            request.model.blocks_in(size, trace.block_size) for size in request.range_bytes
        )
    options = TuningOptions(
        target=request.target,
        variants=request.variants,
        capacity_blocks=capacities[0] if capacities else None,
        lowest_blocks=lowest,
        highest_blocks=highest,
        shares=request.shares,
        limits=request.limits,
    )
    options.split(prompts)  # a trace that is too short is refused before any replay
    pool = None
    if where is not None:
        pool = where.pool.in_blocks_of(trace.block_size)
        options = replace(
            options,
            capacity_blocks=pool.blocks,
            replicas=where.engines,
            router=router_of(where),
            scale_out=True,
        )
    options = replace(options, ends=tuple(ends_of(latency, prompts, request, pool)))
    offer = tier_offer(trace, prompts, request, where, setting.kv_groups) if where else None
    routers = routers_for(trace, prompts, request.routers, monitor, named=request.routers_named)
    link = None
    if request.disaggregate is not None and where is not None and where.model is not None:
        block_bytes = where.model.kv_bytes_per_token(where.tp) * where.tp * trace.block_size
        link = Link(request.disaggregate, block_bytes)
    with replays_on(request.on, monitor) as executor:
        tuner = Tuner(
            prompts,
            setting,
            options,
            round_windows(trace, rate_scale=setting.rate_scale),
            lineage=trace.lineage,
            progress=monitor.steps,
            stop=monitor.stop,
            executor=executor,
        )
        tuning = tuner.run()
        if where is not None:
            tuning = replace(tuning, capacity_origin=where.pool.origin)
        plan = Planner(
            tuner,
            tuning,
            where.price_of(where.tp) if where else None,
            tiers=offer,
            routers=routers,
            machines=list(
                _machines(where, request, prompts, rejecting=tuning.lru.later.rejected > 0)
            ),
            scaling=request.autoscale,
            link=link,
            on_option=lambda option: monitor.row(option.in_words),
        ).plan()
        without = _without_drafter(tuner, where, monitor) if where is not None else None
    tuned = Recommendation(
        trace,
        request.model,
        request.hbm_bytes,
        profile,
        tuning,
        plan,
        where,
        tiers=offer,
        recorded=RecordedLater.of(prompts, tuning.split, request.target),
        prompts=prompts,
        without_drafter=without,
    )
    return replace(
        tuned,
        assumptions=_assumptions(tuned, request.given),
        warnings=tuple(_warnings(tuned, prompts, latency)),
    )


def _machines(
    where: ResolvedDeployment | None, request: TuneRequest, prompts: Prompts, *, rejecting: bool
) -> Iterator[ReplicaMachine]:
    """Yield machines to compare: this one with all the KV that its log says fits, then --also.

    Without --also, those of `_holding` if today's pool is `rejecting` later requests.
    """
    block_size = prompts.block_size
    if where is not None and (fits := where.pool.fitting_bytes) is not None:
        filled = replace(where, pool=where.pool.filling_the_gpu)
        yield ReplicaMachine.of(filled, block_size, fits)
    for each in request.also or (_holding(where, prompts) if where and rejecting else ()):
        yield ReplicaMachine.of(each, block_size, None)


def _holding(where: ResolvedDeployment, prompts: Prompts) -> list[ResolvedDeployment]:
    """Return the deployment on the fewest GPUs a replica whose pool holds the longest request.

    They are 2, 4 or 8 and more than now; empty if none will do, and without a GPU, for a stated
    pool, ranks (`dp`) and HiCache.
    """
    stated = where.gpu is None or where.pool.origin == "stated"
    if stated or where.dp > 1 or where.engine.hicache is not None:
        return []
    longest = int((prompts.input_tokens + prompts.output_tokens).max())
    for tp in (tp for tp in (2, 4, 8) if tp > where.tp):
        with suppress(UsageError):  # the model's heads cannot be divided by it, or nothing is left
            wider = elsewhere(where, tp=tp)
            if wider.pool.low_tokens >= longest:
                return [wider]
    return []


def _without_drafter(tuner: Tuner, where: ResolvedDeployment, monitor: Monitor) -> float | None:
    """Return LRU's hit rate, by token, on the later requests without the deployment's drafter.

    The pool is that without it. None if there is no drafter, or one without KV in the pool.
    """
    if not where.engine.drafts_in_pool:
        return None
    later = tuner.windows.later.evaluator
    size, engine = later.workload.prompts.block_size, str(where.engine.without_drafter)
    other = resolve(replace(where.stated, engine=engine, speculative=None), size)
    workload = later.workload.without_drafter(other.kv_groups_for(size))
    if workload is None:
        return None
    with monitor.steps("replaying LRU without the drafter"):
        alone = later.over(replicas=where.engines, workload=workload)
        return alone.trial(Lru(), other.pool.blocks).outcome.token_hit_rate


def _warnings(tuned: Recommendation, prompts: Prompts, latency: TraceLatency) -> Iterator[str]:
    tuning, trace = tuned.tuning, tuned.trace
    if latency.note:
        yield latency.note
    for too_long in beyond_length(latency.deployment, prompts):
        yield f"{too_long}."
    rejected = tuning.lru.validation.rejected + tuning.lru.held_out.rejected
    if rejected:
        counted = tuning.split.validation_requests + tuning.split.held_out_requests
        yield (
            f"{rejected:,} of {counted:,} requests are longer than the pool of"
            f" {tuned.size(tuning.capacity_blocks)}: the engine rejects them, and each counts as a"
            " violation."
        )
    seeing = [
        each.router for each in tuned.plan.options if each.router and each.router.sees != "order"
    ]
    if seeing and tuned.engine == SGLANG:
        yield (
            f"{seeing[0].name} sees replicas that evict block by block, where SGLang evicts whole"
            " nodes: it may choose others."
        )
    of = MODELS.get(tuned.profile.name)
    if of and tuned.model and tuned.model.name != of:
        remedy = "name the GPU, or a latency profile measured on it"
        if tuned.deployment is not None:
            remedy = "leave out --latency, or measure it with kvscope calibrate"
        yield (f"TTFT is that of {of} ({tuned.profile.name}), not of {tuned.model.name}: {remedy}.")
    longest = tuned.profile.measured_tokens
    if longest:
        beyond = float((prompts.input_tokens > longest).mean())
        if beyond > BEYOND_RANGE:
            yield (
                f"{beyond:.0%} of the prompts are longer than the {longest:,} tokens that"
                f" {tuned.profile.name} was measured with: their TTFT is extrapolated."
            )
    for note in trace.notes:
        if note.startswith(NO_COMMON_CLOCK):
            yield f"The {note} (otherwise: --session-arrivals poisson:RATE)."


def engine_fit(tuned: Recommendation) -> FittedTable | None:
    """Return the recommended policy's table for an engine, fitted to the whole trace.

    None for a policy without a table. If possible, the engine refits it, as the replays did.
    """
    recommended, setting = tuned.recommended, tuned.tuning.setting
    prompts = tuned.prompts
    if not recommended.policy.reads_table or prompts is None:
        return None
    whole = isolate(prompts, setting.isolate) if setting.isolate else prompts
    fitted = fit_for(
        traffic(whole, setting.definition), recommended.policy, recommended.capacity_blocks
    )
    return None if fitted is None else fitted.refitted_in_engine()


def recommendation_text(tuned: Recommendation) -> str | None:
    """Return recommendation.toml; None where `write_recommended` refuses to write it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recommendation.toml"
        write_recommended(path, tuned)
        return path.read_text(encoding="utf-8") if path.exists() else None


def write_recommended(path: Path, tuned: Recommendation, *, force: bool = False) -> str:
    """Write recommendation.toml to `path`; return a sentence on the outcome.

    Without `force`, a policy that its deployment cannot or should not run (`why_no_flags`) is not
    written, as vLLM with the plugin would run it from the file; and a recommendation to switch is
    not replaced by another verdict.
    """
    why = tuned.why_no_flags
    if tuned.deployment is not None and tuned.tuning.choice and why and not force:
        return f"{path} was not written (--force writes it). {why}"
    if not force and (kept := why_kept(path, tuned.verdict)):
        return kept
    where, size = tuned.deployment, tuned.trace.block_size
    added = None
    if tuned.tier is not None and tuned.tiers is not None:
        table = TierTable.of(tuned.tiers, tuned.tier, size)
        added = AddedTier(table, tuned.recommended, tuned.grade, tuned.canary)
    write_recommendation(
        path,
        tuned.tuning,
        trace=tuned.trace.name,
        block_size=size,
        profile=tuned.profile,
        flags=tuned.flags,
        capacity_bytes=tuned.bytes_in(tuned.recommended.capacity_blocks),
        fitted=engine_fit(tuned),
        deployment=EngineTable.of(where, tuned.tuning.setting.kv_groups) if where else None,
        added=added,
    )
    return f"recommendation written to {path}"


def _assumptions(tuned: Recommendation, given: frozenset[str]) -> tuple[Assumption, ...]:
    """Return the values assumed for options that are not `given`, with reasons."""
    tuning, profile, split = tuned.tuning, tuned.profile, tuned.tuning.split
    windows = (split.warmup_requests, split.validation_requests, split.held_out_requests)
    line = f"{units.duration_in_words(profile.base_s)} + {profile.per_token_s * 1e6:.3g} µs a token"
    measure, hybrid = "measure yours with kvscope calibrate", bool(tuning.setting.kv_groups)
    why = "vLLM's own setting" if hybrid else WHY_CONTENDERS[tuned.engine]
    taken = [
        ("--percentile", units.format_percentile(tuning.target.percentile), "the usual SLO"),
        (
            WINDOWS,
            ", ".join(f"{number:,}" for number in windows) + " requests",
            "a warm cache, and enough requests in every window",
        ),
        ("--policy", contenders(tuned.engine, hybrid=hybrid), why),
    ]
    if tuned.deployment is None:
        model = tuned.model.name if tuned.model else "none"
        capacity = f"{tuning.capacity_blocks:,} blocks"
        taken += [
            ("--latency", profile.name, f"a preset, {line}: {measure}"),
            ("--model", model, "the latency preset's"),
            ("--capacity", capacity, f"{tuning.capacity_origin}, in the training window"),
        ]
    estimated = [
        Assumption(
            name, format_value(name, tuning.estimates[name].value), "mean of the training window"
        )
        for name in ("next_prompt_tokens", "turn_rate_per_s")
        if name in tuning.estimates
    ]
    return (*(Assumption(*row) for row in taken if row[0] not in given), *estimated)


def ends_of(
    latency: TraceLatency,
    prompts: Prompts,
    request: TuneRequest,
    pool: KvPool | None = None,
) -> Iterator[End]:
    """Yield the ends of uncertain inputs: latency, pool, start times without a common clock.

    With neither deployment nor stated latency, the ends are prefill times halved and doubled.
    `pool` is the deployment's in blocks of the trace, None if another capacity is stated. The
    smaller pool is paired with the slower prefill.
    """
    where, fit = latency.deployment, latency.fit
    slow = fast = 1.0
    if where is not None:
        slow, fast = where.latency_high, where.latency_low
        if fit is not None and request.target.tpot_slo_s is not None:  # a fit of TTFTs leaves TPOT
            slow, fast = max(slow, HIGH), min(fast, LOW)
    elif "--latency" not in request.given:
        yield from PREFILL_ENDS
    elif fit is not None:
        slow, fast = fit.low, fit.high
    if pool is not None and (pool.low_blocks, slow) != (pool.high_blocks, fast):
        yield End(f"the smallest pool and prefill {slow:g}x as long", slow, max(pool.low_blocks, 1))
        yield End(f"the largest pool and prefill {fast:g}x as long", fast, pool.high_blocks)
    elif slow != fast:
        yield from (End(f"prefill {factor:g}x as long", factor) for factor in (slow, fast))
    for starts in other_starts(prompts.arrival_s, prompts.clock):
        yield End(f"{starts.open_sessions:.3g} sessions open at a time", sessions=starts)


def tier_offer(
    trace: Trace,
    prompts: Prompts,
    request: TuneRequest,
    where: ResolvedDeployment,
    kv_groups: str,
) -> TierOffer | None:
    """Return the memory to compare below the deployment's pools; None if none is simulated.

    `kv_groups` are a hybrid model's layer groups, `sliding/16/128/12+full/16/0/12@0`, empty for
    other models. Raises UsageError for refused offload methods, and sizes that hold no chunk.
    """
    model, asked = request.model or where.model, request.tiers
    if model is None:
        return None
    has_tier = where.engine.hicache is not None
    if asked is None and (model.hybrid or where.engine.drafts_in_pool or has_tier or where.dp > 1):
        return None
    way = HICACHE if where.engine.name == SGLANG else own_offload(where.engine)
    groups = KvGroups.parse(kv_groups) if kv_groups else None
    block_bytes = model.kv_bytes_per_token(where.tp) * where.tp * trace.block_size
    pool_bytes = where.pool.in_blocks_of(trace.block_size).blocks * block_bytes
    most_bytes = len(prompts.block_parent) * block_bytes * (len(groups.groups) if groups else 1)
    sizes = sizes_to_compare(pool_bytes, most_bytes, _POOLS)
    offer = TierOffer(
        candidates=tuple(TierCandidate(way, size) for size in sizes),
        block_bytes=block_bytes,
        gpus=where.tp,
        prices={"dram": tier_prices().dram},
        replica_hour=where.price_of(where.tp),
    )
    if asked is None:
        return offer
    stated = asked.sizes or tuple(
        TierSize(size) for size in sizes_to_compare(pool_bytes, most_bytes, _ALL_POOLS)
    )
    files, allowed = any(each.files_bytes for each in stated), OnGroups(groups)
    ways = [OffloadSpec.parse(text, files=files) for text in asked.offload]
    for spec in ways:
        allowed.require(spec)
    page_bytes = allowed.page_bytes(block_bytes, trace.block_size)
    alone = (TierSize(each.size_bytes) for each in stated if each.files_bytes)
    every = dict.fromkeys([*stated, *alone])  # the CPU memory without files, too
    candidates = dict.fromkeys(TierCandidate(spec.text, *size) for spec in ways for size in every)
    for each in candidates:
        each.require_chunk(page_bytes, "--tier-size")
    return replace(
        offer,
        candidates=tuple(candidates),
        prices=asked.prices,
        options={text.strip(): _TIER_OPTIONS for text in asked.offload if ":" not in text},
        policies=tuple(
            retaining(interval) for interval in allowed.intervals(ways, request.variants)
        ),
        groups=groups,
        rows=_TIER_ROWS,
        chooses=True,
    )

"""Tune: recommend policy, parameters and capacity for an SLO, and write recommendation.toml."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.cluster import replays_on
from kvscope.app.ends import ends_of
from kvscope.app.fleet import routers_for
from kvscope.app.latency import TraceLatency, latency_for
from kvscope.app.monitor import Monitor
from kvscope.app.requests import WINDOWS, TuneRequest, own_offload
from kvscope.app.tiers_on_groups import OnGroups
from kvscope.app.traces import require_arrivals
from kvscope.app.values import TierSize
from kvscope.characterize.windows import round_windows
from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.core.percentiles import Percentiles, at_rank
from kvscope.core.runs import Outcome
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import Model
from kvscope.ingest.build import NO_COMMON_CLOCK
from kvscope.latency.profile import MODELS, LatencyProfile
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import fit_for
from kvscope.policies.base import Policy
from kvscope.policies.lru_retention import retaining
from kvscope.replay.derived_traces import isolate
from kvscope.replay.policy_options import (
    FORESEEING,
    SGLANG,
    VLLM,
    contenders,
    format_value,
)
from kvscope.replay.settings import timed_by, with_groups
from kvscope.replay.traffic import traffic
from kvscope.tuning.canary import Canary
from kvscope.tuning.comparison import WindowTrial
from kvscope.tuning.file import AddedTier, EngineTable, TierTable, why_kept, write_recommendation
from kvscope.tuning.flags import NEWEST, EngineLaunch, Flags, flags
from kvscope.tuning.plan import Planner, ReplicaMachine, RouterOffer, TuningPlan
from kvscope.tuning.rule import Grade, Judged
from kvscope.tuning.search import XI
from kvscope.tuning.split import FEWEST, Split
from kvscope.tuning.target import CERTAIN, Target
from kvscope.tuning.tier_prices import tier_prices
from kvscope.tuning.tiers import Options, TierCandidate, TierOffer, sizes_to_compare
from kvscope.tuning.trial import category_times_ms
from kvscope.tuning.tuner import TuningOptions, TuningResult, prepared
from kvscope.tuning.verdict import Verdict
from kvscope.vllm_sim.offload_spec import OffloadSpec

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment

WHY_CONTENDERS = {
    VLLM: "their guards revert to LRU; vLLM runs them with kvscope's plugin",
    SGLANG: "what SGLang runs by flags",
}
BEYOND_RANGE = 0.01  # share of prompts beyond the measured lengths that is worth a warning
_POOLS, _ALL_POOLS = (0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TIER_ROWS = 6
_TIER_OPTIONS: Options = (
    ("offload_prompt_only", (False,)),
    ("store_threshold", (2,)),
    ("eviction_policy", ("arc",)),
)
"""The options of a CPU tier that are searched, first what is stored, then what leaves."""


class Assumption(Struct, frozen=True):
    """A value that was assumed, and why."""

    name: str
    value: str
    why: str


class RecordedLater(Struct, frozen=True):
    """What the trace says of the later requests: TTFT at the target's percentile, and hits.

    `requests` have a TTFT. `hit_rate` is the share of the input tokens that were cached, of the
    requests that say so; None where none does.
    """

    requests: int
    target_s: float
    hit_rate: float | None

    @classmethod
    def of(cls, prompts: Prompts, split: Split, target: Target) -> RecordedLater | None:
        """Return what was recorded; None where fewer than FEWEST requests have a TTFT."""
        measured = prompts.measurements
        if measured is None:
            return None
        counted = slice(split.warmup_requests + split.training_requests, None)
        ttft_s, cached = measured.ttft_s[counted], measured.cached_tokens[counted]
        timed_s = ttft_s[np.isfinite(ttft_s)]
        if len(timed_s) < FEWEST:
            return None
        known = cached >= 0
        tokens = int(prompts.input_tokens[counted][known].sum())
        hit_rate = int(cached[known].sum()) / tokens if tokens else None
        return cls(len(timed_s), at_rank(timed_s, target.percentile), hit_rate)


class Recommendation(Struct, frozen=True):
    """A tuning with the trace and the deployment that it is for; `path` is where it is written.

    Without a deployment it is a cache study: one idle cache, and no flags for an engine.
    """

    trace: Trace
    model: Model | None
    hbm_bytes: int | None
    profile: LatencyProfile
    tuning: TuningResult
    plan: TuningPlan
    deployment: ResolvedDeployment | None = None
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    path: str = "recommendation.toml"
    tiers: TierOffer | None = None
    recorded: RecordedLater | None = None
    prompts: Prompts | None = None

    @property
    def verdict(self) -> Verdict:
        """What to do: as of the policy, but that a tier which is to be added is a switch."""
        return "switch" if self._tier else self.tuning.verdict

    @property
    def grade(self) -> Grade:
        """How certain that is; a tier is added for a likely gain, or for what it saves."""
        if self._tier is None:
            return self.tuning.grade
        return "do-now" if self._tier.later.likely >= CERTAIN else "canary"

    @property
    def recommended(self) -> WindowTrial:
        """What to run, on the held-out window."""
        return self._tier.held_out if self._tier else self.tuning.recommended

    @property
    def canary(self) -> Canary | None:
        """What confirms the gain; None without a change."""
        return self.plan.tier_canary if self._tier else self.tuning.canary

    @property
    def _tier(self) -> Judged | None:
        return self.plan.tier.judged if self.plan.tier else None

    @property
    def tier(self) -> TierCandidate | None:
        """The memory to add below the pool, None for none."""
        return self.plan.tier.tier if self.plan.tier else None

    @property
    def tier_arguments(self) -> str | None:
        """vLLM's arguments for the tier to add, beside all other flags."""
        return None if self.tier is None else self.tier.spec.arguments(self.tier.size_bytes)

    def size(self, blocks: int) -> str:
        """Return a capacity in every unit that is known."""
        return units.blocks_tokens_bytes(
            blocks,
            block_size=self.trace.block_size,
            bytes_per_token=self.model.bytes_per_token if self.model else None,
        )

    def bytes_in(self, blocks: int) -> int | None:
        """Return the bytes of so many blocks, None without a model."""
        return self.model.bytes_for(blocks * self.trace.block_size) if self.model else None

    @property
    def engine(self) -> str:
        """Name of the engine: vllm, unless the deployment has another."""
        return self.deployment.engine.name if self.deployment else VLLM

    @property
    def flags(self) -> Flags:
        """Flags for the deployment's engine, none where a switch is not safe to recommend."""
        where = self.deployment
        if where is None or self.why_no_flags():
            return Flags(None, None)
        written = self.tuning.setting.kv_groups
        groups = KvGroups.parse(written) if written else None
        chosen = flags(self.recommended.policy, _launch(where, groups))
        sglang = self.engine == SGLANG
        text = chosen.sglang if sglang else chosen.vllm
        if text is not None and self.tier_arguments is not None:
            text = f"{text} {self.tier_arguments}"
        return Flags(text if sglang else None, None if sglang else text)

    def why_no_flags(self) -> str:
        """Return why no flags are given; empty where they are."""
        if self.deployment is None:
            return "A cache study: name the deployment (--gpu, --model) for an engine's flags."
        if self.tier is not None:  # which did no harm at any end
            return ""
        if self.tuning.choice is not None:
            return self._why_no_switch(self.deployment)
        if self.tuning.verdict != "keep-lru":
            return "No flags: no engine setting fixes this."
        return self._why_starts()

    def _why_no_switch(self, where: ResolvedDeployment) -> str:
        """Return why a change of policy gets no flags; empty where it does."""
        if not where.switchable:
            return f"No flags: {where.not_switchable}."
        if starts := self._why_starts():
            return starts
        if self.tuning.disagreeing:
            return (
                "No flags: the comparison does not hold within the uncertainty of pool and latency."
                " Measure them: kvscope calibrate, and --engine-log for the pool."
            )
        return ""

    def _why_starts(self) -> str:
        """Return that the answer changes with when sessions begin; empty where it does not."""
        if not any(each.end.sessions for each in self.tuning.disagreeing):
            return ""
        return (
            "No flags: the answer changes with when the sessions begin."
            " State it: --session-arrivals poisson:RATE."
        )

    def price_hour(self, replicas: int) -> float | None:
        """Return the price of so many replicas for an hour, None where it is not known."""
        where = self.deployment
        return None if where is None else where.price_of(where.tp * replicas)

    @property
    def deciding_category(self) -> tuple[str, float] | None:
        """The category whose requests gain most by the change, and its share (0-1) of the gain.

        In tail excess latency on the later requests. None without a change or a gain, and where all
        requests have one category.
        """
        choice, view = self.tuning.choice, self.tuning.target.view
        if choice is None or len(choice.later.categories) < 2:
            return None

        def tel_ms(outcome: Outcome) -> float:
            return (outcome.queued_tel_ms if view == "queued" else outcome.tel_ms) or 0.0

        before = {each.category: each.outcome for each in self.tuning.lru.later.categories}
        gains = {
            each.category: tel_ms(before[each.category]) - tel_ms(each.outcome)
            for each in choice.later.categories
        }
        total, most = sum(gains.values()), max(gains, key=gains.__getitem__)
        return (most or "", gains[most] / total) if total > 0 else None

    @property
    def ttft(self) -> str:
        """What the target calls TTFT: as on an idle engine, or queued."""
        idle = self.tuning.target.view == "unloaded"
        return "TTFT" if idle or self.deployment else "queued TTFT"

    @property
    def target_name(self) -> str:
        """The latency that decides: p95 TTFT."""
        return f"{units.format_percentile(self.tuning.target.percentile)} {self.ttft}"

    def category_times_ms(self, outcome: Outcome) -> Percentiles:
        """Return the percentiles of TTFT in the target's view."""
        return category_times_ms(outcome, self.tuning.target.view)

    def called(self, policy: Policy) -> str:
        """Return a policy's name, with the parameters that are neither defaults nor estimates."""
        usual = {parameter.name: parameter.default for parameter in policy.parameters}
        estimates = self.tuning.estimates.items()
        usual |= {name: estimate.value for name, estimate in estimates if name != XI}
        chosen = [
            f"{name}={format_value(name, value)}"
            for name, value in policy.values.items()
            if value != usual[name]
        ]
        star = FORESEEING if policy.hindsight else ""
        return " ".join([policy.name + star, *chosen])


def tune(
    trace: Trace, prompts: Prompts, request: TuneRequest, monitor: Monitor | None = None
) -> Recommendation:
    """Return the recommendation for `request`, and all that it rests on.

    Raises Stopped once the monitor's `stop` is set, InputError for a trace that is too short to be
    split or whose TTFTs do not determine the latency that they were to, UsageError for shares that
    cannot split it and for a capacity that holds no block.
    """
    monitor = monitor or Monitor()
    if request.deployment is not None:
        require_arrivals(trace)
    elif request.target.view == "queued":
        require_arrivals(trace, "take --view unloaded")
    latency = latency_for(trace, request.profile, request.deployment, lambda: prompts)
    where, profile = latency.deployment, latency.profile
    setting = timed_by(request.setting, profile)
    setting, model = with_groups(setting, request.model, trace.block_size, where)
    request = replace(request, model=model)
    capacities = request.capacities.in_blocks(request.model, trace.block_size)
    lowest, highest = _blocks_in_range(request, trace)
    warmup, validation, held_out = request.shares
    tuning_options = TuningOptions(
        target=request.target,
        variants=request.variants,
        capacity_blocks=capacities[0] if capacities else None,
        lowest_blocks=lowest,
        highest_blocks=highest,
        warmup=warmup,
        validation=validation,
        held_out=held_out,
        limits=request.limits,
    )
    tuning_options.split(prompts)  # a trace that is too short is refused before any replay
    pool = None
    if where is not None:
        pool = where.pool.in_blocks_of(trace.block_size)
        tuning_options = replace(
            tuning_options,
            capacity_blocks=pool.blocks,
            replicas=where.engines,
            scale_out=True,
        )
    ends = ends_of(
        latency,
        prompts,
        latency_named="--latency" in request.given,
        pool=pool,
        tpot=request.target.tpot_slo_s is not None,
    )
    tuning_options = replace(tuning_options, ends=ends)
    offer = _offer(trace, prompts, request, where, setting.kv_groups) if where else None
    routers = routers_for(trace, prompts, request.routers, monitor, named=request.routers_named)
    with replays_on(request.on, monitor) as executor:
        tuner, split, capacity, origin = prepared(
            prompts,
            setting,
            tuning_options,
            round_windows(trace),
            lineage=trace.lineage,
            progress=monitor.steps,
            stop=monitor.stop,
            executor=executor,
        )
        origin = where.pool.origin if where else origin
        tuning = tuner.whole(capacity, origin, split, prompts, trace.lineage)
        plan = Planner(
            tuner,
            tuning,
            where.price_of(where.tp) if where else None,
            at_end=lambda end: tuner.at_end(end, prompts, trace.lineage),
            tiers=offer,
            routers=RouterOffer(tuple(routers)) if routers else None,
            machines=[_machine(each, trace.block_size) for each in request.also],
            on_option=lambda option: monitor.row(option.in_words),
        ).plan()
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
    )
    return replace(
        tuned,
        assumptions=_assumptions(tuned, request.given),
        warnings=tuple(_warnings(tuned, prompts, latency)),
    )


def _offer(
    trace: Trace,
    prompts: Prompts,
    request: TuneRequest,
    where: ResolvedDeployment,
    kv_groups: str,
) -> TierOffer | None:
    """Return the memory to compare below the deployment's pools; None where none is simulated.

    Raises UsageError for ways to offload that are refused, and for sizes that hold no chunk.
    """
    model, asked = request.model or where.model, request.tiers
    if model is None:
        return None
    if asked is None and (where.engine.name != VLLM or model.hybrid):
        return None
    groups = KvGroups.parse(kv_groups) if kv_groups else None
    block_bytes = model.kv_bytes_per_token(where.tp) * where.tp * trace.block_size
    pool_bytes = where.pool.in_blocks_of(trace.block_size).blocks * block_bytes
    most_bytes = len(prompts.block_parent) * block_bytes * (len(groups.groups) if groups else 1)
    known, hour = tier_prices(), where.price_of(where.tp)
    if asked is None:
        sizes = sizes_to_compare(pool_bytes, most_bytes, _POOLS)
        return TierOffer(
            candidates=tuple(TierCandidate(own_offload(where), size) for size in sizes),
            block_bytes=block_bytes,
            gpus=where.tp,
            prices={"dram": known.dram, "ssd": known.ssd},
            replica_hour=hour,
        )
    stated = asked.sizes or tuple(
        TierSize(size) for size in sizes_to_compare(pool_bytes, most_bytes, _ALL_POOLS)
    )
    files, allowed = any(each.files_bytes for each in stated), OnGroups(groups)
    ways = [OffloadSpec.parse(text, files=files) for text in asked.offload]
    for spec in ways:
        allowed.require(spec)
    return TierOffer(
        candidates=_candidates(ways, stated, allowed.page_bytes(block_bytes, trace.block_size)),
        block_bytes=block_bytes,
        gpus=where.tp,
        prices=asked.prices,
        replica_hour=hour,
        options={text.strip(): _TIER_OPTIONS for text in asked.offload if ":" not in text},
        policies=tuple(
            retaining(interval) for interval in allowed.intervals(ways, request.variants)
        ),
        groups=groups,
        rows=_TIER_ROWS,
        chooses=True,
    )


def _candidates(
    ways: Sequence[OffloadSpec], sizes: tuple[TierSize, ...], page_bytes: int
) -> tuple[TierCandidate, ...]:
    """Return each way to offload with each size, an SSD's CPU memory also without the SSD.

    `page_bytes` are those of a block of the engine.
    """
    alone = [each._replace(files_bytes=0) for each in sizes if each.files_bytes]
    candidates: list[TierCandidate] = []
    for spec in ways:
        chunk_bytes = spec.blocks_per_chunk * page_bytes
        for size in dict.fromkeys([*sizes, *alone]):
            least = min(size.size_bytes, size.files_bytes or size.size_bytes)
            if least < chunk_bytes:
                raise UsageError(
                    f"{units.format_size(least)} holds not one chunk of {spec.text}",
                    where="--tier-sizes",
                    remedy=f"a chunk takes {units.format_size(chunk_bytes)}",
                )
            candidates.append(TierCandidate(spec.text, *size))
    return tuple(dict.fromkeys(candidates))


def _machine(where: ResolvedDeployment, block_size: int) -> ReplicaMachine:
    """Return the machine of one replica of another deployment."""
    return ReplicaMachine(
        gpu=where.gpu.name if where.gpu else "unknown GPU",
        tp=where.tp,
        capacity_blocks=where.pool.in_blocks_of(block_size).blocks,
        profile=where.latency,
        max_num_seqs=where.max_num_seqs,
        max_num_batched_tokens=where.max_num_batched_tokens,
        replica_hour=where.price_of(where.tp),
    )


def _launch(where: ResolvedDeployment, groups: KvGroups | None) -> EngineLaunch:
    """Return how the deployment's engine is started: what was stated, in the engine's words."""
    stated, vllm = where.stated, where.engine.name == VLLM
    words = {
        "--tensor-parallel-size" if vllm else "--tp": stated.tp if stated.tp > 1 else None,
        "--kv-cache-dtype": stated.kv_dtype if stated.kv_dtype == "fp8" else None,
        "--prefix-match-unit": stated.prefix_match_unit,
        "--gpu-memory-utilization" if vllm else "--mem-fraction-static": (
            stated.gpu_memory_utilization
        ),
        "--max-num-seqs" if vllm else "--max-running-requests": where.max_num_seqs,
        "--max-num-batched-tokens" if vllm else "--chunked-prefill-size": (
            where.max_num_batched_tokens
        ),
    }
    return EngineLaunch(
        block_size=stated.block_size,
        num_gpu_blocks=where.pool.num_gpu_blocks if where.pool.origin == "stated" else None,
        options=tuple(f"{name} {value}" for name, value in words.items() if value is not None),
        groups=groups,
        engine=where.engine if vllm else NEWEST,
    )


def _warnings(tuned: Recommendation, prompts: Prompts, latency: TraceLatency) -> Iterator[str]:
    """Yield what the reader has to know before the verdict."""
    tuning, trace = tuned.tuning, tuned.trace
    if latency.note:
        yield latency.note
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
            f"Replicas behind {seeing[0].name} are replayed block by block, not on SGLang's tree:"
            " their hits may be a few percent off."
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
    """Return the table that the recommended policy needs in an engine, fitted to the whole trace.

    None for a policy without one. An engine goes on fitting where it can, as the replays did that
    the policy was judged by.
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
    """Return recommendation.toml, None for a switch without flags, which no engine is to run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recommendation.toml"
        write_recommended(path, tuned)
        return path.read_text(encoding="utf-8") if path.exists() else None


def write_recommended(path: Path, tuned: Recommendation, *, force: bool = False) -> str:
    """Write recommendation.toml to `path`, with what an engine needs; return what was done.

    Unless by `force`, a switch that gets no flags for its deployment is not written, since an
    engine would run it, and a recommendation to switch is not replaced by another verdict.
    """
    why = tuned.why_no_flags()
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


def _blocks_in_range(request: TuneRequest, trace: Trace) -> tuple[int, int | None]:
    if request.range_bytes is None or request.model is None:
        return 0, None
    low, high = (request.model.blocks_in(size, trace.block_size) for size in request.range_bytes)
    return low, high


def _usual_contenders(tuned: Recommendation) -> tuple[str, str]:
    """Return the policies that compete with LRU by default, and why."""
    if tuned.tuning.setting.kv_groups:
        return contenders(tuned.engine, hybrid=True), "vLLM's own setting"
    return contenders(tuned.engine), WHY_CONTENDERS[tuned.engine]


def _assumptions(tuned: Recommendation, given: frozenset[str]) -> tuple[Assumption, ...]:
    """Return what was taken for the options that are not `given`, and why."""
    tuning, profile, split = tuned.tuning, tuned.profile, tuned.tuning.split
    windows = (split.warmup_requests, split.validation_requests, split.held_out_requests)
    line = f"{units.format_duration(profile.base_s)} + {profile.per_token_s * 1e6:.3g} us a token"
    measure = "measure yours with kvscope calibrate"
    taken = [
        ("--percentile", units.format_percentile(tuning.target.percentile), "the usual SLO"),
        (
            WINDOWS,
            ", ".join(f"{number:,}" for number in windows) + " requests",
            "a warm cache, and enough requests in every window",
        ),
        ("--policies", *_usual_contenders(tuned)),
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

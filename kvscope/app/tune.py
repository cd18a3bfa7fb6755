"""Tune: recommend policy, parameters and capacity for an SLO, and write recommendation.toml."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.cluster import replays_on
from kvscope.app.ends import ends_of
from kvscope.app.latency import TraceLatency, latency_for
from kvscope.app.monitor import Monitor
from kvscope.app.requests import WINDOWS, TuneRequest
from kvscope.app.requests.tuning import own_offload
from kvscope.app.traces import require_arrivals
from kvscope.characterize.windows import round_windows
from kvscope.core import units
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import Model
from kvscope.ingest.build import NO_COMMON_CLOCK
from kvscope.latency.profile import MODELS, LatencyProfile
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import fit_for
from kvscope.policies.base import Policy
from kvscope.replay.derived_traces import isolate
from kvscope.replay.policy_options import FORESEEING, SGLANG, VLLM, contenders, format_value
from kvscope.replay.settings import timed_by, with_groups
from kvscope.replay.traffic import traffic
from kvscope.routers.session import Session
from kvscope.tuning.file import EngineTable, why_kept, write_recommendation
from kvscope.tuning.flags import NEWEST, EngineLaunch, Flags, flags
from kvscope.tuning.load import running_blocks
from kvscope.tuning.plan import Planner, ReplicaMachine, TierMemory, TuningPlan
from kvscope.tuning.search import XI
from kvscope.tuning.tier_prices import tier_prices
from kvscope.tuning.trial import category_times_ms
from kvscope.tuning.tuner import TuningOptions, TuningResult, prepared

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment

WHY_CONTENDERS = {
    VLLM: "their guards revert to LRU; vLLM runs them with kvscope's plugin",
    SGLANG: "what SGLang runs by flags",
}
BEYOND_RANGE = 0.01  # share of prompts beyond the measured lengths that is worth a warning


class Assumption(Struct, frozen=True):
    """A value that was assumed, and why."""

    name: str
    value: str
    why: str


class Recommendation(Struct, frozen=True):
    """A tuning with the trace and the deployment that it is for; `path` is where it is written.

    Without a deployment it is a cache study: one idle cache, and no flags for an engine.
    """

    trace: Trace
    model: Model | None
    hbm_bytes: int | None
    profile: LatencyProfile
    tuning: TuningResult
    deployment: ResolvedDeployment | None = None
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    path: str = "recommendation.toml"
    plan: TuningPlan | None = None

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
        chosen = flags(self.tuning.recommended.policy, _launch(where, groups))
        sglang = self.engine == SGLANG
        return Flags(chosen.sglang if sglang else None, None if sglang else chosen.vllm)

    def why_no_flags(self) -> str:
        """Return why no flags are given; empty where they are."""
        if self.deployment is None:
            return "A cache study: name the deployment (--gpu, --model) for an engine's flags."
        changes = self.tuning.choice is not None
        if not changes and self.tuning.verdict != "keep-lru":
            return f"No flags: {self.tuning.verdict} is not mended by flags."
        if changes and not self.deployment.switchable:
            return f"No flags: {self.deployment.not_switchable}."
        disagreeing = self.tuning.disagreeing
        if any(each.end.sessions for each in disagreeing):
            return (
                "No flags: the answer changes with when the sessions begin."
                " State it: --session-arrivals poisson:RATE."
            )
        if changes and disagreeing:
            return (
                "No flags: the comparison does not hold within the uncertainty of pool and latency."
                " Measure them: kvscope calibrate, and --engine-log for the pool."
            )
        return ""

    def price_hour(self, replicas: int) -> float | None:
        """Return the price of so many replicas for an hour, None where it is not known."""
        where = self.deployment
        return None if where is None else where.price_of(where.tp * replicas)

    def gpus_for(self, blocks: int) -> int | None:
        """Return the GPUs whose pools hold so many blocks on every replica; None without any."""
        tokens = blocks * self.trace.block_size * self.tuning.replicas
        return None if self.deployment is None else self.deployment.gpus_for(tokens)

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
    pool, running = None, 0
    if where is not None:
        replicas = where.engines
        pool = where.pool.in_blocks_of(trace.block_size)
        if where.engine.name == SGLANG:
            running = running_blocks(prompts, setting, pool.blocks, replicas)
        tuning_options = replace(
            tuning_options,
            capacity_blocks=pool.blocks - running,
            replicas=replicas,
            scale_out=True,
        )
    ends = ends_of(
        latency,
        prompts,
        latency_named="--latency" in request.given,
        pool=pool,
        running_blocks=running,
        tpot=request.target.tpot_slo_s is not None,
    )
    tuning_options = replace(tuning_options, ends=ends)
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
        price = where.price_of(where.tp) if where else None
        memory = _memory(where, trace.block_size)
        machines = [_machine(each, trace.block_size) for each in request.also]
        plan = Planner(tuner, tuning, Session.name, price, memory, machines).plan()
    tuned = Recommendation(
        trace, request.model, request.hbm_bytes, profile, tuning, where, plan=plan
    )
    return replace(
        tuned,
        assumptions=_assumptions(tuned, request.given),
        warnings=tuple(_warnings(tuned, prompts, latency)),
    )


def _memory(where: ResolvedDeployment | None, block_size: int) -> TierMemory | None:
    """Return the CPU memory that the deployment's engine can store in; None where it cannot."""
    if where is None or where.model is None or where.engine.name != VLLM or where.model.hybrid:
        return None
    block_bytes = where.model.kv_bytes_per_token(where.tp) * where.tp * block_size
    return TierMemory(own_offload(where), block_bytes, where.tp, tier_prices().dram)


def _machine(where: ResolvedDeployment, block_size: int) -> ReplicaMachine:
    """Return the machine of one replica of another deployment."""
    return ReplicaMachine(
        name=f"{where.tp} x {where.gpu.name}" if where.gpu else "one engine",
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


def engine_fit(tuned: Recommendation, prompts: Prompts) -> FittedTable | None:
    """Return the table that the recommended policy needs in an engine, fitted to the whole trace.

    None for a policy without one. An engine goes on fitting where it can, as the replays did that
    the policy was judged by.
    """
    recommended, setting = tuned.tuning.recommended, tuned.tuning.setting
    if not recommended.policy.reads_table:
        return None
    whole = isolate(prompts, setting.isolate) if setting.isolate else prompts
    fitted = fit_for(
        traffic(whole, setting.definition), recommended.policy, recommended.capacity_blocks
    )
    return None if fitted is None else fitted.refitted_in_engine()


def recommendation_text(tuned: Recommendation, prompts: Prompts) -> str | None:
    """Return recommendation.toml, None for a switch without flags, which no engine is to run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recommendation.toml"
        write_recommended(path, tuned, prompts)
        return path.read_text(encoding="utf-8") if path.exists() else None


def write_recommended(
    path: Path, tuned: Recommendation, prompts: Prompts, *, force: bool = False
) -> str:
    """Write recommendation.toml to `path`, with what an engine needs; return what was done.

    Unless by `force`, a switch that gets no flags for its deployment is not written, since an
    engine would run it, and a recommendation to switch is not replaced by another verdict.
    """
    why = tuned.why_no_flags()
    if tuned.deployment is not None and tuned.tuning.choice and why and not force:
        return f"{path} was not written (--force writes it). {why}"
    if not force and (kept := why_kept(path, tuned.tuning.verdict)):
        return kept
    blocks, where = tuned.tuning.recommended.capacity_blocks, tuned.deployment
    write_recommendation(
        path,
        tuned.tuning,
        trace=tuned.trace.name,
        block_size=tuned.trace.block_size,
        profile=tuned.profile,
        flags=tuned.flags,
        capacity_bytes=tuned.bytes_in(blocks),
        fitted=engine_fit(tuned, prompts),
        deployment=EngineTable.of(where, tuned.tuning.setting.kv_groups) if where else None,
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

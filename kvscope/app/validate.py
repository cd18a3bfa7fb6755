"""Validate: replay a trace on a real engine, and compare with what the simulator predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.deployment import file_states, resolved_deployment, stated_deployment
from kvscope.app.engine_options import (
    CPU_BLOCK,
    GPU_BLOCK,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    LaunchOptions,
    TargetOptions,
    ValidateOptions,
)
from kvscope.app.latency import latency_for
from kvscope.app.monitor import Monitor
from kvscope.app.requests import above_zero, latency_profile
from kvscope.core.errors import InputError, UsageError
from kvscope.core.trace import Trace
from kvscope.deployment.deployment import Deployment, ResolvedDeployment, option
from kvscope.deployment.engines import DEFAULT_ENGINE, Engine, parse_engine
from kvscope.deployment.gpus import resolve_gpu
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import Model, read_config
from kvscope.replay.policy_options import VLLM
from kvscope.tuning.target import Target

if TYPE_CHECKING:
    from kvscope.latency.profile import LatencyProfile
    from kvscope.serving.interpreter import Interpreter
    from kvscope.store.file import Stores
    from kvscope.tuning.file import PolicyFile
    from kvscope.validate.replay import Pace
    from kvscope.validate.result import EngineFacts, Validation
    from kvscope.validate.tokens import TraceSample
    from kvscope.validate.validate import EngineOpener, PolicyRun

Choose = Callable[[int], "TraceSample"]
"""Returns the requests to replay, given the longest that the engine can hold, in tokens."""

DEFAULT_RECOMMENDATION = "recommendation.toml"
DEFAULT_PROFILE_FILE = "latency.toml"
_OF_A_START = ("tp", "kv_dtype", "gpu_memory_utilization")


class ValidatedReplica(Struct, frozen=True):
    """The one engine of a deployment that a validation stands for.

    It serves `share` of the trace. A replica's pool holds `tokens`, None where nothing states them;
    `scale` of it is taken, 1 unless another share was stated. `block_size` is None where vLLM's
    default for the device holds; `flags` are what else vLLM is started with.
    """

    stated: Deployment | None
    share: float
    scale: float
    tokens: int | None
    block_size: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    flags: tuple[str, ...]


class ValidateRequest(Struct, frozen=True):
    """What the options of `validate` ask for, with all that they and the files here settle.

    `profile` is None where nothing says what requests take. `python` is the interpreter with the
    vLLM to start, None for a server that runs.
    """

    target: TargetOptions
    options: ValidateOptions
    launch: LaunchOptions
    advice: PolicyFile | None
    where: ResolvedDeployment | None
    replica: ValidatedReplica
    profile: LatencyProfile | None
    python: Interpreter | None


class EngineAtHand(Struct, frozen=True):
    """The engine to replay on: its facts, how to open it, and the requests that it can serve.

    `overlapped`: it schedules the next step while one runs, as vLLM does on a GPU. `groups` are
    those of a hybrid model.
    """

    facts: EngineFacts
    open: EngineOpener
    sample: TraceSample
    overlapped: bool = False
    groups: KvGroups | None = None

    @property
    def hash_tokens(self) -> int:
        """Tokens of a block of the requests' hashes: the engine's, less where hits end within."""
        hits = self.groups.hit_tokens if self.groups is not None else self.facts.block_size
        return min(self.facts.block_size, hits)


def validate_request(
    target: TargetOptions, options: ValidateOptions, launch: LaunchOptions, monitor: Monitor
) -> ValidateRequest:
    """Return what the options ask for; notes say which files of this folder are used.

    Raises UsageError for options that contradict each other, and for a vLLM without a size of its
    cache; EngineError where there is no vLLM to start.
    """
    from kvscope.serving.interpreter import with_vllm

    _check_options(target, options)
    advice = _advice(options, monitor)
    where = _deployment(options)
    replica = _replica(options, launch, where, advice)
    profile = where.latency if where else _profile(options.latency, advice, monitor)
    python = None
    if target.url is None:
        if options.blocks is None and replica.tokens is None:
            raise UsageError(
                "the size of the cache is unknown",
                where="--blocks",
                remedy="state it, or --deployment, or --recommendation",
            )
        python = with_vllm(launch.python)
    return ValidateRequest(target, options, launch, advice, where, replica, profile, python)


def _check_options(target: TargetOptions, options: ValidateOptions) -> None:
    """Raise UsageError for options that contradict each other."""
    target.check("vLLM")
    rate_scale = above_zero(options.rate_scale)
    if options.sequential and options.in_flight:
        raise UsageError("contradict each other", where="--sequential, --in-flight")
    for name in _OF_A_START:
        if target.url is not None and getattr(options, name) is not None:
            raise UsageError(
                "a running server has its own", where=option(name), remedy="leave out --url or this"
            )
    if (options.sequential or options.in_flight) and rate_scale != 1:
        raise UsageError(
            "needs the recorded times", where="--rate-scale", remedy="leave it or the other out"
        )


def validate(
    stores: Stores,
    trace: Trace,
    request: ValidateRequest,
    monitor: Monitor,
    *,
    seed: int = 0,
    show_log: Callable[[tuple[str, ...]], None],
) -> Validation:
    """Replay `trace` on the engine with each policy, and compare with the prediction.

    What was measured until the engine died or the monitor's `stop` was set is judged; `show_log`
    gets the last lines of a log. Raises UsageError where the engine's blocks are unknown,
    EngineError where there is no engine.
    """
    from kvscope.app.traces import replayable
    from kvscope.validate.replay import Pace
    from kvscope.validate.tokens import sample_trace
    from kvscope.validate.validate import ValidationPlan
    from kvscope.validate.validate import validate as replay_all
    from kvscope.vllm_sim import EngineSettings

    target, options, launch = request.target, request.options, request.launch
    advice, replica = request.advice, request.replica
    prompts, pace = replayable(stores, trace), Pace("recorded", rate_scale=options.rate_scale)
    if options.sequential:
        pace = Pace("sequential")
    elif options.in_flight:
        pace = Pace("in-flight", options.in_flight)
    slo = advice.target if advice else None
    if slo is None and options.slo is not None:
        slo = Target(options.slo)
    slo_s = options.slo if options.slo is not None or slo is None else slo.slo_s
    assumed = request.profile or latency_profile(None)  # steps take some time on any engine
    latency = latency_for(trace, assumed, request.where, lambda: prompts)
    if latency.note:
        monitor.note(latency.note)
    forced = (options.outputs or ("bounded" if target.url else "forced")) == "forced"

    def choose(longest: int) -> TraceSample:
        return sample_trace(
            prompts,
            share=replica.share,
            seconds=None if options.minutes is None else 60 * options.minutes,
            most=options.max_requests,
            longest=longest,
            seed=seed,
        )

    if request.python is None:
        engine = _running_server(target, options, launch, choose, advice)
    else:
        engine = _own_vllm(request, request.python, choose, monitor, forced=forced)
    plan = ValidationPlan(
        sample=engine.sample,
        pace=pace,
        profile=latency.profile,
        settings=EngineSettings(
            engine.facts.blocks,
            replica.max_num_seqs,
            replica.max_num_batched_tokens,
            async_scheduling=engine.overlapped and "--no-async-scheduling" not in launch.vllm_flags,
            groups=engine.groups,
        ).in_version(_version(engine.facts.version)),
        block_size=engine.hash_tokens,
        forced=forced,
        target=slo,
        slo_s=slo_s,
        warmup=options.warmup,
        tolerance=options.tolerance,
        repeats=options.repeats,
        seed=seed,
        profiled=request.profile is not None,
    )
    runs = _runs(target, options, advice, monitor, pace, engine)
    if engine.sample.too_long:
        monitor.note(
            f"{engine.sample.too_long:,} requests are longer than the engine takes: left out"
        )
    if not forced:
        monitor.note(
            "the engine answers freely: blocks of outputs that later turns carry do not hit, and"
            " are predicted so"
        )
    validation = replay_all(
        plan,
        engine.facts,
        runs,
        engine.open,
        progress=monitor.steps,
        show_log=show_log,
        stop=monitor.stop,
    )
    return replace(validation, deployment=replica.stated.as_table if replica.stated else None)


def _deployment(options: ValidateOptions) -> ResolvedDeployment | None:
    """Return what follows from the deployment that a file states, None without one."""
    where = resolved_deployment(options) if file_states(options) else None
    if where is not None and where.engine.name != VLLM:
        raise UsageError(
            "vLLM alone is validated",
            where=f"the deployment's engine {where.engine}",
            remedy="name another --deployment, or - for none",
        )
    return where


def _replica(
    options: ValidateOptions,
    launch: LaunchOptions,
    where: ResolvedDeployment | None,
    advice: PolicyFile | None,
) -> ValidatedReplica:
    """Return the replica to stand for: as the options say, the deployment, or the advice."""
    from kvscope.tuning.file import RecommendationFile

    tuned = advice.deployment if isinstance(advice, RecommendationFile) else None
    engines = where.engines if where else tuned.replicas if tuned else 1
    tokens = where.pool.tokens if where else advice.capacity_tokens if advice else None
    stated = where.stated if where else stated_deployment(options)
    seqs, batched = MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS
    if limits := where or tuned:
        seqs, batched = limits.max_num_seqs, limits.max_num_batched_tokens
    return ValidatedReplica(
        stated=stated,
        share=options.share or 1 / engines,
        scale=options.share * engines if options.share else 1.0,
        tokens=tokens,
        block_size=launch.engine_block_size or (stated.block_size if stated else None),
        max_num_seqs=launch.max_num_seqs or seqs,
        max_num_batched_tokens=launch.max_num_batched_tokens or batched,
        flags=_start_flags(stated) if stated else (),
    )


def _start_flags(stated: Deployment) -> tuple[str, ...]:
    """Return what a deployment states of vLLM's start, beyond its limits and blocks."""
    words = {
        "--tensor-parallel-size": stated.tp if stated.tp > 1 else None,
        "--kv-cache-dtype": stated.kv_dtype if stated.kv_dtype == "fp8" else None,
        "--prefix-match-unit": stated.prefix_match_unit,
        "--gpu-memory-utilization": stated.gpu_memory_utilization,
    }
    return tuple(
        word for name, value in words.items() if value is not None for word in (name, str(value))
    )


def _own_vllm(
    request: ValidateRequest,
    python: Interpreter,
    choose: Choose,
    monitor: Monitor,
    *,
    forced: bool,
) -> EngineAtHand:
    """Return a vLLM that is started for each policy. Raises EngineError where there is none."""
    from kvscope.serving.server import Launch, config_of
    from kvscope.validate.result import EngineFacts
    from kvscope.validate.validate import own_vllm

    launch, replica, model = request.launch, request.replica, str(request.target.model)
    config, shape = config_of(model) or {}, _shape(model)
    is_gpu = python.device == "cuda"
    if shape is not None:
        named = replica.stated.gpu if replica.stated and is_gpu else None
        gpu = None if named is None else resolve_gpu(named)
        shape = shape.served_by(_version(python.vllm), gpu)
    stated = replica.block_size or (GPU_BLOCK if is_gpu else CPU_BLOCK)
    tp = replica.stated.tp if replica.stated else 1
    size = shape.block_tokens(stated, tp) if shape else stated
    blocks = request.options.blocks or _blocks(replica, size, monitor)
    sample = choose(_longest(config.get("max_position_embeddings"), blocks * size))
    tokens = sample.prompts.input_tokens + sample.prompts.output_tokens
    started = Launch(
        model,
        block_size=stated,
        blocks=blocks,
        max_model_len=int(tokens.max()) + 1,
        max_num_seqs=replica.max_num_seqs,
        max_num_batched_tokens=replica.max_num_batched_tokens,
        forced_outputs=forced,
        flags=(*replica.flags, *launch.vllm_flags),
        kv_bytes_per_token=shape.by_block.bytes_per_token * size // stated if shape else None,
    )
    device = python.device_name or python.device
    monitor.note(f"vLLM {python.vllm} on {device}, {blocks:,} blocks of {size} tokens")
    groups = shape.kv_groups(stated, stated, tp) if shape else None
    groups = groups and _version(python.vllm).retaining(groups)
    states = groups.state_tokens if groups else 0
    if groups is not None and states and replica.stated is not None:
        groups = groups.matching(replica.stated.prefix_match_unit)
    opened = own_vllm(started, launch.server(python, monitor.stop), states)
    flags = tuple(started.options(python))
    facts = EngineFacts("vLLM", python.vllm, device, model, blocks, size, flags)
    return EngineAtHand(facts, opened, sample, overlapped=is_gpu, groups=groups)


def _version(reported: str | None) -> Engine:
    """Return the vLLM of a version that an engine reports, the newest for one that says nothing."""
    try:
        return parse_engine(f"vllm@{reported}" if reported else DEFAULT_ENGINE)
    except UsageError:  # no version, such as "dev"
        return parse_engine(DEFAULT_ENGINE)


def _shape(model: str) -> Model | None:
    """Return the model that the config.json of a folder describes; None for a name."""
    from kvscope.serving.server import model_folder

    folder = model_folder(model)
    return None if folder is None else read_config(folder / "config.json")


def _running_server(
    target: TargetOptions,
    options: ValidateOptions,
    launch: LaunchOptions,
    choose: Choose,
    advice: PolicyFile | None,
) -> EngineAtHand:
    """Return the server that runs already; its blocks as stated, or as its metrics have them.

    A recommendation says in which groups its model's layers are.
    """
    from kvscope.serving.client import Endpoint, block_pool
    from kvscope.tuning.file import RecommendationFile
    from kvscope.validate.result import EngineFacts
    from kvscope.validate.validate import running_server

    endpoint = Endpoint(str(target.url), timeout_s=launch.timeout)
    served = endpoint.model(target.served_model)
    pool = block_pool(endpoint.metrics())
    size = launch.engine_block_size or (pool and pool.block_size)
    blocks = options.blocks or (pool and pool.usable_blocks)
    if not size or not blocks:
        raise UsageError(
            "the server does not report its blocks",
            where="--blocks, --engine-block-size",
            remedy="state how many it has, and their size",
        )
    sample = choose(_longest(served.max_model_len, blocks * size))
    facts = EngineFacts("server", endpoint.version(), None, served.name, blocks, size)
    tuned = advice.deployment if isinstance(advice, RecommendationFile) else None
    groups = None
    if tuned is not None and tuned.kv_groups:
        groups = KvGroups.parse(tuned.kv_groups).in_blocks_of(size)
    return EngineAtHand(facts, running_server(endpoint, served), sample, groups=groups)


def _blocks(replica: ValidatedReplica, size: int, monitor: Monitor) -> int:
    """Return the blocks of the replica's pool."""
    if replica.tokens is None:
        raise ValueError("the size of the cache is unknown")
    blocks = max(1, round(replica.tokens * replica.scale / size))
    if replica.scale < 1:
        monitor.note(
            f"the cache is scaled down as the trace is, to {blocks:,} blocks of {size} tokens"
        )
    return blocks


def _longest(limit: object, tokens: int) -> int:
    """Return the longest request, in tokens, that a context limit and a cache of `tokens` allow."""
    return min(limit - 1, tokens) if isinstance(limit, int) else tokens


def _advice(options: ValidateOptions, monitor: Monitor) -> PolicyFile | None:
    """Return the policy file that is named, or the recommendation in this folder, if any."""
    from kvscope.tuning.file import RecommendationFile, read_policy_file

    if options.policies == "lru" and options.recommendation is None:
        return None
    path = _advice_path(options)
    if options.recommendation is None and not path.is_file():
        if options.policies == "recommendation":
            raise InputError("no such file", where=str(path), remedy="`kvscope tune` writes it")
        monitor.note(f"no {path} here: only LRU is validated")
        return None
    advice = read_policy_file(path)
    tier = advice.tier if isinstance(advice, RecommendationFile) else None
    if tier is not None and options.policies != "lru":
        raise UsageError(
            "it recommends a tier, which validate does not start",
            where=str(path),
            remedy="validate the pool alone with --policies lru, or name another file",
        )
    if options.recommendation is None:
        monitor.note(
            f"using {path} of this folder: {advice.policy.name}, for the trace {advice.trace}"
        )
    return advice


def _advice_path(options: ValidateOptions) -> Path:
    return Path(options.recommendation or DEFAULT_RECOMMENDATION)


def _profile(
    latency: str | None, advice: PolicyFile | None, monitor: Monitor
) -> LatencyProfile | None:
    """Return the profile that is named, that of the advice, or that in this folder, if any."""
    if latency is not None:
        return latency_profile(latency)
    if advice is not None and advice.profile is not None:
        return advice.profile
    if Path(DEFAULT_PROFILE_FILE).is_file():
        monitor.note(f"using {DEFAULT_PROFILE_FILE} of this folder as --latency")
        return latency_profile(DEFAULT_PROFILE_FILE)
    monitor.note("no --latency: TTFT is not judged; `kvscope calibrate` measures yours")
    return None


def _runs(
    target: TargetOptions,
    options: ValidateOptions,
    advice: PolicyFile | None,
    monitor: Monitor,
    pace: Pace,
    engine: EngineAtHand,
) -> list[PolicyRun]:
    """Return the policies to run: LRU, what is recommended, or both."""
    from kvscope.validate.validate import PolicyRun, recommended_run

    if target.url is not None and options.policies == "both":  # it runs what it was started with
        monitor.note("the server is assumed to evict by LRU; if not, use --policies recommendation")
        return [PolicyRun()]
    if advice is None or options.policies == "lru":
        return [PolicyRun()]
    best = recommended_run(
        advice,
        _advice_path(options),
        overlapped=engine.overlapped,
        trace_clock=pace.kind == "sequential",
        groups=engine.groups,
    )
    if target.url is not None:
        return [PolicyRun(advice.policy, fitted=advice.fitted)]
    if best.policy.name == "lru" or options.policies == "recommendation":
        return [best]
    return [PolicyRun(), best]

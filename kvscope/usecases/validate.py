"""Replay the trace on a real engine; compare prediction and measurement for LRU and the advice.

Exit code 4: outside the tolerance, or --fail-on. 5: the engine cannot be reached, or died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app import options as opt
from kvscope.app import values
from kvscope.app.deployment import file_states, resolved_deployment, stated_deployment
from kvscope.app.engine_options import (
    CPU_BLOCK,
    GPU_BLOCK,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    EngineOptions,
)
from kvscope.app.gates import RUN_FIGURES, VERDICT, Figures, Known, ttft_figures
from kvscope.app.requests import BASELINE, above_zero, latency_profile
from kvscope.core.errors import InputError, UsageError
from kvscope.core.percentiles import percentiles
from kvscope.deployment.deployment import Deployment, ResolvedDeployment, option
from kvscope.deployment.engines import DEFAULT_ENGINE, Engine, parse_engine
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import read_config
from kvscope.deployment.speculative import Drafter, parse_drafter
from kvscope.replay.policy_options import VLLM
from kvscope.tuning.target import Target
from kvscope.usecases.base import Opened, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.trace import Trace
    from kvscope.latency.profile import LatencyProfile
    from kvscope.serving.interpreter import Interpreter
    from kvscope.store.file import Stores
    from kvscope.tuning.file import PolicyFile
    from kvscope.validate.replay import Pace
    from kvscope.validate.result import EngineFacts, RunFacts, Validation
    from kvscope.validate.tokens import TraceSample
    from kvscope.validate.validate import EngineOpener, PolicyRun

Choose = Callable[[int], "TraceSample"]
"""Returns the requests to replay, given the longest that the engine can hold, in tokens."""
Note = Callable[[str], None]

DEFAULT_RECOMMENDATION = "recommendation.toml"
DEFAULT_PROFILE_FILE = "latency.toml"
_OF_A_START = ("tp", "kv_dtype", "gpu_memory_utilization")
_FIGURES = (*RUN_FIGURES, "mismatched")


class ValidateOptions(EngineOptions, frozen=True, kw_only=True):
    """Options of `validate`: the engine, the requests to send, and what to compare.

    `share` (0 to 1) is of the trace's conversations. Requests are sent at their recorded times; or
    one after the other (`sequential`), or so that `in_flight` of them are always in flight. With
    `answers` "forced" the engine answers what the trace's next turns carry, with "bounded" freely.
    `tolerance` is the largest relative deviation of a measured TTFT from the prediction.
    """

    replay: Literal["both", "lru", "recommendation"] = opt.option(
        "What to run: LRU, the recommendation, or both by turns.", value="both"
    )
    recommendation: str | None = opt.Source(
        "File that `kvscope tune` or `kvscope fit --export` wrote.",
        default="recommendation.toml, if it exists",
    )
    capacity_blocks: int | None = opt.Blocks(
        "Capacity in blocks: those the engine can use (vLLM's --num-gpu-blocks-override less 1).",
        default="the deployment's pool, or the recommendation's capacity",
    )
    tp: opt.Tp = None
    kv_dtype: opt.KvDtype = None
    gpu_memory_utilization: opt.Utilization = None
    deployment: opt.DeploymentFile = None
    latency: str | None = opt.Latency(
        default="the deployment's, the recommendation's, or latency.toml"
    )
    slo: opt.Slo = None
    sequential: bool = opt.option("Send one request after the other.", value=False)
    in_flight: int | None = opt.Count(
        "Keep this number of requests in flight, whatever the recorded times."
    )
    rate_scale: opt.RateScale = 1.0
    share: float | None = opt.PositiveShare(
        "Replay this share of the conversations, whole and at their own times: the load of one"
        " of several engines.",
        default="that of one of the deployment's replicas, or 100%",
    )
    until: opt.Until = None
    max_requests: int | None = opt.option(
        "Replay only the first requests.", "N", values.amount("requests")
    )
    warmup: float = opt.Share(
        "Share of the requests, from the start, that fill the cache and are not counted.",
        default="20%",
        value=0.2,
    )
    repeats: int = opt.Count(
        "Number of measurements of each policy, by turns, so that drift affects all alike.", value=1
    )
    answers: Literal["forced", "bounded"] | None = opt.option(
        "forced: the engine answers what the next turns of the trace carry. bounded: it answers"
        " freely, and those blocks do not hit.",
        default="forced, and bounded with --url",
    )
    tolerance: float = opt.PositiveShare(
        "Largest deviation of TTFT from the prediction.", default="10%", value=0.1
    )


class ValidatedReplica(Struct, frozen=True):
    """The replica of a deployment that a validation's one engine stands for.

    It serves `share` of the trace: by default 1 / the number of replicas. A replica's pool holds
    `tokens` (None: not stated). The engine's pool and load are `scale` times a replica's: --share
    times the number of replicas, 1 without --share. `block_size` is None for vLLM's default on the
    device; `flags` are vLLM's further flags.
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
    """The options of `validate`, with all that they and files of the working directory determine.

    Without options for them, the files are recommendation.toml, kvscope.toml and latency.toml.
    `advice` is the policy file to validate, `where` the deployment that a file states; None without
    one. `profile` is None if no latency is known. `python` is the interpreter with the vLLM to
    start, None for a running server. `notes` say which recommendation and latency are used.
    """

    options: ValidateOptions
    advice: PolicyFile | None
    where: ResolvedDeployment | None
    replica: ValidatedReplica
    profile: LatencyProfile | None
    python: Interpreter | None
    notes: tuple[str, ...]


class EngineAtHand(Struct, frozen=True):
    """The engine to replay on: its facts, how to open it, and the requests that it can serve.

    `overlapped`: it schedules the next step during the current one, as vLLM does on a GPU. `groups`
    are those of a hybrid model.
    """

    facts: EngineFacts
    open: EngineOpener
    sample: TraceSample
    overlapped: bool = False
    groups: KvGroups | None = None

    @property
    def hash_tokens(self) -> int:
        """Tokens per hash block: the engine's block size, or less if hits can end inside it."""
        hits = self.groups.hit_tokens if self.groups is not None else self.facts.block_size
        return min(self.facts.block_size, hits)


def validate_request(options: ValidateOptions) -> ValidateRequest:
    """Return the request in the options of `validate`.

    Raises UsageError for options that contradict each other, and for a vLLM without a cache size;
    EngineError if there is no vLLM to start.
    """
    from kvscope.serving.interpreter import with_vllm

    _check_options(options)
    notes: list[str] = []
    advice = _advice(options, notes.append)
    names = (*_OF_A_START, "latency", "deployment")
    stated = opt.ReplicaOptions(**{name: getattr(options, name) for name in names})
    where = _deployment(stated)
    replica = _replica(options, stated, where, advice)
    profile = where.latency if where else _profile(options.latency, advice, notes.append)
    python = None
    if options.url is None:
        if options.capacity_blocks is None and replica.tokens is None:
            raise UsageError(
                "the size of the cache is unknown",
                where="--capacity-blocks",
                remedy="state it, or --deployment, or --recommendation",
            )
        python = with_vllm(options.python)
    return ValidateRequest(options, advice, where, replica, profile, python, tuple(notes))


def _check_options(options: ValidateOptions) -> None:
    options.check_engine("vLLM")
    rate_scale = above_zero(options.rate_scale)
    if options.sequential and options.in_flight:
        raise UsageError("contradict each other", where="--sequential, --in-flight")
    for name in _OF_A_START:
        if options.url is not None and getattr(options, name) is not None:
            raise UsageError(
                "a running server has its own", where=option(name), remedy="leave out --url or this"
            )
    if (options.sequential or options.in_flight) and rate_scale != 1:
        raise UsageError(
            "needs the recorded times", where="--rate-scale", remedy="leave it or the other out"
        )


def run(opened: Opened, request: ValidateRequest, monitor: Monitor) -> Validation:
    """Replay a trace on the engine, compare, and store the measurements.

    Raises UsageError if the engine's blocks are unknown, EngineError if there is no engine.
    """
    from kvscope.store import results
    from kvscope.store.file import CANNOT_STORE

    for text in request.notes:
        monitor.note(text)
    trace = opened.trace
    validation = validate(opened.stores, trace, request, monitor, opened.reading.seed)
    try:
        with opened.stores.writing() as store:
            results.add_validation(store, trace, validation)
    except CANNOT_STORE as error:
        monitor.note(f"the validation was not stored: {error}")
    return validation


def validate(
    stores: Stores, trace: Trace, request: ValidateRequest, monitor: Monitor, seed: int
) -> Validation:
    """Replay `trace` on the engine with each policy, and compare with the prediction.

    `seed` selects the conversations of a share, and the tokens of all blocks. If the engine dies or
    the monitor's `stop` is set, the measurements so far are judged.
    """
    from kvscope.app.latency import latency_for
    from kvscope.app.traces import replayable
    from kvscope.validate.replay import Pace
    from kvscope.validate.tokens import sample_trace
    from kvscope.validate.validate import ValidationPlan
    from kvscope.validate.validate import validate as replay_all
    from kvscope.vllm_sim import EngineSettings

    options, advice, replica = request.options, request.advice, request.replica
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
    forced = (options.answers or ("bounded" if options.url else "forced")) == "forced"

    def choose(longest: int) -> TraceSample:
        return sample_trace(
            prompts,
            share=replica.share,
            seconds=options.until,
            most=options.max_requests,
            longest=longest,
            seed=seed,
        )

    if request.python is None:
        engine = _running_server(options, choose, advice)
    else:
        engine = _own_vllm(request, request.python, choose, monitor, forced=forced)
    overlapped = engine.overlapped and "--no-async-scheduling" not in options.vllm_flags
    plan = ValidationPlan(
        trace=trace,
        deployment=replica.stated.as_table if replica.stated else None,
        sample=engine.sample,
        pace=pace,
        profile=latency.profile,
        settings=EngineSettings(
            engine.facts.blocks,
            replica.max_num_seqs,
            replica.max_num_batched_tokens,
            async_scheduling=overlapped,
            groups=engine.groups,
        ).in_version(
            replace(_version(engine.facts.version), drafter=_drafter(request)).in_blocks_of(
                engine.facts.block_size
            )
        ),
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
    runs = _runs(options, advice, monitor, pace, engine)
    if options.url and options.repeats > 1 and any(run.policy.reads_table for run in runs):
        monitor.note(
            "emptying its cache does not empty what the policy has learned: hits are predicted for"
            " the first run; start the server anew for each"
        )
    if engine.sample.too_long:
        monitor.note(
            f"{engine.sample.too_long:,} requests are longer than the engine takes: left out"
        )
    if not forced:
        monitor.note(
            "the engine answers freely: blocks of outputs that later turns carry do not hit, and"
            " are predicted so"
        )
    return replay_all(
        plan,
        engine.facts,
        runs,
        engine.open,
        progress=monitor.steps,
        show_log=monitor.show_log,
        stop=monitor.stop,
    )


def _deployment(options: opt.ReplicaOptions) -> ResolvedDeployment | None:
    """Return a file's resolved deployment, None without a file; UsageError for SGLang or --dp."""
    where = resolved_deployment(options) if file_states(options) else None
    if where is not None and where.engine.name != VLLM:
        raise UsageError(
            "vLLM alone is validated",
            where=f"the deployment's engine {where.engine}",
            remedy="name another --deployment, or - for none",
        )
    if where is not None and where.dp > 1:
        raise UsageError(
            "one rank is not started without the others",
            where=f"the deployment's dp {where.dp}",
            remedy="take --deployment -, and --url of one rank's own server",
        )
    return where


def _replica(
    options: ValidateOptions,
    stated_options: opt.ReplicaOptions,
    where: ResolvedDeployment | None,
    advice: PolicyFile | None,
) -> ValidatedReplica:
    """Return the replica that the engine represents: as `options`, else `where`, else `advice` say.

    Its `stated` deployment is that of `where`, else of `stated_options`, the ones of `options` that
    can state a deployment.
    """
    from kvscope.tuning.flags import stated_words

    tuned = advice.deployment if advice else None
    engines = where.engines if where else tuned.replicas if tuned else 1
    tokens = where.pool.tokens if where else advice.capacity_tokens if advice else None
    stated = where.stated if where else stated_deployment(stated_options)
    seqs, batched = MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS
    if limits := where or tuned:
        seqs, batched = limits.max_num_seqs, limits.max_num_batched_tokens
    words = stated_words(replace(stated, speculative=None)) if stated else {}
    return ValidatedReplica(
        stated=stated,
        share=options.share or 1 / engines,
        scale=options.share * engines if options.share else 1.0,
        tokens=tokens,
        block_size=options.engine_block_size or (stated.block_size if stated else None),
        max_num_seqs=options.max_num_seqs or seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or batched,
        flags=tuple(str(word) for pair in words.items() for word in pair),
    )


def _own_vllm(
    request: ValidateRequest,
    python: Interpreter,
    choose: Choose,
    monitor: Monitor,
    *,
    forced: bool,
) -> EngineAtHand:
    """Return the vLLM to start for each policy, and the requests that it can serve.

    `choose` returns the requests to replay, given the longest that this vLLM can hold. `forced`:
    vLLM is started so that it answers with the outputs that requests state.
    """
    from kvscope.serving.server import Launch, config_of, model_folder
    from kvscope.validate.result import EngineFacts
    from kvscope.validate.validate import own_vllm

    options, replica, model = request.options, request.replica, str(request.options.model)
    config, folder = config_of(model) or {}, model_folder(model)
    shape = None if folder is None else read_config(folder / "config.json")
    is_gpu = python.device == "cuda"
    if shape is not None:
        gpu = replica.stated.described_gpu if replica.stated and is_gpu else None
        shape = shape.served_by(_version(python.vllm), gpu)
    stated = replica.block_size or (GPU_BLOCK if is_gpu else CPU_BLOCK)
    tp = replica.stated.tp if replica.stated else 1
    size = shape.block_tokens(stated, tp) if shape else stated
    blocks = options.capacity_blocks or _blocks(replica, size, monitor)
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
        flags=(*replica.flags, *options.vllm_flags),
        kv_bytes_per_token=shape.by_block.bytes_per_token * size // stated if shape else None,
    )
    if replica.stated and parse_drafter(replica.stated.speculative or "none"):
        monitor.note("vLLM is started without a drafter, and predicted without")
    device = python.device_name or python.device
    monitor.note(f"vLLM {python.vllm} on {device}, {blocks:,} blocks of {size} tokens")
    groups = shape.kv_groups(stated, stated, tp) if shape else None
    groups = groups and _version(python.vllm).retaining(groups)
    states = groups.state_tokens if groups else 0
    if groups is not None and states and replica.stated is not None:
        groups = groups.matching(replica.stated.prefix_match_unit)
    opened = own_vllm(started, options.server(python, monitor.stop), states)
    flags = tuple(started.options(python))
    facts = EngineFacts("vLLM", python.vllm, device, model, blocks, size, flags)
    return EngineAtHand(facts, opened, sample, overlapped=is_gpu, groups=groups)


def _version(reported: str | None) -> Engine:
    """Return vLLM in the version that an engine reports, the newest if it reports none."""
    try:
        return parse_engine(f"vllm@{reported}" if reported else DEFAULT_ENGINE)
    except UsageError:  # no version, such as "dev"
        return parse_engine(DEFAULT_ENGINE)


def _drafter(request: ValidateRequest) -> Drafter | None:
    """Return the drafter of a running server; a server that is started has none."""
    if request.python is not None:
        return None
    if request.where is not None:
        return request.where.engine.drafter
    tuned = request.advice.deployment if request.advice else None
    return parse_engine(tuned.engine).drafter if tuned else None


def _running_server(
    options: ValidateOptions, choose: Choose, advice: PolicyFile | None
) -> EngineAtHand:
    """Return the running server; its blocks are as stated, or as its metrics report them.

    `choose` returns the requests to replay, given the longest that the server can hold. A
    recommendation names the groups of the model's layers. The server is taken to schedule ahead, as
    vLLM does on all devices but CPUs.
    """
    from kvscope.serving.client import Endpoint, block_pool
    from kvscope.validate.result import EngineFacts
    from kvscope.validate.validate import running_server

    endpoint = Endpoint(str(options.url), timeout_s=options.timeout)
    served = endpoint.model(options.served_model)
    pool = block_pool(endpoint.metrics())
    size = options.engine_block_size or (pool and pool.block_size)
    blocks = options.capacity_blocks or (pool and pool.usable_blocks)
    if not size or not blocks:
        raise UsageError(
            "the server does not report its blocks",
            where="--capacity-blocks, --engine-block-size",
            remedy="state how many it has, and their size",
        )
    sample = choose(_longest(served.max_model_len, blocks * size))
    facts = EngineFacts("server", endpoint.version(), None, served.name, blocks, size)
    tuned, groups = advice.deployment if advice else None, None
    if tuned is not None and tuned.kv_groups:
        groups = KvGroups.parse(tuned.kv_groups).in_blocks_of(size)
    opened = running_server(endpoint, served)
    return EngineAtHand(facts, opened, sample, overlapped=True, groups=groups)


def _blocks(replica: ValidatedReplica, size: int, monitor: Monitor) -> int:
    """Return the number of blocks of `size` tokens in the engine's pool, at least 1.

    The pool has `scale` times the tokens of the replica's; note it if that is a reduction.
    """
    assert replica.tokens is not None  # noqa: S101  (checked with the options)
    blocks = max(1, round(replica.tokens * replica.scale / size))
    if replica.scale < 1:
        monitor.note(
            f"the cache is scaled down as the trace is, to {blocks:,} blocks of {size} tokens"
        )
    return blocks


def _longest(limit: object, tokens: int) -> int:
    """Return the longest request: a cache's `tokens`, but below a context `limit` (if known)."""
    return min(limit - 1, tokens) if isinstance(limit, int) else tokens


def _advice(options: ValidateOptions, note: Note) -> PolicyFile | None:
    """Return the policy file: as named, else ./recommendation.toml (not for LRU alone), or None."""
    from kvscope.tuning.file import read_policy_file

    if options.replay == "lru" and options.recommendation is None:
        return None
    path = _advice_path(options)
    if options.recommendation is None and not path.is_file():
        if options.replay == "recommendation":
            raise InputError("no such file", where=str(path), remedy="`kvscope tune` writes it")
        note(f"no {path} here: only LRU is validated")
        return None
    advice = read_policy_file(path)
    if advice.tier is not None and options.replay != "lru":
        raise UsageError(
            "it recommends a tier, which validate does not start",
            where=str(path),
            remedy="validate the pool alone with --replay lru, or name another file",
        )
    if ranks := advice.deployment and advice.deployment.dp:
        raise UsageError(
            f"it is for {ranks} ranks of one engine, which validate does not start",
            where=str(path),
            remedy="name a file for an engine without --dp",
        )
    if options.recommendation is None:
        note(f"using {path} of this folder: {advice.policy.name}, for the trace {advice.trace}")
    return advice


def _advice_path(options: ValidateOptions) -> Path:
    return Path(options.recommendation or DEFAULT_RECOMMENDATION)


def _profile(latency: str | None, advice: PolicyFile | None, note: Note) -> LatencyProfile | None:
    """Return the profile `latency`, else the advice's, else ./latency.toml; None without one."""
    if latency is not None:
        return latency_profile(latency)
    if advice is not None and advice.profile is not None:
        return advice.profile
    if Path(DEFAULT_PROFILE_FILE).is_file():
        note(f"using {DEFAULT_PROFILE_FILE} of this folder as --latency")
        return latency_profile(DEFAULT_PROFILE_FILE)
    note("no --latency: TTFT is not judged; `kvscope calibrate` measures yours")
    return None


def _runs(
    options: ValidateOptions,
    advice: PolicyFile | None,
    monitor: Monitor,
    pace: Pace,
    engine: EngineAtHand,
) -> list[PolicyRun]:
    """Return the policies to run: LRU, the recommended one, or both."""
    from kvscope.validate.validate import PolicyRun, recommended_run

    if options.url is not None and options.replay == "both":  # it runs what it was started with
        monitor.note("the server is assumed to evict by LRU; if not, use --replay recommendation")
        return [PolicyRun()]
    if advice is None or options.replay == "lru":
        return [PolicyRun()]
    best = recommended_run(
        advice,
        _advice_path(options),
        overlapped=engine.overlapped,
        trace_clock=pace.kind == "sequential",
        groups=engine.groups,
    )
    if options.url is not None:
        return [PolicyRun(advice.policy, fitted=advice.fitted)]
    if best.policy.name == "lru" or options.replay == "recommendation":
        return [best]
    return [PolicyRun(), best]


def known_figures(request: ValidateRequest) -> Known:
    """Return the names of the verdicts and of the measured figures.

    A name without a policy means the recommended policy, or LRU if LRU ran alone.
    """
    from kvscope.validate.result import Verdict  # loads NumPy

    return Known((*_FIGURES, *(f"{BASELINE}.{name}" for name in _FIGURES)), get_args(Verdict))


def validation_figures(validation: Validation) -> Figures:
    """Return the verdict and the measured figures of each policy, over all its repeats."""
    by_policy: dict[str, list[RunFacts]] = {}
    for run in validation.runs:
        by_policy.setdefault(run.policy, []).append(run)
    figures: dict[str, float | str | None] = {VERDICT: validation.verdict}
    for policy, repeats in by_policy.items():  # LRU first
        measured = _measured(repeats, validation)
        figures |= measured | {f"{policy}.{name}": value for name, value in measured.items()}
    return figures


def _measured(repeats: Sequence[RunFacts], validation: Validation) -> dict[str, float]:
    """Return the measured figures of one policy; a request without an answer misses the SLO."""
    import numpy as np

    times_s = np.concatenate([run.measured_ttft_s[run.counted] for run in repeats])
    failed = sum(request >= validation.warmup for run in repeats for request in run.failed)
    measured = [run.measured for run in repeats]
    figures = ttft_figures(percentiles(np.append(times_s, [np.inf] * failed) * 1e3))
    if (slo_s := validation.slo_s) is not None:
        figures["attainment"] = int(np.count_nonzero(times_s <= slo_s)) / (len(times_s) + failed)
        figures["tel"] = float(np.maximum(times_s - slo_s, 0).sum())
    off = [run.mismatched_tokens for run in repeats if run.mismatched_tokens is not None]
    if len(off) == len(repeats):  # the engine reports its hits
        tokens = validation.sample.prompts.input_tokens
        hits = sum(run.hit_tokens for run in measured)
        predicted = sum(run.predicted.hit_tokens for run in repeats)
        figures["hit-rate"] = hits / sum(
            int(tokens[: len(run.counted)][run.counted].sum(dtype=np.int64)) for run in repeats
        )
        figures["mismatched"] = sum(off) / predicted if predicted else float(sum(off) > 0)
    return figures


def _unfinished(validation: Validation) -> str:
    if not validation.ended:
        return ""
    return f"ended early: {validation.ended}; what was measured until then is kept"


USE_CASE: UseCase[ValidateOptions, ValidateRequest, Validation] = UseCase(
    name="validate",
    title="kvscope validate",
    options=ValidateOptions,
    check=validate_request,
    run=run,
    table="runs",
    reporting="validation",
    sections=("validation", "runs", "measured-on"),
    known=known_figures,
    figures=validation_figures,
    stops=True,
    unfinished=_unfinished,
    fails=lambda validation: validation.verdict == "not confirmed",
)

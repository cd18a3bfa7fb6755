"""`kvscope validate`: does a real engine do what the simulator says?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.engine_options import (
    TEN_MINUTES_S,
    EngineBlockSize,
    EngineModel,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Python,
    ServedModel,
    ServerLog,
    StartTimeout,
    Timeout,
    Url,
    VllmFlags,
    last_lines_shown,
    show_log,
)
from kvscope.cli.interrupts import stop_on_interrupt
from kvscope.cli.loading import load_trace
from kvscope.cli.options import (
    AS_IT_SAYS,
    DEFAULT_DB,
    Db,
    Html,
    Json,
    Reading,
    TraceArgument,
    with_reading,
)
from kvscope.cli.progress import progress
from kvscope.cli.simulate_options import Latency, RateScale, Slo
from kvscope.cli.validate_engine import Wanted, engine_for, forced
from kvscope.cli.validate_options import (
    EngineBlocks,
    InFlight,
    MaxRequests,
    Minutes,
    Outputs,
    Policies,
    Recommended,
    Repeats,
    Sequential,
    Share,
    Tolerance,
    Warmup,
)
from kvscope.core.errors import ExitCode, InputError, UsageError
from kvscope.core.files import write_text

if TYPE_CHECKING:
    from threading import Event

    from kvscope.core.trace import Trace
    from kvscope.latency.profile import LatencyProfile
    from kvscope.store.db import Store
    from kvscope.tuning.file import PolicyFile
    from kvscope.validate.policies import PolicyRun
    from kvscope.validate.replay import Pace
    from kvscope.validate.request_share import Part
    from kvscope.validate.result import Validation

DEFAULT_RECOMMENDATION = "recommendation.toml"


@with_reading
def validate(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    url: Url = None,
    model: EngineModel = None,
    python: Python = None,
    policies: Policies = "both",
    recommendation: Recommended = None,
    blocks: EngineBlocks = None,
    engine_block_size: EngineBlockSize = None,
    latency: Latency = None,
    slo: Slo = None,
    sequential: Sequential = False,
    in_flight: InFlight = None,
    rate_scale: RateScale = 1.0,
    share: Share = 1.0,
    minutes: Minutes = None,
    max_requests: MaxRequests = None,
    warmup: Warmup = 0.2,
    repeats: Repeats = 1,
    outputs: Outputs = None,
    tolerance: Tolerance = 0.1,
    served_model: ServedModel = None,
    max_num_seqs: MaxNumSeqs = 128,
    max_num_batched_tokens: MaxNumBatchedTokens = 2048,
    vllm_flags: VllmFlags = None,
    start_timeout: StartTimeout = TEN_MINUTES_S,
    timeout: Timeout = TEN_MINUTES_S,
    server_log: ServerLog = None,
    html: Html = None,
    as_json: Json = False,
    reading: Reading = AS_IT_SAYS,
) -> None:
    """Replay the trace on a real engine: prediction beside measurement, for LRU and what tune says.

    Exit code 4: outside the tolerance. 5: the engine cannot be reached, or died.
    """
    if (url is None) == (model is None):
        raise UsageError(
            "name one of them",
            where="--url, --model",
            remedy="a server that runs already, or the model to start vLLM with",
        )
    from kvscope.app.requests import above_zero

    pace = _pace(sequential, in_flight, above_zero(rate_scale))
    wanted = Wanted(
        url=url,
        model=model,
        served_model=served_model,
        python=python,
        policies=policies,
        recommendation=recommendation,
        blocks=blocks,
        block_size=engine_block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        flags=vllm_flags or (),
        outputs=outputs,
        share=share,
        minutes=minutes,
        max_requests=max_requests,
        start_s=start_timeout,
        timeout_s=timeout,
        log_path=server_log,
        seed=reading.seed,
    )
    from kvscope.store.db import open_store
    from kvscope.store.results import add_validation

    with open_store(db) as store:
        found = load_trace(store, trace, reading)
        with stop_on_interrupt() as stop, last_lines_shown():
            result = _validated(
                store, found, wanted, pace, latency, slo, warmup, tolerance, repeats, stop
            )
        add_validation(store, found, result)
    _report(found, result, html, as_json=as_json)
    if stop.is_set():
        raise typer.Exit(ExitCode.INTERRUPTED)
    if result.ended:
        raise typer.Exit(ExitCode.ENGINE)
    if result.verdict == "not confirmed":
        raise typer.Exit(ExitCode.TOLERANCE)


def _pace(sequential: bool, in_flight: int | None, rate_scale: float) -> Pace:
    from kvscope.validate.replay import Pace

    if sequential and in_flight:
        raise UsageError("contradict each other", where="--sequential, --in-flight")
    if (sequential or in_flight) and rate_scale != 1:
        raise UsageError(
            "needs the recorded times", where="--rate-scale", remedy="leave it or the other out"
        )
    if sequential:
        return Pace("sequential")
    if in_flight:
        return Pace("in-flight", in_flight)
    return Pace("recorded", rate_scale=rate_scale)


def _validated(
    store: Store,
    trace: Trace,
    wanted: Wanted,
    pace: Pace,
    latency: str | None,
    slo_s: float | None,
    warmup: float,
    tolerance: float,
    repeats: int,
    stop: Event,
) -> Validation:
    from kvscope.app.traces import replayable
    from kvscope.validate.validate import Asked
    from kvscope.validate.validate import validate as validated
    from kvscope.vllm_sim import EngineSettings

    prompts = replayable(store, trace)
    advice, path = _recommendation(wanted)
    profile = _profile(latency, advice)
    target = advice.target if advice else None
    if slo_s is not None and target is None:
        from kvscope.tuning.target import Target

        target = Target(slo_s)
    engine, opened, part, has = engine_for(
        prompts, wanted, advice.capacity_tokens if advice else None, stop
    )
    overlapped = has is not None and has.device == "cuda"
    question = Asked(
        part=part,
        pace=pace,
        profile=profile,
        settings=EngineSettings(
            engine.blocks,
            wanted.max_num_seqs,
            wanted.max_num_batched_tokens,
            async_scheduling=overlapped and "--no-async-scheduling" not in wanted.flags,
        ),
        block_size=engine.block_size,
        forced=forced(wanted),
        target=target,
        slo_s=slo_s if slo_s is not None else target.slo_s if target else None,
        warmup=warmup,
        tolerance=tolerance,
        repeats=repeats,
        seed=wanted.seed,
    )
    told_time = pace.kind == "sequential"
    runs = _runs(wanted, advice, path, overlapped=overlapped, told_time=told_time)
    _say(part, question.forced)
    return validated(
        question, engine, runs, opened, progress=_steps, last_words=show_log, stop=stop
    )


def _recommendation(wanted: Wanted) -> tuple[PolicyFile | None, Path | None]:
    """Return the policy file that is named, or the recommendation in this folder, if any."""
    from kvscope.tuning.file import read_policy_file

    if wanted.policies == "lru" and wanted.recommendation is None:
        return None, None
    path = Path(wanted.recommendation or DEFAULT_RECOMMENDATION)
    if wanted.recommendation is None and not path.is_file():
        if wanted.policies == "recommendation":
            raise InputError("no such file", where=str(path), remedy="`kvscope tune` writes it")
        note(f"no {path} here: LRU alone is validated")
        return None, None
    advice = read_policy_file(path)
    if wanted.recommendation is None:
        note(f"taking {path}, which lies here: {advice.policy.name}, for the trace {advice.trace}")
    return advice, path


def _profile(latency: str | None, advice: PolicyFile | None) -> LatencyProfile:
    from kvscope.app.requests import latency_profile

    if latency is None and advice is not None and advice.profile is not None:
        return advice.profile
    if latency is None and Path("latency.toml").is_file():
        note("taking latency.toml, which lies here, as --latency")
        return latency_profile("latency.toml")
    if latency is None:
        note("no --latency: TTFT is predicted with a preset; `kvscope calibrate` measures yours")
    return latency_profile(latency)


def _runs(
    wanted: Wanted,
    advice: PolicyFile | None,
    path: Path | None,
    *,
    overlapped: bool,
    told_time: bool,
) -> list[PolicyRun]:
    from kvscope.validate.policies import PolicyRun, lru, recommended

    if wanted.url is not None and wanted.policies == "both":  # it runs what it was started with
        note("the server is taken to evict by LRU; if not, see --policies recommendation")
        return [lru()]
    if advice is None or path is None or wanted.policies == "lru":
        return [lru()]
    best = recommended(advice, path, overlapped=overlapped, told_time=told_time)
    if wanted.url is not None:
        return [PolicyRun(advice.policy, fitted=advice.fitted)]
    if best.policy.name == "lru" or wanted.policies == "recommendation":
        return [best]
    return [lru(), best]


def _say(part: Part, forced: bool) -> None:
    """What is not replayed as it is recorded."""
    if part.too_long:
        note(f"{part.too_long:,} requests are longer than the engine takes, and are left out")
    if not forced:
        note(
            "outputs are the engine's own: what later turns carry of them is not hit,"
            " and predicted so"
        )


def _steps(label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    return progress(label, total, unit="steps")


def _report(trace: Trace, found: Validation, html: str | None, *, as_json: bool) -> None:
    from kvscope.report.validation import html_report, sections

    if as_json:
        from kvscope.app.documents.engines import validate_document

        output.emit_json(validate_document(trace, found))
    else:
        from kvscope.cli.rendering import show_report

        show_report(trace, sections(found))
    if html is not None:
        write_text(Path(html), html_report(trace, found))
        note(f"report written to {html}")
    if found.ended:
        note(f"ended early: {found.ended}; what was measured until then is kept")

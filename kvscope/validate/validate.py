"""Validate a trace on an engine: the policies to run, the engine, the runs and the verdict."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.core.errors import EngineError, Stopped, UsageError
from kvscope.core.trace import Trace
from kvscope.deployment.kv_groups import KvGroups
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.learners import FittedTable
from kvscope.learning.observer import NOTHING, UNFIT
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru, LruRetention
from kvscope.policies.registry import plugin_policies
from kvscope.serving.client import Endpoint, ModelCard, block_pool, completion
from kvscope.serving.server import EngineDied, Launch, VllmServer
from kvscope.tuning.file import PolicyFile
from kvscope.tuning.flags import flags, retention_arguments
from kvscope.tuning.target import Target
from kvscope.validate.predict import compare_run, predict
from kvscope.validate.replay import Pace, TraceReplay
from kvscope.validate.result import EngineFacts, RunFacts, Validation, judge
from kvscope.validate.tokens import BEHIND, FIRST, TokenTrace, TraceSample
from kvscope.vllm_sim import EngineSettings

RECOMMENDATION = "KVSCOPE_RECOMMENDATION"
CACHE_STUDY = "KVSCOPE_CACHE_STUDY"
CLOCK, BY_REQUESTS = "KVSCOPE_CLOCK", "requests"
WARM_UP_TOKENS = (16, 256, 1024)
_PLUGIN = "kvscope.vllm_plugin"
_SEED_BITS = 48
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class PolicyRun(Struct, frozen=True):
    """A policy, the flags and the environment by which vLLM runs it, and its fitted table."""

    policy: Policy = field(default_factory=Lru)
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    fitted: FittedTable | None = None


def recommended_run(
    file: PolicyFile,
    path: Path,
    *,
    overlapped: bool,
    trace_clock: bool = False,
    groups: KvGroups | None = None,
) -> PolicyRun:
    """Return the run of the policy in the file at `path`.

    `overlapped`: vLLM schedules a step during the previous one. With `trace_clock`, the policy's
    clock follows the arrival times that requests carry (pace `sequential`). `groups` are a hybrid
    model's KV groups. Raises UsageError for a policy that vLLM cannot run, or not with this model.
    """
    if flags(file.policy).vllm is None:
        raise UsageError(
            f"neither vLLM nor kvscope's plugin runs {file.policy.name}",
            where=str(path),
            remedy=f"tune with --policy {plugin_policies()}",
        )
    if file.policy.name == Lru.name:
        return PolicyRun()
    if isinstance(file.policy, LruRetention):
        if groups is None:
            raise UsageError(
                "keeps more windows or states, which this model does not have",
                where=f"{path}: {file.policy.name}",
                remedy="name the folder of the hybrid model that it was tuned for with --model",
            )
        return PolicyRun(file.policy, retention_arguments(file.policy, groups))
    scheduler = "KvscopeAsyncScheduler" if overlapped else "KvscopeScheduler"
    environment = {RECOMMENDATION: str(path.resolve()), CACHE_STUDY: "1"}  # here it is checked
    return PolicyRun(
        file.policy,
        ("--scheduler-cls", f"{_PLUGIN}.{scheduler}"),
        environment | ({CLOCK: BY_REQUESTS} if trace_clock else {}),
        file.fitted,
    )


def interleaved(runs: list[PolicyRun], repeats: int) -> list[tuple[int, PolicyRun]]:
    """Return each run `repeats` times, as A B B A A B ..., so that drift affects all alike."""
    return [
        (repeat, run) for repeat in range(repeats) for run in (runs[::-1] if repeat % 2 else runs)
    ]


class ValidationPlan(Struct, frozen=True):
    """Requests to replay, the simulated engine, and the limits of the verdict.

    `warmup` is the share of first requests that only fill the cache. `forced`: the engine must
    output the trace's answers. `block_size` is the engine's; `profiled`: `profile` is no default.
    """

    trace: Trace
    deployment: Mapping[str, Any] | None
    sample: TraceSample
    pace: Pace
    profile: LatencyProfile
    settings: EngineSettings
    block_size: int
    forced: bool
    target: Target | None
    slo_s: float | None
    warmup: float
    tolerance: float
    repeats: int
    seed: int = 0
    profiled: bool = True

    @property
    def warmup_requests(self) -> int:
        """Return the number of requests that only fill the cache."""
        return int(self.warmup * len(self.sample.prompts.leaf))


class RunningEngine(Struct, frozen=True):
    """An engine that answers, its model, and `died`, which returns an error once it is dead.

    `seed` is added to the tokens' seed, so that no token is cached if the trace was sent before.
    """

    endpoint: Endpoint
    model: ModelCard
    died: Callable[[], EngineDied | None]
    seed: int = 0


EngineOpener = Callable[[PolicyRun], AbstractContextManager[RunningEngine]]


def own_vllm(
    launch: Launch, server_of: Callable[[Launch], VllmServer], state_tokens: int = 0
) -> EngineOpener:
    """Return an opener: for a `PolicyRun`, a context manager of a vLLM with it (`RunningEngine`).

    The opener raises EngineError if the vLLM that it started does not run the policy, or reports
    another block size than `state_tokens`: of a model with linear attention, the size in tokens
    that was predicted, as on a GPU (on CPUs, states may need larger blocks); 0: not checked.
    """

    @contextmanager
    def open_engine(run: PolicyRun) -> Iterator[RunningEngine]:
        started = replace(
            launch,
            flags=(*launch.flags, *run.flags),
            environment={**launch.environment, **run.environment},
        )
        with server_of(started) as server:
            if run.environment:
                _check_policy_runs(server.log())
            pool = block_pool(server.endpoint.metrics()) if state_tokens else None
            if pool is not None and pool.block_size != state_tokens:
                raise EngineError(
                    f"has blocks of {pool.block_size} tokens, not the {state_tokens} of a GPU",
                    where="vLLM",
                    remedy="CPUs may keep states in 32 bits: add"
                    " --vllm-flags '--mamba-ssm-cache-dtype bfloat16'",
                )

            def died() -> EngineDied | None:
                if server.endpoint.healthy():
                    return None
                return server.died("in the middle of the replay")

            yield RunningEngine(server.endpoint, server.endpoint.model(), died)

    return open_engine


def _check_policy_runs(log: str) -> None:
    """Raise EngineError where an engine's log says that it does not run the policy."""
    for line in log.splitlines():
        for mark in (NOTHING, UNFIT):
            if mark in line:
                raise EngineError(
                    line[line.index(mark) :], where="vLLM", remedy="see docs/run-it.md"
                )


def running_server(endpoint: Endpoint, model: ModelCard) -> EngineOpener:
    """Return an opener of a server that is already running.

    Its cache may hold anything: as each opening has a random `seed`, it holds no token of a run.
    """

    @contextmanager
    def open_engine(run: PolicyRun) -> Iterator[RunningEngine]:
        yield RunningEngine(endpoint, model, lambda: None, secrets.randbits(_SEED_BITS))

    return open_engine


def validate(
    plan: ValidationPlan,
    engine: EngineFacts,
    runs: list[PolicyRun],
    open_engine: EngineOpener,
    *,
    progress: Progress,
    show_log: Callable[[tuple[str, ...]], None],
    stop: Event,
) -> Validation:
    """Replay the trace `plan.repeats` times with every policy; return the comparison and verdict.

    If the engine dies or `stop` is set, the runs until then are judged; `show_log` gets the last
    lines of a dead engine. Raises EngineError if the first run fails without a measurement, and
    Stopped if `stop` is set before it.
    """
    prompts = plan.sample.prompts
    done: list[RunFacts] = []
    ended = ""
    for repeat, run in interleaved(runs, plan.repeats):
        if stop.is_set():
            if not done:
                raise Stopped("stopped before the first run")
            ended = "interrupted"
            break
        label = f"{run.policy.name}, run {repeat + 1} of {plan.repeats}"
        try:
            with progress(label, len(prompts.leaf)) as advance, open_engine(run) as running:
                done.append(_replay(plan, run, repeat, running, advance, stop))
                stopped = done[-1].ended and not stop.is_set()
                if stopped and (dead := running.died()) is not None:
                    show_log(dead.log)
                    done[-1] = replace(done[-1], ended=str(dead))
        except EngineError as error:
            if not done:
                raise
            if isinstance(error, EngineDied):
                show_log(error.log)
            ended = str(error)
        except KeyboardInterrupt:
            if not done:
                raise
            ended = "interrupted"
        ended = ended or done[-1].ended
        if ended:
            break
    checks, gains, verdict = judge(
        done,
        prompts.conversation,
        baseline=Lru.name,
        target=plan.target,
        tolerance=plan.tolerance,
        sequential=plan.pace.kind == "sequential",
        profiled=plan.profiled,
    )
    return Validation(
        trace=plan.trace,
        deployment=plan.deployment,
        engine=engine,
        pace=plan.pace.in_words,
        forced_outputs=plan.forced,
        latency=plan.profile.name,
        tolerance=plan.tolerance,
        slo_s=plan.slo_s,
        verdict="inconclusive" if ended and verdict == "confirmed" else verdict,
        ended=ended,
        runs=tuple(done),
        warmup=plan.warmup_requests,
        sample=plan.sample,
        compared=gains,
        checks=checks,
    )


def _replay(
    plan: ValidationPlan,
    run: PolicyRun,
    repeat: int,
    engine: RunningEngine,
    advance: Callable[[int], None],
    stop: Event,
) -> RunFacts:
    seed = plan.seed + repeat + engine.seed
    trace = TokenTrace(plan.sample.prompts, forced=plan.forced, seed=seed)
    sent = trace.sent(plan.block_size)
    _warm_up(engine, seed, int(sent.input_tokens.max()))
    endpoint, model = engine.endpoint, engine.model.name
    measured = TraceReplay(endpoint, model, trace, plan.pace, advance, stop).run()
    predicted = predict(
        sent, run.policy, plan.settings, plan.profile, plan.pace, measured, fitted=run.fitted
    )
    facts = compare_run(
        sent,
        run.policy,
        predicted,
        measured,
        warmup=plan.warmup_requests,
        slo_s=plan.slo_s,
        repeat=repeat,
        flags=run.flags,
    )
    return replace(facts, numbers=plan.sample.numbers)


def _warm_up(engine: RunningEngine, seed: int, longest: int) -> None:
    """Send prompts of up to `longest` tokens, not of the trace; empty the cache if possible."""
    rng = np.random.default_rng([seed, 2])
    for tokens in WARM_UP_TOKENS:
        prompt = [int(token) for token in rng.integers(FIRST, BEHIND, min(tokens, longest))]
        answer = engine.endpoint.complete(completion(engine.model.name, prompt, 2))
        if answer.error:
            raise engine.died() or EngineError(
                f"refuses a prompt: {answer.error}",
                where=engine.endpoint.url,
                remedy="see the server's log",
            )
    engine.endpoint.reset_cache()

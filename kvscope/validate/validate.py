"""From a trace and an engine to a verdict."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from threading import Event

import numpy as np

from kvscope.core.errors import EngineError
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.serving.client import Endpoint, ModelCard, completion
from kvscope.serving.interpreter import Interpreter
from kvscope.serving.server import EngineDied, Launch, VllmServer
from kvscope.tuning.target import Target
from kvscope.validate.policies import PolicyRun, check_steered, interleaved
from kvscope.validate.predict import compared, predict
from kvscope.validate.replay import Measurement, Pace, replay
from kvscope.validate.request_share import Part
from kvscope.validate.result import EngineFacts, RunFacts, Validation
from kvscope.validate.tokens import BEHIND, FIRST, TokenTrace
from kvscope.validate.verdict import judged
from kvscope.vllm_sim import EngineSettings

_SEED_BITS = 48
_WHEN = "in the middle of the replay"
WARM_UP_TOKENS = (16, 256, 1024)
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be validated.

    `warmup` is the share of the requests, the first ones, that only fill the cache; `forced` and
    `block_size` as in `TokenTrace` and of the engine.
    """

    part: Part
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


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that answers: where, what it serves, and how to tell why it died.

    `seed` is added to that of the tokens, so that one that has served the trace knows none of them.
    """

    endpoint: Endpoint
    served: ModelCard
    died: Callable[[], EngineDied | None]
    seed: int = 0


Open = Callable[[PolicyRun], AbstractContextManager[Running]]


def own_vllm(
    launch: Launch,
    has: Interpreter,
    *,
    start_s: float,
    timeout_s: float,
    log_path: str | None,
    stop: Event,
) -> Open:
    """Opens a vLLM of its own for each policy."""

    @contextmanager
    def opened(run: PolicyRun) -> Iterator[Running]:
        wanted = replace(
            launch,
            flags=(*launch.flags, *run.flags),
            environment={**launch.environment, **run.environment},
        )
        with VllmServer(
            wanted, has, start_s=start_s, timeout_s=timeout_s, log_path=log_path, stop=stop
        ) as server:
            check_steered(run, server.log())

            def died() -> EngineDied | None:
                return None if server.endpoint.healthy() else server.died(_WHEN)

            yield Running(server.endpoint, server.endpoint.model(), died)

    return opened


def running_already(endpoint: Endpoint, served: ModelCard) -> Open:
    """Takes the one server that there is, whatever it has served before."""

    @contextmanager
    def opened(run: PolicyRun) -> Iterator[Running]:
        yield Running(endpoint, served, lambda: None, secrets.randbits(_SEED_BITS))

    return opened


def validate(
    asked: Asked,
    engine: EngineFacts,
    runs: list[PolicyRun],
    opened: Open,
    *,
    progress: Progress,
    last_words: Callable[[tuple[str, ...]], None],
    stop: Event,
) -> Validation:
    """Replay the trace with every policy as often as asked, and compare.

    Where the engine dies or `stop` is set, what was measured until then is judged. Raises
    EngineError where there is nothing.
    """
    warmup = int(asked.warmup * len(asked.part.prompts.leaf))
    done: list[RunFacts] = []
    ended = ""
    for repeat, run in interleaved(runs, asked.repeats):
        if stop.is_set():
            ended = "interrupted"
            break
        label = f"{run.policy.name}, run {repeat + 1} of {asked.repeats}"
        try:
            with (
                progress(label, len(asked.part.prompts.leaf)) as advance,
                opened(run) as engine_now,
            ):
                done.append(_one(asked, run, repeat, engine_now, warmup, advance, stop))
                stopped = done[-1].ended and not stop.is_set()
                if stopped and (dead := engine_now.died()) is not None:
                    last_words(dead.log)
                    done[-1] = replace(done[-1], ended=str(dead))
        except EngineError as error:
            if not done:
                raise
            if isinstance(error, EngineDied):
                last_words(error.log)
            ended = str(error)
        except KeyboardInterrupt:
            if not done:
                raise
            ended = "interrupted"
        ended = ended or done[-1].ended
        if ended:
            break
    checks, found, verdict = judged(
        done,
        asked.part.prompts.conversation,
        baseline=Lru.name,
        target=asked.target,
        tolerance=asked.tolerance,
        sequential=asked.pace.kind == "sequential",
    )
    if ended and verdict == "confirmed":
        verdict = "inconclusive"
    return Validation(
        engine=engine,
        pace=asked.pace.in_words,
        forced_outputs=asked.forced,
        latency=asked.profile.name,
        tolerance=asked.tolerance,
        slo_s=asked.slo_s,
        warmup=warmup,
        part=asked.part,
        runs=tuple(done),
        compared=found,
        checks=checks,
        verdict=verdict,
        ended=ended,
    )


def _one(
    asked: Asked,
    run: PolicyRun,
    repeat: int,
    engine: Running,
    warmup: int,
    advance: Callable[[int], None],
    stop: Event,
) -> RunFacts:
    seed = asked.seed + repeat + engine.seed
    trace = TokenTrace(asked.part.prompts, forced=asked.forced, seed=seed)
    sent = trace.sent(asked.block_size)
    _warm_up(engine, seed, int(sent.input_tokens.max()))
    measured: Measurement = replay(
        engine.endpoint, engine.served.name, trace, asked.pace, advance=advance, stop=stop
    )
    predicted = predict(
        sent,
        run.policy,
        asked.settings,
        asked.profile,
        asked.pace,
        measured,
        fitted=run.fitted,
    )
    return compared(
        sent,
        run.policy,
        predicted,
        measured,
        warmup=warmup,
        slo_s=asked.slo_s,
        repeat=repeat,
        flags=run.flags,
    )


def _warm_up(engine: Running, seed: int, longest: int) -> None:
    """Some prompts that the trace does not have, then an empty cache where the engine lets one."""
    rng = np.random.default_rng([seed, 2])
    for tokens in WARM_UP_TOKENS:
        body = completion(
            engine.served.name,
            [int(token) for token in rng.integers(FIRST, BEHIND, min(tokens, longest))],
            2,
        )
        answer = engine.endpoint.complete(body)
        if answer.error:
            dead = engine.died()
            raise dead or EngineError(
                f"refuses a prompt: {answer.error}",
                where=engine.endpoint.url,
                remedy="see what the server says",
            )
    engine.endpoint.reset_cache()

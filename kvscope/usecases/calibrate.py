"""Measure the time to first token of an engine and write latency.toml for simulate and tune.

On a running server (--url), on a vLLM that is started for it (--model), or on plain torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvscope.app.engine_options import (
    CPU_BLOCK,
    GPU_BLOCK,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    EngineOptions,
)
from kvscope.app.options import Count, Seed, Tokens, option
from kvscope.core.errors import UsageError
from kvscope.usecases.base import Opened, ResultFile, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.latency.calibration import CalibratedEngine, Calibration, Measurable
    from kvscope.serving.client import Endpoint

DEFAULT_LONGEST = 4096

OpenEngine = tuple["Measurable", "CalibratedEngine", int, int]
"""An engine to measure, its record, its longest prompt and its room for contexts (tokens)."""


class CalibrateOptions(EngineOptions, frozen=True, kw_only=True):
    """Options of `calibrate`: the engine, and what to measure.

    `max_tokens` is the longest prompt, `repeats` the number of measurements of each cell (a pair of
    token counts), and `name` the name of the profile in its file.
    """

    backend: Literal["vllm", "torch"] = option(
        "What to start for --model: vLLM, or a plain torch decoder with random weights.",
        value="vllm",
    )
    device: Literal["cpu", "cuda", "mps"] | None = option(
        "Device of --backend torch.", default="the best available"
    )
    max_tokens: int | None = Tokens(
        "Longest prompt to measure; take the longest of your traffic.",
        default="4096, or the model's limit",
    )
    repeats: int = Count("Number of measurements of each pair of token counts.", value=5)
    name: str | None = option("Name of the profile in its file.", "NAME")
    seed: int = Seed("Seed of the order, and of the tokens if the engine is started here.", value=0)


def check(options: CalibrateOptions) -> CalibrateOptions:
    """Return the options; UsageError unless just one of --url (not for torch), --model is set."""
    options.check_engine("an engine")
    if options.url is not None and options.backend == "torch":
        raise UsageError("starts no server", where="--backend torch", remedy="leave out --url")
    if options.max_tokens is not None:
        from kvscope.latency.calibration import grid  # late: loads NumPy

        grid(options.max_tokens)
    return options


def run(opened: Opened, options: CalibrateOptions, monitor: Monitor) -> Calibration:
    """Measure an engine and fit a latency profile; a stop keeps the measurements made so far.

    Raises EngineError if the engine cannot be reached, or fails before enough measurements.
    """
    from kvscope.latency.calibration import calibrate as fit_profile
    from kvscope.latency.calibration import grid
    from kvscope.latency.decoding import steps

    if options.url is not None:
        engine = _server(options)
    elif options.backend == "torch":
        engine = _torch(options)
    else:
        engine = _vllm(options, monitor)
    with engine as (measurable, measured, longest, held):
        decoding = steps(longest, held, options.max_num_seqs or MAX_NUM_SEQS)
        cells = options.repeats * (len(grid(longest)) + len(decoding))
        with monitor.steps("measuring", cells) as advance:
            return fit_profile(
                measurable,
                measured,
                longest=longest,
                steps=decoding,
                rounds=options.repeats,
                seed=options.seed,
                name=options.name,
                advance=advance,
                stop=monitor.stop,
            )


@contextmanager
def _server(options: CalibrateOptions) -> Iterator[OpenEngine]:
    from kvscope.latency.calibration import CalibratedEngine
    from kvscope.latency.targets import ServerTarget
    from kvscope.serving.client import Endpoint

    endpoint = Endpoint(str(options.url), timeout_s=options.timeout)
    served = endpoint.model(options.served_model)
    measured = CalibratedEngine("server", endpoint.version(), None, served.name)
    # without a seed: it may have been calibrated before, and still have those tokens in its cache
    target_server = ServerTarget(endpoint, served.name)
    longest = _longest(options.max_tokens, served.max_model_len)
    yield target_server, measured, longest, _held(endpoint)


@contextmanager
def _vllm(options: CalibrateOptions, monitor: Monitor) -> Iterator[OpenEngine]:
    from kvscope.latency.calibration import CalibratedEngine
    from kvscope.latency.targets import ServerTarget
    from kvscope.serving.interpreter import with_vllm
    from kvscope.serving.server import Launch, config_of

    model, python = str(options.model), with_vllm(options.python)
    longest = _longest(options.max_tokens, _limit(config_of(model)))
    default_block = GPU_BLOCK if python.device == "cuda" else CPU_BLOCK
    device = python.device_name or python.device
    monitor.note(f"starting vLLM {python.vllm} on {device}")
    started = Launch(
        model,
        options.engine_block_size or default_block,
        max_model_len=longest + 1,
        max_num_seqs=options.max_num_seqs or MAX_NUM_SEQS,
        max_num_batched_tokens=options.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        flags=options.vllm_flags,
    )
    with options.server(python, monitor.stop)(started) as server:
        served = server.endpoint.model()
        measured = CalibratedEngine(
            "vLLM", python.vllm, device, Path(served.name).name, options.vllm_flags
        )
        sent = ServerTarget(server.endpoint, served.name, seed=options.seed)
        yield sent, measured, longest, _held(server.endpoint)


@contextmanager
def _torch(options: CalibrateOptions) -> Iterator[OpenEngine]:
    from kvscope.latency.calibration import CalibratedEngine
    from kvscope.latency.targets import TorchTarget
    from kvscope.serving.interpreter import with_torch
    from kvscope.serving.server import config_of, model_folder

    model = str(options.model)
    config, folder = config_of(model), model_folder(model)
    if config is None or folder is None:
        raise UsageError(
            f"no folder {model!r}",
            where="--model",
            remedy="name a folder with a config.json: torch takes the shape from there",
        )
    python = with_torch(options.python)
    longest = _longest(options.max_tokens, _limit(config))
    decoder = TorchTarget(
        python,
        folder / "config.json",
        options.device,
        start_s=options.start_timeout,
        timeout_s=options.timeout,
    )
    with decoder:
        device = decoder.description["device"]
        name = python.device_name if device == python.device and python.device_name else device
        measured = CalibratedEngine("torch", python.torch, name, folder.name)
        yield decoder, measured, longest, int(decoder.description["free_tokens"])


def _held(endpoint: Endpoint) -> int:
    """Return the capacity (tokens) of a server's KV pool; 0 if the server does not report it."""
    from kvscope.serving.client import block_pool

    pool = block_pool(endpoint.metrics())
    return pool.usable_blocks * pool.block_size if pool else 0


def _limit(config: dict[str, object] | None) -> int | None:
    """Return the longest context, in tokens, that a model's config.json states."""
    limit = (config or {}).get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def _longest(requested: int | None, limit: int | None) -> int:
    """Return the longest prompt (tokens) to measure: `requested`, by default DEFAULT_LONGEST.

    It has to be below the context `limit` (None: unknown), for a token of output: the default is
    reduced to that, a longer request raises UsageError.
    """
    if requested is None:
        return min(DEFAULT_LONGEST, limit - 1 if limit else DEFAULT_LONGEST)
    if limit is not None and requested >= limit:
        raise UsageError(
            f"the model takes no more than {limit:,} tokens",
            where=f"--max-tokens {requested}",
            remedy=f"take at most {limit - 1}",
        )
    return requested


def _written(calibration: Calibration, path: str, *, force: bool) -> str:
    from kvscope.latency.calibration import write

    write(Path(path), calibration)
    return f"profile written to {path}: pass it to simulate, tune and validate as --latency"


def _unfinished(calibration: Calibration) -> str:
    run = calibration.run
    if not run.ended:
        return ""
    return f"ended early: {run.ended}; fitted to {run.count} of {run.planned} measurements"


USE_CASE: UseCase[CalibrateOptions, CalibrateOptions, Calibration] = UseCase(
    name="calibrate",
    title="kvscope calibrate",
    options=CalibrateOptions,
    check=check,
    run=run,
    table="cells",
    reporting="calibration",
    sections=("latency-profile", "measured-and-fitted", "decoding"),
    takes_trace=False,
    takes_store=False,
    stops=True,
    unfinished=_unfinished,
    file=ResultFile("latency.toml", "", _written, of="profile"),
)

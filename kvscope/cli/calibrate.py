"""`kvscope calibrate`: how long does the first token take on this engine?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.engine_options import (
    CPU_BLOCK,
    GPU_BLOCK,
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
)
from kvscope.cli.interrupts import stop_on_interrupt
from kvscope.cli.options import Json
from kvscope.cli.progress import progress
from kvscope.cli.values import STANDARD_STREAM, amount, parsed_by, target, whole
from kvscope.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from threading import Event

    from kvscope.latency.calibration import Calibration, Measurable, MeasuredEngine

DEFAULT_LONGEST = 4096
DEFAULT_REPEATS = 5
DEFAULT_OUTPUT = "latency.toml"

Backend = Annotated[
    Literal["vllm", "torch"],
    typer.Option(
        "--backend",
        help="What to start for --model: vLLM, or a decoder of plain torch with random weights for"
        " those without vLLM.",
    ),
]
Device = Annotated[
    Literal["cpu", "cuda", "mps"] | None,
    typer.Option("--device", help="Where torch computes.", show_default="the best there is"),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        metavar="TOKENS",
        parser=parsed_by(amount("tokens")),
        help="The longest prompt to measure: as long as those of your traffic.",
        show_default="4096, or the longest that the model takes",
    ),
]
Repeats = Annotated[
    int,
    typer.Option(
        "--repeats",
        metavar="N",
        parser=parsed_by(whole(1)),
        help="How often to measure each pair of token counts.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What to call the profile.", show_default=False),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        parser=parsed_by(whole(0)),
        help="Seed of the order, and of the tokens where the engine is started for it.",
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        metavar="PATH",
        parser=parsed_by(target),
        help="Where to write the profile; - writes none.",
    ),
]


def calibrate(
    url: Url = None,
    model: EngineModel = None,
    backend: Backend = "vllm",
    python: Python = None,
    device: Device = None,
    max_tokens: MaxTokens = None,
    repeats: Repeats = DEFAULT_REPEATS,
    name: Name = None,
    served_model: ServedModel = None,
    block_size: EngineBlockSize = None,
    max_num_seqs: MaxNumSeqs = 128,
    max_num_batched_tokens: MaxNumBatchedTokens = 2048,
    vllm_flags: VllmFlags = None,
    start_timeout: StartTimeout = TEN_MINUTES_S,
    timeout: Timeout = TEN_MINUTES_S,
    server_log: ServerLog = None,
    seed: Seed = 0,
    path: Output = DEFAULT_OUTPUT,
    as_json: Json = False,
) -> None:
    """Measure the time to first token of an engine and write latency.toml for simulate and tune.

    On a server that runs (--url), on a vLLM that is started for it (--model), or on plain torch.
    """
    _one_target(url, model, backend)
    with stop_on_interrupt() as stop, last_lines_shown():
        if url is not None:
            opened = _running(url, served_model, max_tokens, timeout)
        elif backend == "torch":
            opened = _torch(str(model), python, device, max_tokens, (start_timeout, timeout))
        else:
            from kvscope.serving.server import Launch

            wanted = Launch(
                str(model),
                block_size or 0,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                flags=vllm_flags or (),
            )
            opened = _vllm(
                wanted, python, max_tokens, (start_timeout, timeout), server_log, seed, stop
            )
        with opened as (measurable, measured, longest):
            found = _measured(measurable, measured, longest, repeats, seed, name, stop)
    _report(found, path, as_json=as_json)
    if stop.is_set():
        raise typer.Exit(ExitCode.INTERRUPTED)
    if found.run.ended:
        raise typer.Exit(ExitCode.ENGINE)


def _one_target(url: str | None, model: str | None, backend: str) -> None:
    if (url is None) == (model is None):
        raise UsageError(
            "name one of them",
            where="--url, --model",
            remedy="a server that runs already, or the model to start an engine with",
        )
    if url is not None and backend == "torch":
        raise UsageError("starts no server", where="--backend torch", remedy="leave out --url")


@contextmanager
def _running(
    url: str, served_model: str | None, max_tokens: int | None, timeout_s: float
) -> Iterator[tuple[Measurable, MeasuredEngine, int]]:
    from kvscope.latency.calibration import MeasuredEngine
    from kvscope.latency.targets import ServerTarget
    from kvscope.serving.client import Endpoint

    endpoint = Endpoint(url, timeout_s=timeout_s)
    served = endpoint.model(served_model)
    longest = _longest(max_tokens, served.max_model_len)
    measured = MeasuredEngine("server", endpoint.version(), None, served.name)
    # without a seed: it may have been calibrated before, and still have those tokens in its cache
    yield ServerTarget(endpoint, served.name), measured, longest


@contextmanager
def _vllm(
    wanted: Any,
    python: str | None,
    max_tokens: int | None,
    seconds: tuple[float, float],
    log_path: str | None,
    seed: int,
    stop: Event,
) -> Iterator[tuple[Measurable, MeasuredEngine, int]]:
    from dataclasses import replace

    from kvscope.latency.calibration import MeasuredEngine
    from kvscope.latency.targets import ServerTarget
    from kvscope.serving.interpreter import with_vllm
    from kvscope.serving.server import VllmServer, config_of

    has = with_vllm(python)
    config = config_of(wanted.model) or {}
    room = config.get("max_position_embeddings")
    longest = _longest(max_tokens, room if isinstance(room, int) else None)
    size = wanted.block_size or (GPU_BLOCK if has.device == "cuda" else CPU_BLOCK)
    wanted = replace(wanted, block_size=size, max_model_len=longest + 1)
    note(f"starting vLLM {has.vllm} on {has.device_name or has.device}")
    start_s, timeout_s = seconds
    with VllmServer(
        wanted, has, start_s=start_s, timeout_s=timeout_s, log_path=log_path, stop=stop
    ) as server:
        served = server.endpoint.model()
        device = has.device_name or has.device
        measured = MeasuredEngine("vLLM", has.vllm, device, Path(served.name).name, wanted.flags)
        yield ServerTarget(server.endpoint, served.name, seed=seed), measured, longest


@contextmanager
def _torch(
    model: str,
    python: str | None,
    device: str | None,
    max_tokens: int | None,
    seconds: tuple[float, float],
) -> Iterator[tuple[Measurable, MeasuredEngine, int]]:
    from kvscope.latency.calibration import MeasuredEngine
    from kvscope.latency.targets import TorchTarget
    from kvscope.serving.interpreter import with_torch
    from kvscope.serving.server import config_of, model_folder

    config, folder = config_of(model), model_folder(model)
    if config is None or folder is None:
        raise UsageError(
            f"no folder {model!r}",
            where="--model",
            remedy="name a folder with a config.json: torch takes the shape from there",
        )
    has = with_torch(python)
    room = config.get("max_position_embeddings")
    longest = _longest(max_tokens, room if isinstance(room, int) else None)
    start_s, timeout_s = seconds
    decoder = TorchTarget(has, folder / "config.json", device, start_s=start_s, timeout_s=timeout_s)
    with decoder:
        where = decoder.description["device"]
        named = has.device_name if where == has.device and has.device_name else where
        yield decoder, MeasuredEngine("torch", has.torch, named, folder.name), longest


def _longest(asked: int | None, room: int | None) -> int:
    """The longest prompt to measure; one token is to come behind it."""
    if asked is None:
        return min(DEFAULT_LONGEST, room - 1 if room else DEFAULT_LONGEST)
    if room is not None and asked >= room:
        raise UsageError(
            f"the model takes no more than {room:,} tokens",
            where=f"--max-tokens {asked}",
            remedy=f"ask for at most {room - 1}",
        )
    return asked


def _measured(
    measurable: Measurable,
    measured: MeasuredEngine,
    longest: int,
    rounds: int,
    seed: int,
    name: str | None,
    stop: Event,
) -> Calibration:
    from kvscope.latency.calibration import calibrate as calibrated
    from kvscope.latency.calibration import grid

    with progress("measuring", rounds * len(grid(longest)), unit="steps") as advance:
        return calibrated(
            measurable,
            measured,
            longest=longest,
            rounds=rounds,
            seed=seed,
            name=name,
            advance=advance,
            stop=stop,
        )


def _report(found: Calibration, path: str, *, as_json: bool) -> None:
    from kvscope.latency.calibration import write

    if path != STANDARD_STREAM:  # first of all: it took long, and whoever reads may have left
        write(Path(path), found)
    if as_json:
        from kvscope.app.documents.engines import calibrate_document

        output.emit_json(calibrate_document(found))
    else:
        from kvscope.cli.rendering import show_sections
        from kvscope.report.calibration import sections

        output.emit(found.engine.in_words)
        show_sections(sections(found))
    if path != STANDARD_STREAM:
        note(f"profile written to {path}: give it to simulate, tune and validate as --latency")
    run = found.run
    if run.ended:
        note(f"ended early: {run.ended}; fitted to {run.count} of {run.planned} measurements")

"""The options of commands that work with an engine: which one, how started, how long to wait."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from kvscope.cli.diagnostics import say
from kvscope.cli.values import amount, called, parsed_by, positive, whole
from kvscope.core import units

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        parser=parsed_by(called),
        help="An OpenAI-compatible server that runs already, for example http://localhost:8000.",
        show_default=False,
    ),
]
EngineModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        parser=parsed_by(called),
        help="The model to start vLLM with, as vLLM takes it. A folder with nothing but a"
        " config.json gets random weights, which take as long.",
        show_default=False,
    ),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        "--served-model",
        metavar="NAME",
        help="Which of the server's models to ask, where it has several.",
        show_default="its first",
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        parser=parsed_by(called),
        help="The Python interpreter that has the engine.",
        show_default="the one that runs kvscope",
    ),
]
EngineBlockSize = Annotated[
    int | None,
    typer.Option(
        "--engine-block-size",
        metavar="TOKENS",
        parser=parsed_by(whole(1)),
        help="Tokens a block of the engine (vLLM's --block-size).",
        show_default="16 on a GPU, 32 on a CPU",
    ),
]
MaxNumSeqs = Annotated[
    int,
    typer.Option(
        "--max-num-seqs",
        metavar="N",
        parser=parsed_by(whole(1)),
        help="So many requests run at once in the engine.",
    ),
]
MaxNumBatchedTokens = Annotated[
    int,
    typer.Option(
        "--max-num-batched-tokens",
        metavar="TOKENS",
        parser=parsed_by(amount("tokens")),
        help="So many tokens are computed in one step of the engine at most.",
        show_default="2048",
    ),
]
VllmFlags = Annotated[
    Any,  # tuple[str, ...]
    typer.Option(
        "--vllm-flags",
        metavar="FLAGS",
        parser=parsed_by(lambda text: tuple(shlex.split(text))),
        help='More flags for vLLM, for example "--gpu-memory-utilization 0.8".',
        show_default=False,
    ),
]
StartTimeout = Annotated[
    float,
    typer.Option(
        "--start-timeout",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="How long the engine may take to start.",
        show_default="10m",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="How long one request may stay without an answer.",
        show_default="10m",
    ),
]
ServerLog = Annotated[
    str | None,
    typer.Option(
        "--server-log",
        metavar="PATH",
        parser=parsed_by(called),
        help="Keep what vLLM logs in this file.",
        show_default=False,
    ),
]

TEN_MINUTES_S = 600.0
GPU_BLOCK, CPU_BLOCK = 16, 32


@contextmanager
def last_lines_shown() -> Iterator[None]:
    """Show what a server logged last, where it ended by itself in the block."""
    from kvscope.serving.server import EngineDied

    try:
        yield
    except EngineDied as error:
        show_log(error.log)
        raise


def show_log(lines: tuple[str, ...]) -> None:
    """The last lines of a server's log, on stderr."""
    for line in lines:
        say(f"  | {line[:300]}")

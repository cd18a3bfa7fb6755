"""Options and arguments that commands share: the same words, units and help everywhere.

    @with_reading
    def analyze(trace: TraceArgument = None, reading: Reading = AS_IT_SAYS, hbm: Hbm = None): ...

Values arrive parsed: sizes in bytes, durations in seconds. `with_reading` puts the options on how
to read a trace in the place of the parameter `reading`. `--debug` reaches every command through
kvscope.cli.app, which adds it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

import typer

from kvscope.cli import diagnostics
from kvscope.cli.values import called, parsed_by, positive, session_arrivals, target, whole
from kvscope.core import units
from kvscope.core.kv_size import KvDtype as Precision

T = TypeVar("T")

DEFAULT_DB = "kvscope.duckdb"
DEFAULT_MAX_BAD = 0.01


def _debug(chosen: bool) -> None:
    if chosen:
        diagnostics.enable_debug()


TraceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TRACE",
        parser=parsed_by(called),
        help="A path, a stored trace's name, or nothing: the one last worked on.",
        show_default=False,
    ),
]
Db = Annotated[
    str,
    typer.Option(
        "--db",
        metavar="PATH",
        parser=parsed_by(called),
        help="The store that keeps the traces; :memory: keeps nothing.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the traceback behind an error.",
        callback=_debug,
        is_eager=True,
        expose_value=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Whose KV cache: a preset such as llama3-8b, or the path of a config.json.",
        show_default=False,
    ),
]
Hbm = Annotated[
    int | None,
    typer.Option(
        "--hbm",
        metavar="SIZE",
        parser=parsed_by(positive(units.parse_size)),
        help="GPU memory, for example 80GiB: sizes are also shown as multiples of it.",
        show_default=False,
    ),
]
KvDtype = Annotated[
    Precision | None,
    typer.Option(
        "--kv-dtype",
        help="Precision of the KV cache, where it is not the model's own.",
        show_default=False,
    ),
]
Compat = Annotated[
    Literal["kvcache-simulator", "libcachesim"] | None,
    typer.Option("--compat", help="Count hits as this tool does.", show_default=False),
]
Outputs = Annotated[
    Literal["carried", "ignored"],
    typer.Option("--outputs", help="Whether a turn's output stays in the cache for the next."),
]
Warmup = Annotated[
    float,
    typer.Option(
        "--warmup",
        metavar="SHARE",
        parser=parsed_by(units.parse_share),
        help="Share of the requests, the first ones, that fill the cache and are not counted.",
        show_default="0",
    ),
]
Html = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="PATH",
        parser=parsed_by(target),
        help="Also write one self-contained HTML report.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        parser=parsed_by(called),
        help="What to call the trace; by default its file's name.",
        show_default=False,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="The trace's format, where its first lines do not tell.",
        show_default=False,
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        metavar="TOKENS",
        parser=parsed_by(whole(1)),
        help="Tokens a block, where the trace does not say it.",
        show_default=False,
    ),
]
SessionArrivals = Annotated[
    float | None,
    typer.Option(
        "--session-arrivals",
        metavar="poisson:RATE",
        parser=parsed_by(session_arrivals),
        help="When sessions without a common clock begin, for example poisson:0.5/s;"
        " by default one after the other.",
        show_default=False,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", metavar="N", parser=parsed_by(whole(0)), help="Seed of --session-arrivals."
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad line, exit code 3.")]
MaxBad = Annotated[
    float,
    typer.Option(
        "--max-bad",
        metavar="SHARE",
        parser=parsed_by(units.parse_share),
        help="The share of bad lines that is tolerated, for example 1%; more store nothing.",
        show_default="1%",
    ),
]


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a trace that the store does not have yet; each field is an option."""

    name: Name = None
    trace_format: Format = None
    block_size: BlockSize = None
    session_arrivals: SessionArrivals = None
    seed: Seed = 0
    strict: Strict = False
    max_bad: MaxBad = DEFAULT_MAX_BAD

    def given(self) -> list[str]:
        """The options, as they are typed, whose values are not their defaults."""
        told = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        return ["--" + name.removeprefix("trace_").replace("_", "-") for name in told]


AS_IT_SAYS = Reading()


def with_reading(command: Callable[..., T]) -> Callable[..., T]:
    """`command` with the options of `Reading` in the place of its parameter `reading`."""
    options = inspect.signature(Reading, eval_str=True).parameters

    @functools.wraps(command)
    def with_options(**given: Any) -> T:
        reading = Reading(**{name: given.pop(name) for name in options})
        return command(**given, reading=reading)

    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += options.values() if parameter.name == "reading" else [parameter]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_options

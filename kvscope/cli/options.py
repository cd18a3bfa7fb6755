"""Options and arguments that commands share: the same words, units and help everywhere.

    def analyze(trace: TraceArgument = None, db: Db = DEFAULT_DB, hbm: Hbm = None) -> None: ...

Values arrive parsed: sizes in bytes, durations in seconds. `--debug` reaches every command through
kvscope.cli.app, which adds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from kvscope import units
from kvscope.cli import diagnostics
from kvscope.errors import UsageError
from kvscope.kv_size import KvDtype as Precision

T = TypeVar("T")

DEFAULT_DB = "kvscope.duckdb"


def parsed_by(parse: Callable[[str], T]) -> Callable[[Any], T]:
    """`parse` for `typer.Option(parser=...)`: its refusal then names the option.

    A default that is a value already, not a text, passes as it is.
    """

    def parser(value: Any) -> T:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            return parse(value)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error

    return parser


def _debug(chosen: bool) -> None:
    if chosen:
        diagnostics.enable_debug()


TraceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TRACE",
        help="A path, a stored trace's name, or nothing: the one last worked on.",
        show_default=False,
    ),
]
Db = Annotated[
    str,
    typer.Option(
        "--db", metavar="PATH", help="The store that keeps the traces; :memory: keeps nothing."
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
        parser=parsed_by(units.parse_size),
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

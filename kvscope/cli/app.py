"""The command `kvscope`: the registry of its commands, the global options, and `main`.

A new command is one file and one line in `COMMANDS`. Command modules are imported at every start,
`--help` included: what is heavy (duckdb, numba, polars, ...) they import inside their functions.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from kvscope import __version__
from kvscope.cli import (
    analyze,
    calibrate,
    dashboard,
    diagnostics,
    export,
    fit,
    ingest,
    output,
    record,
    runs,
    simulate,
    synth,
    traces,
    tune,
    validate,
)
from kvscope.cli.options import Debug
from kvscope.core.errors import ExitCode

Command = Callable[..., Any] | typer.Typer

# name, and the function or (for a command with sub-commands) the Typer app behind it
COMMANDS: tuple[tuple[str, Command], ...] = (
    ("analyze", analyze.analyze),
    ("fit", fit.fit),
    ("simulate", simulate.simulate),
    ("tune", tune.tune),
    ("calibrate", calibrate.calibrate),
    ("validate", validate.validate),
    ("dashboard", dashboard.dashboard),
    ("runs", runs.app),
    ("ingest", ingest.ingest),
    ("traces", traces.app),
    ("export", export.export),
    ("synth", synth.synth),
    ("record", record.record),
)

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def build(commands: Sequence[tuple[str, Command]] = COMMANDS) -> typer.Typer:
    """The command line with `commands` below it."""
    app = typer.Typer(
        name="kvscope",
        callback=_kvscope,
        invoke_without_command=True,
        context_settings=_HELP_NAMES,
        rich_markup_mode=None,  # plain help: importing rich for it doubles the time it takes
        pretty_exceptions_enable=False,
    )
    for name, command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(_with_debug_inside(command), name=name)
        else:
            app.command(name)(_with_debug(command))
    return app


def main(
    arguments: Sequence[str] | None = None, commands: Sequence[tuple[str, Command]] = COMMANDS
) -> None:
    """Run the command line `arguments` (default: this process's) and exit with its code."""
    diagnostics.prepare_streams()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments, commands))


def run(arguments: Sequence[str], commands: Sequence[tuple[str, Command]] = COMMANDS) -> ExitCode:
    """Run the command line `arguments` and return its exit code. Never raises."""
    return diagnostics.guarded(
        lambda: typer.main.get_command(build(commands)).main(
            list(arguments), prog_name="kvscope", standalone_mode=False
        )
    )


def _version(chosen: bool) -> None:
    if chosen:
        output.emit(f"kvscope {__version__}")
        raise typer.Exit


def _kvscope(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_version,
            is_eager=True,
            expose_value=False,
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Analyze LLM request traces and tune the KV prefix cache of vLLM and SGLang for them."""
    if context.invoked_subcommand is None:
        diagnostics.say(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


def _with_debug(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` with the option `--debug`, so that it may also stand behind the command's name."""
    signature = inspect.signature(command, eval_str=True)
    if "debug" in signature.parameters:  # a group may be built into several apps
        return command

    @functools.wraps(command)
    def with_debug(*args: Any, debug: bool = False, **options: Any) -> Any:
        return command(*args, **options)

    option = inspect.Parameter(
        "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug
    )
    parameters = [*signature.parameters.values(), option]
    with_debug.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_debug


def _with_debug_inside(group: typer.Typer) -> typer.Typer:
    for command in (group.registered_callback, *group.registered_commands):
        if command is not None and command.callback is not None:
            command.callback = _with_debug(command.callback)
    return group

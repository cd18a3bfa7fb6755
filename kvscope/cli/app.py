"""The command `kvscope`: the list of its commands, the global options, and `main`.

A new command is a use case, or a function with a line in `COMMANDS`. A command's module is imported
when the command is called, so `kvscope --help` and a mistyped command import none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from kvscope import __version__
from kvscope.cli import diagnostics, output
from kvscope.cli.options import Command, Debug, convert_directly, typed
from kvscope.core.errors import ExitCode, require_whole_addresses
from kvscope.core.memory import require_address_space
from kvscope.usecases import USE_CASES


class Lazy(NamedTuple):
    """A command whose module is imported when it is called.

    `place` is a key of USE_CASES, or `module:attribute` below `kvscope.cli` for a function or the
    Typer app of a command with sub-commands. `summary` is its line in `kvscope --help`.
    """

    place: str
    summary: str

    def load(self) -> Callable[..., Any] | typer.Typer:
        """Import the command and return it. Raises OutOfMemoryError if `ulimit -v` is too low."""
        require_address_space()
        module, colon, attribute = self.place.partition(":")
        if not colon:
            from kvscope.cli.usecase import command

            return command(module)
        loaded: Callable[..., Any] = getattr(import_module(f"kvscope.cli.{module}"), attribute)
        return loaded


Loadable = Callable[..., Any] | typer.Typer | Lazy

COMMANDS: tuple[tuple[str, Lazy], ...] = (
    *((name, Lazy(name, entry.summary)) for name, entry in USE_CASES.items()),
    ("deployment", Lazy("deployment:app", "Show, create or check the deployment to advise on.")),
    ("dashboard", Lazy("dashboard:dashboard", "Open the dashboard in a browser.")),
    ("runs", Lazy("stored:runs_app", "List, compare or remove stored replays.")),
    ("ingest", Lazy("stored:ingest", "Read traces into the store.")),
    ("traces", Lazy("stored:traces_app", "List or remove stored traces.")),
    ("doctor", Lazy("stored:doctor", "Check a store; save what can be read.")),
    ("export", Lazy("stored:export", "Write a stored trace in another format.")),
    ("synth", Lazy("record:synth", "Generate a synthetic trace.")),
    ("hash", Lazy("record:hash_", "Turn logs with prompts into a hashed trace.")),
    ("record", Lazy("record:record", "Record a running vLLM as a trace.")),
    ("watch", Lazy("watch:watch", "Follow a recording; serve Prometheus metrics.")),
    ("policies", Lazy("catalog:policies", "List the eviction policies.")),
    ("routers", Lazy("catalog:routers", "List the routers of fleets.")),
    ("models", Lazy("catalog:models", "List the model presets.")),
    ("gpus", Lazy("catalog:gpus", "List the GPUs of deployments.")),
    ("latencies", Lazy("catalog:latencies", "List the latency presets.")),
    ("formats", Lazy("catalog:formats", "List the trace formats.")),
)

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class _LoadedWhenCalled(Mapping[str, Any]):
    """Click's commands by name, each built when it is first looked up."""

    def __init__(self, commands: Sequence[tuple[str, Loadable]]) -> None:
        self._commands = dict(commands)
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _built(name, self._commands[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)

    def summary(self, name: str, limit: int) -> str:
        """Return a command's line in `kvscope --help`; if not `Lazy`, cut to `limit` columns."""
        command = self._commands[name]
        if isinstance(command, Lazy):
            return command.summary
        return str(self[name].get_short_help_str(limit))


class _Group(TyperGroup):
    """The root command, whose help lists the commands without importing them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table of commands, in the order of `COMMANDS`."""
        commands = self.commands
        assert isinstance(commands, _LoadedWhenCalled)  # noqa: S101  (set by `build`)
        limit = formatter.width - 6 - max(map(len, commands))
        with formatter.section("Commands"):
            formatter.write_dl([(name, commands.summary(name, limit)) for name in commands])

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of `COMMANDS`."""
        return list(self.commands)


def build(commands: Sequence[tuple[str, Loadable]] = COMMANDS) -> Any:
    """Return Click's command line with `commands`."""
    app = typer.Typer(
        name="kvscope",
        cls=_Group,
        callback=_kvscope,
        invoke_without_command=True,
        context_settings=_HELP_NAMES,
        rich_markup_mode=None,  # plain help: importing rich for it doubles the time it takes
        pretty_exceptions_enable=False,
    )
    group = convert_directly(typer.main.get_command(app))
    group.commands = _LoadedWhenCalled(commands)
    return group


def _built(name: str, command: Loadable) -> Any:
    """Return Click's command for a function, a Typer app or a `Lazy` one of them."""
    loaded = command.load() if isinstance(command, Lazy) else command
    settings: dict[str, Any] = {
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "add_completion": False,  # `kvscope --install-completion` does it for all commands
    }
    if isinstance(loaded, typer.Typer):
        outer = typer.Typer(**settings, context_settings=_HELP_NAMES)
        outer.add_typer(_typed_inside(loaded), name=name)
        return convert_directly(typer.main.get_group(outer).commands[name])
    single = typer.Typer(**settings)
    single.command(name, cls=Command, context_settings=_HELP_NAMES)(typed(loaded))
    return convert_directly(typer.main.get_command(single))


def main(
    arguments: Sequence[str] | None = None, commands: Sequence[tuple[str, Loadable]] = COMMANDS
) -> None:
    """Run the command line `arguments` (default: this process's); exit with its exit code."""
    diagnostics.prepare_streams()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments, commands))


def run(arguments: Sequence[str], commands: Sequence[tuple[str, Loadable]] = COMMANDS) -> ExitCode:
    """Run the command line `arguments` and return its exit code. Never raises."""

    def command() -> object:
        require_whole_addresses(arguments)
        return build(commands).main(list(arguments), prog_name="kvscope", standalone_mode=False)

    return diagnostics.guarded(command)


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


def _typed_inside(group: typer.Typer) -> typer.Typer:
    for command in (group.registered_callback, *group.registered_commands):
        if command is not None and command.callback is not None:
            command.callback = typed(command.callback)
    return group

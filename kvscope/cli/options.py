"""Options of the command line: kvscope's declarations turned into Typer's, and some of its own.

    def analyze(trace: TraceArgument = None, options: AnalyzeOptions = AnalyzeOptions()): ...

`typed` gives such a command the signature that Typer reads: each field of a record becomes an
option, and `--debug` is added.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, get_origin

import typer
from msgspec import Struct
from typer.core import TyperCommand, TyperGroup

from kvscope.app import values
from kvscope.app.options import (
    EARLIER,
    FURTHER,
    RARE,
    USUAL,
    Called,
    Option,
    Options,
    Source,
    Target,
    annotations_of,
    check_outputs,
    declared,
    option,
    options_of,
)
from kvscope.cli import diagnostics
from kvscope.core.errors import UsageError
from kvscope.core.files import check_replaceable, one_path
from kvscope.core.records import defaults

DEFAULT_DB, MEMORY = "kvscope.duckdb", ":memory:"
Host = Annotated[
    str,
    Option(
        "Bind address; the default lets only this machine in. Any other needs a token.", "ADDRESS"
    ),
]


def parsed_by(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a parser for Typer that calls `parse`; Typer names the option in its errors.

    Values that are not strings (defaults) pass unchanged.
    """

    def parser(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error

    return parser


def files_argument(metavar: str) -> Any:
    """Return Typer's argument for one or more files, called `metavar` in the help."""
    about = "Files, folders or patterns, plain, .gz or .zst; - is standard input."
    parser = parsed_by(values.called)
    return typer.Argument(metavar=metavar, parser=parser, help=about, show_default=False)


def _or_of_here(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Return `value`, or the trace or store that kvscope.toml names if the command names none."""
    from kvscope.deployment.file import FILE, deployment_file, read_work  # late: reads models

    name, here = str(parameter.name), deployment_file()
    source = context.get_parameter_source(name)
    if here is None or source is None or source.name != "DEFAULT" or context.resilient_parsing:
        return value
    named = read_work(here).get(name)
    if named is None:
        return value
    diagnostics.note(f"{name} of {FILE}: {named}")
    return named if parameter.nargs == 1 else (named,)


_TRACE = typer.Argument(
    callback=_or_of_here,
    metavar="TRACE",
    parser=parsed_by(values.called),
    help="Files, folders or patterns that are one trace; or a stored one; or nothing: the last.",
    show_default=False,
)
TraceArgument = Annotated[str | None, _TRACE]
"""The paths of one trace, which `typed` joins into one text (`kvscope.core.files.one_path`)."""
Db = Annotated[
    str,
    Source(
        "Store that keeps traces and runs, or a dataset's folder; :memory: keeps nothing.",
        parse=values.store,
    ),
]
Json = Annotated[bool, Option("Print one JSON document instead of tables.", flags=("--json",))]


class GateOptions(Options, frozen=True, kw_only=True):
    """Options for the conditions under which a command ends with exit code 4.

    Each of `fail_on` is one or more conditions with commas between, such as `hit-rate<40%`.
    `baseline` is the path of an earlier `--json` document, or `run:N` for stored run N.
    """

    group: ClassVar[str] = "Conditions"

    fail_on: list[str] | None = option(
        "End with exit code 4 if this holds, for example hit-rate<40%. Figures take <, <=, > or >=,"
        " a verdict = or !=. Repeatable.",
        "CONDITION,...",
    )
    baseline: str | None = Called(
        "Earlier result for --fail-on 'regression>5%': its --json file; of `simulate` also run:N,"
        " a stored run.",
        "FILE|run:N",
    )


class ScreenOptions(Options, frozen=True, kw_only=True):
    """Options for the output: HTML, JSON or text; one screen, all sections or some."""

    group: ClassVar[str] = "Output"

    html: str | None = Target("Also write a self-contained HTML report.")
    as_json: Json = False
    full: bool = option("Print every section instead of one screen.", value=False)
    section: tuple[str, ...] = option(
        "Print these sections instead of one screen, by their titles: reuse-gaps,skew.",
        "NAME,...",
        values.listed(values.called),
        "",
        value=(),
    )

    def __post_init__(self) -> None:
        """Raise UsageError for `--html -` with `--json`: both write to standard output."""
        self.check_alone()

    def check_alone(self, printed: str | None = None) -> None:
        """Raise UsageError if two results go to standard output.

        These can be `--html -`, `--json`, and the file of an option of the command that has the
        value `-`: `printed` is the flag of that option, None if there is none.
        """
        given = [f"{printed} -"] if printed else []
        given += ["--html -"] if self.html == values.STANDARD_STREAM else []
        if given and (self.as_json or len(given) > 1):
            raise UsageError(
                "two results for standard output",
                where=", ".join([*given, *["--json"] * self.as_json]),
                remedy="name a file for one of them",
            )


Force = Annotated[
    bool,
    Option("Replace any file: one that kvscope did not write, or a recommendation to change."),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the traceback of an error.",
        callback=lambda chosen: diagnostics.enable_debug() if chosen else None,
        is_eager=True,
        expose_value=False,
    ),
]


def default_command(name: str) -> type[TyperGroup]:
    """Return the class of a command group that runs the command `name` if none is named."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if not args or args[0] not in {*self.commands, "-h", "--help", "--debug"}:
                args = [name, *args]
            return super().parse_args(ctx, args)

    return Group


def typed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return `command` for Typer: record fields as options, `--debug`, output files checked."""
    signature = inspect.signature(command, eval_str=True)
    if "debug" in signature.parameters:  # a group may be built into several apps
        return command
    kinds: dict[str, Any] = {each.name: each.annotation for each in signature.parameters.values()}
    groups = {name: kind for name, kind in kinds.items() if _is_record(kind)}
    traces = [name for name, kind in kinds.items() if kind == TraceArgument]

    @functools.wraps(command)
    def with_groups(*args: Any, debug: bool = False, force: bool = False, **given: Any) -> Any:
        # Every text that names files counts as what is read: traces, stores, profiles, logs.
        writes, replaced = (_writes(signature, parses) for parses in (_WRITES, [values.target]))
        named = {flag: given[name] for name, flag in writes.items() if given.get(name)}
        check_outputs(named, {name: given[name] for name in given.keys() - writes})
        for path in filter(None, map(given.get, replaced)):
            check_replaceable(path, force=force)
        if "force" in signature.parameters:
            given["force"] = force
        for name, group in groups.items():
            given[name] = group(**{each: given.pop(each) for each in group.__struct_fields__})
        for name in traces:
            given[name] = one_path(given[name]) if given[name] else None
        return command(*args, **given)

    parameters = [each for known in signature.parameters.values() for each in _expanded(known)]
    added = {"debug": Debug}
    if "force" not in signature.parameters and _writes(signature, [values.target]):
        added["force"] = _typers("force", Force)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters += [
        inspect.Parameter(name, keyword, default=False, annotation=kind)
        for name, kind in added.items()
    ]
    ordered = sorted(parameters, key=lambda each: each.default is not inspect.Parameter.empty)
    with_groups.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[each.replace(kind=keyword) for each in ordered]
    )
    return with_groups


_WRITES = (values.target, values.existing_or_target, values.appended, values.new_target)


def _writes(signature: inspect.Signature, parses: Sequence[object]) -> dict[str, str]:
    """Return by name the first flag of each option whose value one of `parses` parses.

    `parses` are parsers of output paths: `typed` checks these files before the command runs.
    """
    return {
        name: (option.flags or ("--" + name.replace("_", "-"),))[0]
        for name, option in _options(signature)
        if option.parse in parses
    }


def _options(signature: inspect.Signature) -> Iterator[tuple[str, Option]]:
    """Yield a command's declared options by name, including the fields of its records."""
    for name, parameter in signature.parameters.items():
        if _is_record(parameter.annotation):
            yield from options_of(parameter.annotation).items()
        elif (pair := declared(parameter.annotation)) is not None:
            yield name, pair[1]


def convert_directly(command: Any) -> Any:
    """Return Typer's command `command`, changed in place to convert texts without pydantic.

    Typer builds a pydantic converter for each option, used or not; with pydantic's import, this
    takes a tenth of a small analysis. Choices and numbers on the command line still use pydantic.

    Source: typer 0.29, core.py (process_value), _coercion.py (coerce), _adapters.py.
    """
    all_parameters = command.get_params

    def get_params(context: Any) -> list[Any]:
        """Return the parameters, changed to convert by `_converted`, and Click's `--help`."""
        parameters: list[Any] = all_parameters(context)
        for each in parameters:
            if "process_value" not in vars(each):
                each.process_value = functools.partial(_converted, each, each.process_value)
            if each.nargs == -1:
                each.display_type_rich = lambda **_: ""  # "<list[str]>"
        return parameters

    command.get_params = get_params
    for inner in getattr(command, "commands", {}).values():
        convert_directly(inner)
    return command


def _converted(parameter: Any, convert: Callable[..., Any], context: Any, value: Any) -> Any:
    """Return a parameter's value; Typer's own `convert` handles choices, numbers and the like."""
    kind = parameter.type_descriptor
    if parameter.nargs == -1 and not parameter.required:
        value = tuple(map(kind.parameter_info.parser, value or ()))
        return (
            value if parameter.callback is None else parameter.callback(context, parameter, value)
        )
    if parameter.required or parameter.nargs != 1 or (parameter.multiple and value is not None):
        return convert(context, value)
    if value is None:
        value = () if parameter.multiple else None
    elif isinstance(value, str) and kind.parameter_info.parser is not None:
        value = kind.parameter_info.parser(value)
    elif value != parameter.default and not (isinstance(value, str) and kind.annotation is str):
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _expanded(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield the parameter with its annotation for Typer; for a record, a parameter per field."""
    if not _is_record(parameter.annotation):
        yield parameter.replace(annotation=_typers(parameter.name, parameter.annotation))
        return
    hints = annotations_of(parameter.annotation)
    stated = defaults(parameter.annotation)
    for name in parameter.annotation.__struct_fields__:
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=stated.get(name, inspect.Parameter.empty),
            annotation=_typers(name, hints[name], _group(parameter.annotation, name)),
        )


def _group(record: type, field: str) -> str | None:
    """Return the help section of a record's field; None for the first section."""
    if field in USUAL:
        return None
    declaring = next(each for each in record.__mro__ if field in vars(each)["__annotations__"])
    group: str | None = vars(declaring).get("group", FURTHER)
    return group


class Command(TyperCommand):
    """A command whose help has its options in sections, the usual ones first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line; earlier names of options are accepted."""
        earlier = EARLIER.get(str(self.name), {})
        return super().parse_args(ctx, [_present(word, earlier) for word in args])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections: arguments, usual options, further ones, then groups of options."""
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": [], FURTHER: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name = "Arguments" if parameter.param_type_name == "argument" else "Options"
            name = FURTHER if parameter.name in RARE else name
            name = getattr(parameter, "rich_help_panel", None) or name
            sections.setdefault(name, []).append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def _present(word: str, earlier: Mapping[str, str]) -> str:
    """Return a command-line word with an option's earlier name replaced by the present name.

    `earlier` has the present names by earlier name, both without `--`.
    """
    name, equals, value = word.removeprefix("--").partition("=")
    known = earlier.get(name) if word.startswith("--") else None
    return word if known is None else f"--{known}{equals}{value}"


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def _typers(name: str, annotation: Any, group: str | None = None) -> Any:
    """Return the annotation with a declared Option replaced by Typer's option or argument."""
    if annotation == TraceArgument:
        return Annotated[list[str] | None, _TRACE]
    pair = declared(annotation)
    if pair is None:
        return annotation
    kind, option = pair
    parser = None if option.parse is None else parsed_by(option.parse)
    if option.argument:
        return Annotated[kind, typer.Argument(parser=parser, help=option.help, show_default=False)]
    return Annotated[
        Any if parser and get_origin(kind) is not None else kind,  # a tuple takes one text here
        typer.Option(
            *(option.flags or ("--" + name.replace("_", "-"),)),
            help=option.help,
            metavar=option.metavar,
            parser=parser,
            callback=_or_of_here if option.parse is values.store else None,
            case_sensitive=False,
            show_default=True if option.default is None else option.default or False,
            rich_help_panel=group,
        ),
    ]

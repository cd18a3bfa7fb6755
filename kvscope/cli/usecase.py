"""The commands of use cases, built from the declarations of the use cases.

Section names are checked first, then options, then the trace's name; NumPy and kernels are imported
only after the checks that do not need them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from kvscope.app import values
from kvscope.app.options import (
    AS_STORED,
    OUTPUT,
    Option,
    Reading,
    Target,
    arguments_of,
    check_outputs,
    standard_output,
    targets_of,
)
from kvscope.cli import output
from kvscope.cli.diagnostics import end_on, note
from kvscope.cli.options import (
    DEFAULT_DB,
    MEMORY,
    Db,
    Force,
    GateOptions,
    ScreenOptions,
    TraceArgument,
)
from kvscope.cli.terminal import Terminal, stoppable
from kvscope.core.errors import ExitCode, Stopped, placed
from kvscope.core.files import check_replaceable
from kvscope.core.jit import load_in_background

if TYPE_CHECKING:
    from kvscope.app.gates import Figures, Gate
    from kvscope.app.traces import TraceSource
    from kvscope.store.file import StoreFile
    from kvscope.usecases.base import AnyUseCase

Forget = Annotated[
    bool,
    Option("Start anew: use no deployment or SLO that earlier commands on the trace stated."),
]


class _Common(Struct, frozen=True, kw_only=True):
    """Command-line options that use cases share; those a use case does not take have defaults.

    `forget`: do not use the deployment and SLO of earlier commands on the trace. `path` is that of
    the use case's output file, None: its default path, if it has one; `force` replaces any file.
    """

    printing: ScreenOptions
    db: str = MEMORY
    trace: str | None = None
    reading: Reading = AS_STORED
    forget: bool = False
    gate: GateOptions = GateOptions()
    path: str | None = None
    force: bool = False


def command(name: str) -> Callable[..., None]:
    """Return the command function of the use case `name`, with a signature for `typed`."""
    from kvscope.usecases.base import use_case

    case = use_case(name)
    parameters: dict[str, tuple[Any, Any]] = {
        **({"trace": (TraceArgument, None)} if case.takes_trace else {}),
        **({"db": (Db, DEFAULT_DB)} if case.takes_store else {}),
        "options": (case.options, inspect.Parameter.empty),
    }
    if case.remembers:
        parameters["forget"] = (Forget, False)
    if case.file is not None:
        about = f"File for the {case.file.of}; - writes none."
        target = Target(about, flags=OUTPUT, default=case.file.path)
        parameters["path"] = (Annotated[str | None, target], None)
        parameters["force"] = (Force, False)
    if case.known is not None:
        parameters["gate"] = (GateOptions, inspect.Parameter.empty)
    parameters["printing"] = (ScreenOptions, inspect.Parameter.empty)
    if case.takes_trace:
        parameters["reading"] = (Reading, inspect.Parameter.empty)

    def run(*, options: Any, **common: Any) -> None:
        _run(case, options, _Common(**common))

    run.__doc__ = case.help
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for each, (kind, value) in parameters.items()
        ]
    )
    return run


def _run(case: AnyUseCase, options: Any, common: _Common) -> None:
    """Run a use case on the command line: check, compute, print, and apply `--fail-on`."""
    from kvscope.app.deployment import stated_before
    from kvscope.app.gates import baseline_figures, parse_gates
    from kvscope.report.section import check_names
    from kvscope.usecases.base import Opened

    printed, path = standard_output(options), _target_of(case, common.path, force=common.force)
    common.printing.check_alone(printed)
    if case.sections:
        check_names(common.printing.section, case.sections)
    if not case.remembers:
        request = case.check(options)

    from kvscope.app.traces import TraceSource, keep_stated

    source = TraceSource.of(common.trace)
    with source.store(common.db, note) as store:
        with store.reading() if case.remembers else nullcontext():  # opened once for both
            _check_outputs(case, options, common, path, store, source)
            remembered = case.remembers and not common.forget
            stated = source.stated(store) if remembered else {}
        if case.remembers:
            said = stated_before(options, stated)
            if said.in_words:
                note(f"As stated before: {said.in_words} (--forget starts anew)")
            request = case.check(said.options)
        gates: tuple[Gate, ...] = ()
        if common.gate.fail_on and case.known is not None:
            gates = parse_gates(common.gate.fail_on, case.known(request))
        baseline = baseline_figures(common.gate.baseline, gates, case.name, store, case.of_run)
        load_in_background()
        load = partial(source.load, store, Terminal(), common.reading)
        opened = Opened(store, common.trace, load, common.reading)
        if case.stops and case.takes_trace:  # what is loaded before ends at once
            trace = opened.trace
            opened = Opened(store, common.trace, lambda _: trace, common.reading)
        began = monotonic()
        with watching(stops=case.stops, writes=case.file is not None) as terminal:
            other = case.instead(opened, request, terminal) if case.instead else None
            if other is None:
                result = case.run(opened, request, terminal)
        if case.remembers:
            keep_stated(store, opened.trace if other else result.trace, said.record)
    if other is not None:
        output.report(other, common.printing)
        if case.file is not None and path != values.STANDARD_STREAM:
            note(f"{path} was not written: {case.file.missing}")
        return
    duration_s = monotonic() - began
    output.report(case.report(result), common.printing, quiet=printed is not None)
    _write_and_keep(case, store, request, result, duration_s, path, force=common.force)
    _end(case, result, gates, baseline, interrupted=terminal.stop.is_set())


def _end(
    case: AnyUseCase,
    result: Any,
    gates: Sequence[Gate],
    baseline: Figures | None,
    *,
    interrupted: bool,
) -> None:
    """Exit with a code other than 0 for an unfinished result or a failed condition."""
    if case.unfinished is not None and (words := case.unfinished(result)):
        note(words)
        raise typer.Exit(ExitCode.INTERRUPTED if interrupted else ExitCode.ENGINE)
    if case.figures is not None:
        end_on(gates, case.figures(result), baseline)
    if case.fails is not None and case.fails(result):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _check_outputs(
    case: AnyUseCase,
    options: Any,
    common: _Common,
    path: str | None,
    store: StoreFile,
    source: TraceSource,
) -> None:
    """Raise UsageError if an output file is also an input or the source of the trace."""
    from kvscope.app.traces import sources_of

    if case.takes_trace:
        sources = [source.path(store)]
    else:
        named = [getattr(options, name) for name in arguments_of(case.options)]
        sources = sources_of(store, named) if named else []
    flags = {name: "--" + name.replace("_", "-") for name in targets_of(case.options)}
    writes = {flag: getattr(options, name) for name, flag in flags.items()}
    writes |= {"--html": common.printing.html, "--output": path}
    reads = {
        each: getattr(options, each) for each in options.__struct_fields__ if each not in flags
    }
    reads |= {"trace": sources, "db": common.db, "baseline": common.gate.baseline}
    check_outputs({flag: to for flag, to in writes.items() if to}, reads)


def _target_of(case: AnyUseCase, path: str | None, *, force: bool) -> str | None:
    """Return a use case's output path, stated or default, None for none. Raises UsageError."""
    if case.file is None or path is not None:
        return path
    with placed("--output"):
        target = values.target(case.file.path)
    check_replaceable(target, force=force)
    return target


def _write_and_keep(
    case: AnyUseCase,
    store: StoreFile,
    request: Any,
    result: Any,
    duration_s: float,
    path: str | None,
    *,
    force: bool,
) -> None:
    """Write a use case's output file, if it has one, and store the report for the dashboard."""
    from kvscope.store.db import MEMORY

    if case.file is not None and path is not None and path != values.STANDARD_STREAM:
        note(case.file.write(result, path, force=force))
    if case.keeps and store.path != MEMORY:
        from kvscope.report.stored import keep_answer

        keep_answer(store, case, request, result, duration_s, note)


@contextmanager
def watching(*, stops: bool, writes: bool = False) -> Iterator[Terminal]:
    """Yield a Terminal; with `stops`, the first Ctrl-C sets its `stop`, to keep finished work.

    If the `with` block then raises Stopped, write its message as a note (with `writes`, also that
    nothing was written) and exit as interrupted.
    """
    if not stops:
        yield Terminal()
        return
    with stoppable() as terminal:
        try:
            yield terminal
        except Stopped as error:
            note(f"{error}; nothing was written" if writes else str(error))
            raise typer.Exit(ExitCode.INTERRUPTED) from None

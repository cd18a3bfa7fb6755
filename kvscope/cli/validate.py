"""`kvscope validate`: does a real engine do what the simulator predicts?"""

from __future__ import annotations

import typer

from kvscope.app.engine_options import LaunchOptions, TargetOptions, ValidateOptions
from kvscope.app.options import Reading
from kvscope.cli import output
from kvscope.cli.diagnostics import note, show_log
from kvscope.cli.options import DEFAULT_DB, Db, ReportOptions, ScreenOptions, TraceArgument
from kvscope.cli.terminal import Terminal, stoppable
from kvscope.core.errors import ExitCode


def validate(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    target: TargetOptions,
    options: ValidateOptions,
    launch: LaunchOptions,
    printing: ReportOptions,
    reading: Reading,
) -> None:
    """Replay the trace on a real engine; compare prediction and measurement for LRU and the advice.

    Exit code 4: outside the tolerance. 5: the engine cannot be reached, or died.
    """
    from kvscope.app.validate import check_options
    from kvscope.app.validate import validate as replay_on_engine

    check_options(target, options)
    from kvscope.app.traces import load_trace
    from kvscope.store.db import open_store

    with open_store(db) as store:
        stored = load_trace(store, trace, Terminal(), reading)
        from kvscope.store import results

        with stoppable() as terminal:
            validation = replay_on_engine(
                store,
                stored,
                target,
                options,
                launch,
                terminal,
                seed=reading.seed,
                show_log=show_log,
            )
        results.add_validation(store, stored, validation)
    from kvscope.app.documents.engines import validate_document
    from kvscope.report import validation as report

    output.report(
        stored,
        ScreenOptions(html=printing.html, as_json=printing.as_json),
        document=lambda: validate_document(stored, validation),
        screen=lambda: report.sections(validation),
        sections=lambda: report.sections(validation),
        page="kvscope validate",
    )
    if validation.ended:
        note(f"ended early: {validation.ended}; what was measured until then is kept")
    if terminal.stop.is_set():
        raise typer.Exit(ExitCode.INTERRUPTED)
    if validation.ended:
        raise typer.Exit(ExitCode.ENGINE)
    if validation.verdict == "not confirmed":
        raise typer.Exit(ExitCode.TOLERANCE)

"""`kvscope calibrate` and `validate`: measure a real engine, and compare it with predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvscope.app import values
from kvscope.app.engine_options import (
    CalibrateOptions,
    LaunchOptions,
    TargetOptions,
    ValidateOptions,
)
from kvscope.app.options import Reading, Target
from kvscope.cli import output
from kvscope.cli.diagnostics import end_on, note, show_log
from kvscope.cli.options import (
    DEFAULT_DB,
    Db,
    GateOptions,
    Json,
    ReportOptions,
    ScreenOptions,
    TraceArgument,
)
from kvscope.cli.terminal import Terminal, stoppable
from kvscope.core.errors import ExitCode

DEFAULT_OUTPUT = "latency.toml"

Output = Annotated[str, Target("File for the profile; - writes none.", flags=("--output",))]


def calibrate(
    *,
    target: TargetOptions,
    options: CalibrateOptions,
    launch: LaunchOptions,
    path: Output = DEFAULT_OUTPUT,
    as_json: Json = False,
) -> None:
    """Measure the time to first token of an engine and write latency.toml for simulate and tune.

    On a running server (--url), on a vLLM that is started for it (--model), or on plain torch.
    """
    from kvscope.app.calibrate import calibrate as measure
    from kvscope.app.calibrate import check_target

    check_target(target, options)
    from kvscope.latency.calibration import write

    with stoppable() as terminal:
        calibration = measure(target, options, launch, terminal)
    if path != values.STANDARD_STREAM:  # first of all: it took long, and a pipe's reader may leave
        write(Path(path), calibration)
    if as_json:
        output.emit_result("calibrate", calibration)
    else:
        from kvscope.report.calibration import sections

        output.emit(calibration.engine.in_words)
        output.show_sections(sections(calibration))
    if path != values.STANDARD_STREAM:
        note(f"profile written to {path}: pass it to simulate, tune and validate as --latency")
    run = calibration.run
    if run.ended:
        note(f"ended early: {run.ended}; fitted to {run.count} of {run.planned} measurements")
    if terminal.stop.is_set():
        raise typer.Exit(ExitCode.INTERRUPTED)
    if run.ended:
        raise typer.Exit(ExitCode.ENGINE)


def validate(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    target: TargetOptions,
    options: ValidateOptions,
    launch: LaunchOptions,
    gate: GateOptions,
    printing: ReportOptions,
    reading: Reading,
) -> None:
    """Replay the trace on a real engine; compare prediction and measurement for LRU and the advice.

    Exit code 4: outside the tolerance, or --fail-on. 5: the engine cannot be reached, or died.
    """
    from kvscope.app.baseline import baseline_figures
    from kvscope.app.gates import validate_figures, validate_gates
    from kvscope.app.validate import validate as replay_on_engine
    from kvscope.app.validate import validate_request

    gates = validate_gates(gate.fail_on)
    from kvscope.app.traces import check_source, load_trace, store_for
    from kvscope.store import results
    from kvscope.store.file import CANNOT_STORE

    with store_for(db, trace, note) as store:
        check_source(store, trace)
        baseline = baseline_figures(gate.baseline, gates, "validate", store)
        request = validate_request(target, options, launch, Terminal())
        stored = load_trace(store, trace, Terminal(), reading)

        with stoppable() as terminal:
            validation = replay_on_engine(
                store,
                stored,
                request,
                terminal,
                seed=reading.seed,
                show_log=show_log,
            )
        try:
            with store.writing() as opened:
                results.add_validation(opened, stored, validation)
        except CANNOT_STORE as error:
            note(f"the validation was not stored: {error}")
    from kvscope.report import validation as report

    screen = ScreenOptions(html=printing.html, as_json=printing.as_json)
    output.report(report.report(stored, validation), screen)
    if validation.ended:
        note(f"ended early: {validation.ended}; what was measured until then is kept")
    if terminal.stop.is_set():
        raise typer.Exit(ExitCode.INTERRUPTED)
    if validation.ended:
        raise typer.Exit(ExitCode.ENGINE)
    end_on(gates, validate_figures(validation), baseline)
    if validation.verdict == "not confirmed":
        raise typer.Exit(ExitCode.CHECK_FAILED)

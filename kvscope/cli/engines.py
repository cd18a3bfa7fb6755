"""`kvscope calibrate`: measure a real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvscope.app import values
from kvscope.app.engine_options import CalibrateOptions
from kvscope.app.options import Target
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.options import (
    Json,
)
from kvscope.cli.terminal import stoppable
from kvscope.core.errors import ExitCode

DEFAULT_OUTPUT = "latency.toml"

Output = Annotated[str, Target("File for the profile; - writes none.", flags=("--output",))]


def calibrate(
    *,
    options: CalibrateOptions,
    path: Output = DEFAULT_OUTPUT,
    as_json: Json = False,
) -> None:
    """Measure the time to first token of an engine and write latency.toml for simulate and tune.

    On a running server (--url), on a vLLM that is started for it (--model), or on plain torch.
    """
    from kvscope.app.calibrate import calibrate as measure
    from kvscope.app.calibrate import check_options

    check_options(options)
    from kvscope.latency.calibration import write

    with stoppable() as terminal:
        calibration = measure(options, terminal)
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

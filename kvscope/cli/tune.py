"""`kvscope tune`: which policy, with which parameters, at which capacity, for an SLO."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kvscope.app import values
from kvscope.app.options import Option, Reading, TuneOptions
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.options import DEFAULT_DB, Db, ScreenOptions, TraceArgument
from kvscope.cli.terminal import Terminal, stoppable
from kvscope.core.errors import ExitCode, Stopped

DEFAULT_OUTPUT = "recommendation.toml"

Explain = Annotated[bool, Option("The same as --full.")]
Output = Annotated[
    str,
    Option(
        "File for the recommendation; - writes none.", "PATH", values.target, flags=("--output",)
    ),
]


def tune(
    *,
    options: TuneOptions,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    explain: Explain = False,
    path: Output = DEFAULT_OUTPUT,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Recommend policy, parameters and capacity for an SLO, with the gain and its uncertainty.

    Chosen on a training window of the trace, judged on a held-out one. Writes recommendation.toml.
    """
    from kvscope.app.requests import tune_request

    # Policies and the store each take a while to import: of two mistakes the likelier comes first.
    early = tune_request(options) if options.policies or options.param else None
    from kvscope.app.traces import check_source, prompts_to_replay
    from kvscope.store.db import open_store

    with open_store(db) as store:
        check_source(store, trace)
        request = early or tune_request(options)
        from kvscope.app.documents.tune import tune_document
        from kvscope.app.tune import kernels, write_recommended
        from kvscope.app.tune import tune as recommend
        from kvscope.report import recommendation as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        needed = kernels(request)
        with (
            prompts_to_replay(store, trace, needed, Terminal(), reading) as (stored, prompts),
            stoppable() as terminal,
        ):
            try:
                tuned = recommend(stored, prompts, request, terminal)
            except Stopped as error:
                note(f"{error}; nothing was written")
                raise typer.Exit(ExitCode.INTERRUPTED) from None
    if path != values.STANDARD_STREAM:
        tuned = replace(tuned, path=path)
    output.report(
        tuned.trace,
        replace(printing, full=printing.full or explain),
        document=lambda: tune_document(tuned),
        screen=lambda: report.screen(tuned),
        sections=lambda: report.sections(tuned),
        page="kvscope tune",
    )
    if path != values.STANDARD_STREAM:
        write_recommended(Path(path), tuned, prompts)
        note(f"recommendation written to {path}")

"""`kvscope simulate`: what would each eviction policy give at each capacity."""

from __future__ import annotations

import typer

from kvscope.app.options import Reading, SimulateOptions
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.options import DEFAULT_DB, Db, ScreenOptions, TraceArgument
from kvscope.cli.terminal import Terminal, stoppable
from kvscope.core.errors import ExitCode


def simulate(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: SimulateOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Replay a trace under eviction policies at several capacities: hits, TTFT, gap to optimum.

    The store keeps finished runs (see `kvscope runs`) and does not repeat them. After Ctrl-C the
    runs in progress are finished and kept.
    """
    from kvscope.app.requests import simulate_request

    # Policies and the store each take a while to import: of two mistakes the likelier comes first.
    early = simulate_request(options) if options.policies or options.param else None
    from kvscope.app.traces import HeldStore, check_source, prompts_to_replay
    from kvscope.store.db import open_store

    with open_store(db) as store:
        check_source(store, trace)
        request = early or simulate_request(options)
        from kvscope.app.documents.runs import simulate_document
        from kvscope.app.simulate import kernels
        from kvscope.app.simulate import simulate as run_replays
        from kvscope.report import policies as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        needed = kernels(request)
        with (
            prompts_to_replay(store, trace, needed, Terminal(), reading) as (stored, prompts),
            stoppable() as terminal,
        ):
            simulation = run_replays(HeldStore(store), stored, prompts, request, terminal)
    output.report(
        simulation.trace,
        printing,
        document=lambda: simulate_document(simulation),
        screen=lambda: report.screen(simulation),
        sections=lambda: report.sections(simulation),
        page="kvscope simulate",
    )
    if simulation.unfinished:
        count = len(simulation.runs)
        note(f"{count:,} of {count + simulation.unfinished:,} runs are finished and kept")
        raise typer.Exit(ExitCode.INTERRUPTED)

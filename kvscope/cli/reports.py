"""`kvscope analyze`, `explain`, `fit`, `simulate`, `retention`, `tune`, `fleet`: their reports.

Options are checked first, then the trace's name, then the names of sections: what loads NumPy and
kernels is imported after the mistakes that can be told without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from kvscope.app import values
from kvscope.app.options import (
    Option,
    Reading,
    Target,
    TuneOptions,
)
from kvscope.cli import output
from kvscope.cli.diagnostics import end_on, note
from kvscope.cli.options import DEFAULT_DB, Db, GateOptions, ScreenOptions, TraceArgument
from kvscope.cli.terminal import Terminal, stoppable
from kvscope.cli.usecase import Forget, keep_report, keep_stated, opened_store, stated
from kvscope.core.errors import ExitCode, Stopped, UsageError, placed
from kvscope.core.jit import load_in_background

if TYPE_CHECKING:
    from kvscope.app.gates import Gate
    from kvscope.app.requests import TuneRequest
    from kvscope.core.trace import Prompts, Trace
    from kvscope.store.file import StoreFile

DEFAULT_OUTPUT = "recommendation.toml"
Force = Annotated[
    bool, Option("Replace a file that recommends a switch or a tier by a weaker verdict.")
]
Explain = Annotated[bool, Option("The same as --full.")]
Output = Annotated[
    str | None,
    Target(
        "File for the recommendation; - writes none.", flags=("--output",), default=DEFAULT_OUTPUT
    ),
]


def tune(
    *,
    options: TuneOptions,
    gate: GateOptions,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    explain: Explain = False,
    path: Output = None,
    force: Force = False,
    forget: Forget = False,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Recommend policy, parameters and capacity for an SLO, with the gain and its uncertainty.

    Searched, chosen and accepted on three windows of the trace. Writes recommendation.toml.
    """
    screen = replace(printing, full=printing.full or explain)
    if path is None:
        with placed("--output"):
            path = values.target(DEFAULT_OUTPUT)
    from kvscope.app.baseline import baseline_figures
    from kvscope.app.gates import tune_figures, tune_gates
    from kvscope.app.requests import machine_requests, tune_request

    with opened_store(db, trace) as store:
        said = stated(store, trace, options, forget=forget)
        request, by_gpu = tune_request(said.options), machine_requests(said.options)
        gates = tune_gates(gate.fail_on)
        baseline = baseline_figures(gate.baseline, gates, "tune", store)
        load_in_background()
        from kvscope.app.traces import prompts_to_replay
        from kvscope.app.tune import recommendation_text, write_recommended
        from kvscope.app.tune import tune as recommend
        from kvscope.report import machines, recommendation
        from kvscope.report.section import check_names

        check_names(
            printing.section, [*recommendation.SECTIONS, *(machines.SECTIONS if by_gpu else ())]
        )
        stored, prompts = prompts_to_replay(store, trace, Terminal(), reading)
        if by_gpu and stored.span_s > 0:
            _show_machines(trace, stored, prompts, by_gpu, screen, gates)
            keep_stated(store, stored, said)
            if path != values.STANDARD_STREAM:
                note(f"{path} was not written: no machine is known")
            return
        if by_gpu:
            note("no GPU is simulated: queues need arrival times, which the trace lacks")
        with stoppable() as terminal:
            began = monotonic()
            try:
                tuned = recommend(stored, prompts, request, terminal)
            except Stopped as error:
                note(f"{error}; nothing was written")
                raise typer.Exit(ExitCode.INTERRUPTED) from None
        keep_stated(store, stored, said)
    if path != values.STANDARD_STREAM:
        tuned = replace(tuned, path=path)
    duration_s = monotonic() - began
    output.report(recommendation.report(tuned), screen)
    if path != values.STANDARD_STREAM:
        note(write_recommended(Path(path), tuned, prompts, force=force))
    keep_report(
        store,
        recommendation.report(tuned),
        duration_s,
        summary=recommendation.verdict_in_words(tuned)[0],
        file=recommendation_text(tuned, prompts),
    )
    end_on(gates, tune_figures(tuned), baseline)


def _show_machines(
    trace: str | None,
    stored: Trace,
    prompts: Prompts,
    requests: Sequence[TuneRequest],
    screen: ScreenOptions,
    gates: Sequence[Gate],
) -> None:
    """Print LRU on common GPUs, and the command that names one."""
    from kvscope.app.machines import study_machines
    from kvscope.report import machines

    if gates:
        raise UsageError(
            "nothing is recommended while no machine is known",
            where="--fail-on",
            remedy="name --gpu and --model",
        )
    with stoppable() as terminal:
        try:
            study = study_machines(trace, stored, prompts, requests, terminal)
        except Stopped as error:
            note(str(error))
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    output.report(machines.report(study), screen)


@contextmanager
def _studying(
    store: StoreFile, trace: str | None, reading: Reading
) -> Iterator[tuple[Trace, Prompts, Terminal]]:
    """Yield a trace with its prompts; what is stopped ends the command."""
    from kvscope.app.traces import prompts_to_replay

    stored, prompts = prompts_to_replay(store, trace, Terminal(), reading)
    with stoppable() as terminal:
        try:
            yield stored, prompts, terminal
        except Stopped as error:
            note(str(error))
            raise typer.Exit(ExitCode.INTERRUPTED) from None

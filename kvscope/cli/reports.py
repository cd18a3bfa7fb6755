"""`kvscope analyze`, `explain`, `fit`, `simulate`, `retention`, `tune`, `fleet`: their reports.

Options are checked first, then the trace's name, then the names of sections: what loads NumPy and
kernels is imported after the mistakes that can be told without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec.structs import asdict, replace

from kvscope.app import values
from kvscope.app.options import (
    AnalyzeOptions,
    DiffOptions,
    ExplainOptions,
    FitOptions,
    FleetOptions,
    Option,
    Reading,
    ReplicaOptions,
    RetentionOptions,
    SimulateOptions,
    Target,
    TuneOptions,
)
from kvscope.cli import output
from kvscope.cli.diagnostics import end_on, note
from kvscope.cli.options import DEFAULT_DB, Db, GateOptions, ScreenOptions, TraceArgument, parsed_by
from kvscope.cli.terminal import Terminal, stoppable
from kvscope.core.errors import ExitCode, Stopped, UsageError, placed
from kvscope.core.jit import load_in_background

if TYPE_CHECKING:
    from kvscope.app.deployment import StatedBefore
    from kvscope.app.gates import Gate
    from kvscope.app.requests import TuneRequest
    from kvscope.core.trace import Prompts, Trace
    from kvscope.report.report import Report
    from kvscope.store.file import StoreFile

Asked = TypeVar("Asked", bound=ReplicaOptions)
DEFAULT_OUTPUT = "recommendation.toml"
Force = Annotated[
    bool, Option("Replace a file that recommends a switch or a tier by a weaker verdict.")
]
Forget = Annotated[
    bool,
    Option("Start anew: use no deployment or SLO that earlier commands on the trace stated."),
]
Explain = Annotated[bool, Option("The same as --full.")]
Compared = Annotated[
    str,
    typer.Argument(
        parser=parsed_by(values.called),
        help="A trace (file or stored name), run:N of `kvscope runs`, or a recommendation (.toml).",
        show_default=False,
    ),
]
Output = Annotated[
    str | None,
    Target(
        "File for the recommendation; - writes none.", flags=("--output",), default=DEFAULT_OUTPUT
    ),
]


def analyze(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: AnalyzeOptions,
    forget: Forget = False,
    gate: GateOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Characterize a trace: what is reused, what caching can give, how large it must be.

    A path is ingested first if the store does not have it yet.
    """
    from kvscope.app.baseline import baseline_figures
    from kvscope.app.gates import analyze_figures, analyze_gates
    from kvscope.app.requests import analyze_request

    with _opened(db, trace) as store:
        said = _stated(store, trace, options, forget=forget)
        request = analyze_request(said.options)
        gates = analyze_gates(gate.fail_on, request)
        baseline = baseline_figures(gate.baseline, gates, "analyze", store)
        load_in_background()
        from kvscope.app.analyze import analyze_source
        from kvscope.report import overview
        from kvscope.report.section import check_names

        check_names(printing.section, overview.SECTIONS)
        analysis = analyze_source(store, trace, request, Terminal(), reading)
        _keep_stated(store, analysis.trace, said)
    output.report(overview.report(analysis), printing)
    end_on(gates, analyze_figures(analysis), baseline)


def explain(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: ExplainOptions,
    forget: Forget = False,
    gate: GateOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Explain why input tokens missed the cache: every missed token has one cause.

    Without a capacity or a deployment nothing is evicted.
    """
    from kvscope.app.baseline import baseline_figures
    from kvscope.app.gates import explain_figures, explain_gates
    from kvscope.app.requests import explain_request

    gates = explain_gates(gate.fail_on)
    with _opened(db, trace) as store:
        said = _stated(store, trace, options, forget=forget)
        request = explain_request(said.options)
        baseline = baseline_figures(gate.baseline, gates, "explain", store)
        load_in_background()
        from kvscope.app.explain import explain as run
        from kvscope.app.explain import read_evidence
        from kvscope.app.traces import prompts_to_replay
        from kvscope.report import misses as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        stored, prompts = prompts_to_replay(store, trace, Terminal(), reading)
        evidence = read_evidence(store, stored, request)
        explanation = run(stored, prompts, request, Terminal(), evidence)
        _keep_stated(store, stored, said)
    output.report(report.report(explanation), printing)
    end_on(gates, explain_figures(explanation), baseline)


def diff(
    left: Compared,
    right: Compared,
    *,
    db: Db = DEFAULT_DB,
    options: DiffOptions,
    printing: ScreenOptions,
) -> None:
    """Compare two traces, two stored runs or two recommendations; the largest differences first.

    Prints only what differs; --full has all figures.
    """
    from kvscope.app.requests import analyze_request

    request = analyze_request(AnalyzeOptions(**asdict(options)))
    load_in_background()
    from kvscope.app.diff import diff as compare
    from kvscope.report.comparison import report
    from kvscope.store.file import StoreFile

    with StoreFile(db, note) as store:
        compared = compare(store, left, right, request, Terminal())
    output.report(report(compared), printing)


def fit(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: FitOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Fit models of reuse and of conversations: which one to use, and how stable it is.

    The store keeps the result.
    """
    from kvscope.app.fit import exported_policy

    printing.check_alone(options.export)
    exported = exported_policy(options)
    with _opened(db, trace) as store:
        load_in_background()
        from kvscope.app.fit import fit_trace
        from kvscope.app.traces import load_trace
        from kvscope.report import fit as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        stored = load_trace(store, trace, Terminal(), reading)
        fitted = fit_trace(store, stored, options, exported, Terminal())
    output.report(report.report(fitted), printing, options.export)


def simulate(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: SimulateOptions,
    forget: Forget = False,
    gate: GateOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Replay a trace under eviction policies at several capacities: hits, TTFT, gap to oracles.

    The store keeps finished runs (see `kvscope runs`) and does not repeat them. After Ctrl-C the
    runs in progress are finished and kept.
    """
    from kvscope.app.baseline import baseline_figures
    from kvscope.app.gates import simulate_figures, simulate_gates
    from kvscope.app.requests import simulate_request

    with _opened(db, trace) as store:
        said = _stated(store, trace, options, forget=forget)
        request = simulate_request(said.options)
        gates = simulate_gates(
            gate.fail_on, request, recommended=options.recommendation is not None
        )
        baseline = baseline_figures(gate.baseline, gates, "simulate", store)
        load_in_background()
        from kvscope.app.simulate import simulate as run_replays
        from kvscope.app.traces import load_trace, sampleable
        from kvscope.report import policies as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        stored = load_trace(store, trace, Terminal(), reading)
        prompts = sampleable(store, stored, request.setting, Terminal())
        with stoppable() as terminal:
            simulation = run_replays(store, stored, prompts, request, terminal)
        _keep_stated(store, stored, said)
    output.report(report.report(simulation), printing)
    if simulation.unfinished:
        count = len(simulation.runs)
        note(f"{count:,} of {count + simulation.unfinished:,} runs are finished and kept")
        raise typer.Exit(ExitCode.INTERRUPTED)
    end_on(gates, simulate_figures(simulation.runs), baseline)


def retention(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: RetentionOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Find how long blocks should live: hits and memory of every TTL, the best ones, and prices.

    With a capacity, TTLs by category are chosen on the first half and replayed on the second.
    """
    from kvscope.app.requests import retention_request

    request = retention_request(options)
    with _opened(db, trace) as store:
        load_in_background()
        from kvscope.app.retention import retention as run
        from kvscope.app.traces import prompts_to_replay
        from kvscope.report import retention as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        stored, prompts = prompts_to_replay(store, trace, Terminal(), reading)
        result = run(stored, prompts, request)
    output.report(report.report(result), printing)


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

    with _opened(db, trace) as store:
        said = _stated(store, trace, options, forget=forget)
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
            _keep_stated(store, stored, said)
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
        _keep_stated(store, stored, said)
    if path != values.STANDARD_STREAM:
        tuned = replace(tuned, path=path)
    duration_s = monotonic() - began
    output.report(recommendation.report(tuned), screen)
    if path != values.STANDARD_STREAM:
        note(write_recommended(Path(path), tuned, prompts, force=force))
    _keep(
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


def fleet(
    *,
    options: FleetOptions,
    forget: Forget = False,
    gate: GateOptions,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Find the fewest replicas that meet an SLO, and the router in front of them.

    Replays the trace with every router, policy and number of replicas; says what each router loses.
    """
    from kvscope.app.baseline import baseline_figures
    from kvscope.app.gates import fleet_figures, fleet_gates
    from kvscope.app.requests import fleet_request

    with _opened(db, trace) as store:
        said = _stated(store, trace, options, forget=forget)
        request = fleet_request(said.options)
        gates = fleet_gates(gate.fail_on, request)
        baseline = baseline_figures(gate.baseline, gates, "fleet", store)
        load_in_background()
        from kvscope.app.fleet import fleet as study_fleet
        from kvscope.report import fleet as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        with _studying(store, trace, reading) as (stored, prompts, terminal):
            began = monotonic()
            study = study_fleet(stored, prompts, request, terminal)
        _keep_stated(store, stored, said)
    duration_s = monotonic() - began
    output.report(report.report(study), printing)
    _keep(store, report.report(study), duration_s)
    end_on(gates, fleet_figures(study), baseline)


def _keep(
    store: StoreFile,
    result: Report,
    duration_s: float,
    *,
    summary: str = "",
    file: str | None = None,
) -> None:
    """Store what was printed, for the dashboard to list and open."""
    from kvscope.report.stored import keep
    from kvscope.store.db import MEMORY
    from kvscope.store.file import CANNOT_STORE

    if store.path == MEMORY:
        return
    try:
        keep(store, result, duration_s, summary=summary, file=file)
    except CANNOT_STORE as error:
        note(f"the report was not stored: {error}")


def _stated(
    store: StoreFile,
    trace: str | None,
    options: Asked,
    *,
    forget: bool,
) -> StatedBefore[Asked]:
    """Return the options with what earlier commands on the trace stated, and say what that is."""
    from kvscope.app.deployment import stated_before
    from kvscope.app.traces import stated_for

    said = stated_before(options, {} if forget else stated_for(store, trace))
    if said.in_words:
        note(f"As stated before: {said.in_words} (--forget starts anew)")
    return said


def _keep_stated(store: StoreFile, trace: Trace, said: StatedBefore[Any]) -> None:
    """Keep what the command stated for the next one on the trace."""
    from kvscope.app.traces import keep_stated

    keep_stated(store, trace, said.record)


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


@contextmanager
def _opened(db: str, trace: str | None) -> Iterator[StoreFile]:
    """Yield the store. Raises InputError for a trace that is neither in it nor a file."""
    from kvscope.app.traces import check_source, store_for

    with store_for(db, trace, note) as store:
        check_source(store, trace)
        yield store

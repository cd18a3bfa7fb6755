"""Commands on the store: `kvscope ingest`, `traces`, `export` and `doctor`, `runs` for replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvscope.app import values
from kvscope.app.options import (
    IntoOptions,
    KvDtype,
    Model,
    Option,
    Reading,
    TraceFile,
    check_outputs,
)
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.options import (
    DEFAULT_DB,
    Db,
    Json,
    TraceArgument,
    default_command,
    files_argument,
)
from kvscope.cli.terminal import Terminal
from kvscope.core import units
from kvscope.core.errors import ExitCode, UsageError
from kvscope.core.files import one_path
from kvscope.replay.policy_options import parse_policies
from kvscope.store.folder import is_dataset, is_in_dataset, store_path

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.ingest.pipeline import Ingested
    from kvscope.store.doctor import StoreHealth
    from kvscope.store.file import StoreFile

traces_app = typer.Typer(invoke_without_command=True)

Paths = Annotated[list[str], files_argument("PATH")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a stored trace.", show_default=False)
]
To = Annotated[
    str,
    Option(
        "bailian or parquet (everything), mooncake (times, lengths and blocks), or oracleGeneral"
        " (block accesses, for libCacheSim).",
        "FORMAT",
    ),
]

Folder = Annotated[
    str | None,
    typer.Argument(metavar="[DIR]", help="A dataset's folder; by default the store is checked."),
]
SaveTo = Annotated[
    str | None,
    Option(
        "Copy what is sound to this new store.", "STORE", values.new_target, flags=("--save-to",)
    ),
]


def ingest(
    *,
    paths: Paths,
    db: Db = DEFAULT_DB,
    into: IntoOptions,
    reading: Reading,
    as_json: Json = False,
) -> None:
    """Read traces into the store: each once, completely or not at all.

    Each path is a trace; with --name, all paths are one trace. With --into, all paths are a
    dataset, for traces larger than memory; other commands take its folder.
    """
    unused = [f"--{name}" for name in into.__struct_fields__ if getattr(into, name)]
    if unused and into.into is None:
        raise UsageError("applies to a dataset", where=", ".join(unused), remedy="add --into DIR")
    ingested = []
    for each in _ingested(paths, db, into, reading):
        ingested.append(each)
        if not as_json:
            output.emit(_in_one_line(each.trace))
    if as_json:
        from kvscope.usecases.catalog import IngestedTrace, IngestedTraces

        made = tuple(IngestedTrace(each.trace, each.created) for each in ingested)
        output.emit_result("ingest", IngestedTraces(made))


def _ingested(paths: list[str], db: str, into: IntoOptions, reading: Reading) -> Iterator[Ingested]:
    """Yield the dataset of all paths, or each trace as it is stored."""
    if into.into is not None:
        from kvscope.app.traces import ingest_into

        yield ingest_into(paths, into.into, into, reading, Terminal())
        return
    from kvscope.app.traces import ingest_file
    from kvscope.store.file import StoreFile

    with StoreFile(db, note) as store:
        for path in paths if reading.name is None else [one_path(paths)]:
            yield ingest_file(store, path, Terminal(), reading)


def export(to: To, path: TraceFile, trace: TraceArgument = None, db: Db = DEFAULT_DB) -> None:
    """Write a trace in another format; block ids are the numbers of its distinct blocks."""
    from kvscope.app.traces import TraceSource
    from kvscope.ingest.formats import registry

    terminal = Terminal()
    registry.exporter(to, path)  # so that a wrong one is refused before the trace is read
    with TraceSource.of(trace).opened(db, terminal) as (store, stored):
        check_outputs({"--output": path}, {"trace": stored.source})
        with (
            store.reading() as opened,
            terminal.steps(f"writing {path}", stored.requests) as advance,
        ):
            registry.export(opened, stored, to, path, advance)
    where = "standard output" if path == values.STANDARD_STREAM else path
    note(f"{where}: {stored.requests:,} requests of {stored.name!r}")


def doctor(
    folder: Folder = None, db: Db = DEFAULT_DB, save_to: SaveTo = None, as_json: Json = False
) -> None:
    """Check a store or a dataset: read all of it, and list what can be saved.

    Exit code 3: some part is damaged. Sound parts can be copied to a new store.
    """
    from kvscope.store.doctor import examine, save

    if folder is not None and not is_dataset(folder):
        raise UsageError("no dataset", where=folder, remedy="name a store with --db")
    db = db if folder is None else store_path(folder)
    files: tuple[str, ...] = ()
    if is_in_dataset(db):
        from kvscope.datasets.dataset import Dataset

        if save_to is not None:
            raise UsageError(
                "this is a dataset, whose blocks lie in its shards",
                where=str(Path(db).parent),
                remedy="ingest its files into another folder",
            )
        files = tuple(Dataset(str(Path(db).parent)).faults())
    health = examine(db, files)
    saved = None if save_to is None else save(health, save_to)
    if as_json:
        from kvscope.usecases.catalog import CheckedStore

        output.emit_result("doctor", CheckedStore(health, saved))
    else:
        _show_health(health)
    if saved is not None:
        left_out = f"; left out: {', '.join(saved.left_out)}" if saved.left_out else ""
        note(f"{saved.path}: {len(saved.traces):,} traces saved{left_out}")
    if not health.is_sound:
        raise typer.Exit(ExitCode.INPUT)


def _show_health(health: StoreHealth) -> None:
    if health.fault:
        output.emit(
            f"{health.path}: {health.fault}. No trace can be saved: ingest their files again into"
            " another store."
        )
        return
    for each in health.traces:
        name, faults = each.trace.name, "; ".join((*each.faults, *each.result_faults))
        if each.faults:
            source = each.trace.source
            advice = f"ingest {source}" if each.source_exists else f"{source} is not there either"
            output.emit(f"{name}: damaged ({faults}). It cannot be saved; {advice}.")
        elif each.result_faults:
            output.emit(f"{name}: sound, but not all results ({faults}). --save-to saves the rest.")
        else:
            output.emit(f"{name}: sound")
    output.emit(f"{health.path}: {'sound' if health.is_sound else 'damaged'}")


@traces_app.callback()
def traces(context: typer.Context, db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """List the stored traces, the one last worked on first."""
    if context.invoked_subcommand is not None:
        context.obj = db
        return
    from kvscope.store.traces import all_traces

    with _existing(db).reading() as store:
        stored = all_traces(store)
    if as_json:
        from kvscope.usecases.catalog import StoredTrace

        output.emit_result("traces", {"traces": tuple(map(StoredTrace, stored))})
    elif stored:
        from kvscope.report.stored import traces_table

        output.show_table(traces_table(stored))
    else:
        note(f"{db} holds no traces; run `kvscope ingest` on one")


@traces_app.command("remove")
def remove_trace(context: typer.Context, name: Name, db: Db = DEFAULT_DB) -> None:
    """Remove a stored trace and all results derived from it; its source file stays."""
    from kvscope.store import traces as stored

    with _existing(_named_store(context, db)).writing() as store:
        stored.remove(store, stored.find(store, name))
    note(f"removed {name!r}")


@traces_app.command("bad-lines")
def bad_lines(context: typer.Context, name: Name, db: Db = DEFAULT_DB) -> None:
    """Show the lines of a trace that could not be used, as path:line: reason."""
    from kvscope.store import traces as stored

    with _existing(_named_store(context, db)).reading() as store:
        trace = stored.find(store, name)
        lines = stored.bad_lines(store, trace)
    for place, reason in lines:
        output.emit(f"{place}: {reason}")
    if len(lines) < trace.bad_lines:
        note(f"the first {len(lines):,} of {trace.bad_lines:,} bad lines")
    elif not lines:
        note(f"{name!r} has no bad lines")


def _named_store(context: typer.Context, db: str) -> str:
    """Return the store named after the sub-command, else the one named before it."""
    return db if db != DEFAULT_DB else str(context.obj)


def _existing(db: str) -> StoreFile:
    """Return the store `db`; reading or writing it raises InputError if it does not exist."""
    from kvscope.store.file import StoreFile

    return StoreFile(db, note, create=False)


def _in_one_line(trace: Trace) -> str:
    span = units.duration_in_words(trace.span_s)
    parts = [f"{trace.name}: {trace.format}, {trace.requests:,} requests over {span}"]
    if trace.has_hashes:
        parts.append(
            f"{trace.accesses:,} accesses of {trace.distinct_blocks:,} blocks of"
            f" {trace.block_size} tokens"
        )
    return ", ".join([*parts, f"lineage {trace.lineage}"])


runs_app = typer.Typer(
    cls=default_command("list"),
    help="Stored runs of `simulate` and reports of `tune` and `fleet`: list or remove some.",
)

Policies = Annotated[
    str | None, Option("Only runs of these policies.", "NAME,...", flags=("--policy",))
]
All = Annotated[bool, Option("All runs of the trace.", flags=("--all",))]
Reports = Annotated[
    bool, Option("All reports of `tune` and `fleet` over the trace.", flags=("--reports",))
]


@runs_app.command("list")
def list_runs(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    policies: Policies = None,
    model: Model = None,
    kv_dtype: KvDtype = None,
    as_json: Json = False,
) -> None:
    """List the stored runs of a trace, grouped by hit definition and latency.

    Without `--policy`, also list the stored reports of `tune` and `fleet`, which the dashboard
    opens. With `--model`, show capacities in bytes, too. `list` may be left out.
    """
    from kvscope.app.requests import kv_model
    from kvscope.app.traces import TraceSource
    from kvscope.report.stored import all_reports
    from kvscope.store import results

    kv = kv_model(model, kv_dtype)
    names = _names(policies)
    with (
        TraceSource.of(trace).opened(db, Terminal()) as (stores, stored),
        stores.reading() as store,
    ):
        every = results.all_runs(store, stored)
        chosen = [each for each in every if names is None or each.run.policy in names]
        runs = [each.run for each in (results.with_parts(store, chosen) if as_json else chosen)]
        every_report = () if names is not None else all_reports(store)
        reports = [each for each in every_report if each.trace == stored.name]
    if as_json:
        from kvscope.app.run_figures import StoredRun
        from kvscope.app.simulate import ordered
        from kvscope.usecases.catalog import StoredResults

        listed = tuple(StoredRun(run, stored.block_size, kv) for run in ordered(runs))
        output.emit_result("runs", StoredResults(stored, listed, tuple(reports)), schema=2)
    elif runs or reports:
        from kvscope.report.policies import stored as stored_sections
        from kvscope.report.stored import section

        sections = stored_sections(stored, runs, kv)
        output.show_sections([*sections, section(reports)] if reports else sections)
    else:
        note(f"the store has no such runs of {stored.name!r}; make some with `kvscope simulate`")


@runs_app.command("remove")
def remove_runs(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    policies: Policies = None,
    every: All = False,
    reports: Reports = False,
) -> None:
    """Remove a trace's stored runs (--policy or --all) or reports (--reports): one is required."""
    from kvscope.app.traces import TraceSource
    from kvscope.report.words import counted
    from kvscope.store import results

    names = _names(policies)
    if (names is not None) + every + reports != 1:
        raise UsageError(
            "not clear what to remove",
            where="kvscope runs remove",
            remedy="give --policy, --all or --reports",
        )
    with (
        TraceSource.of(trace).opened(db, Terminal()) as (stores, stored),
        stores.writing() as store,
    ):
        if reports:
            count = results.remove_reports(store, stored)
        else:
            count = results.remove_runs(
                store, stored, lambda run: names is None or run.policy in names
            )
    note(f"removed {counted(count, 'report' if reports else 'run')} of {stored.name!r}")


def _names(policies: str | None) -> frozenset[str] | None:
    """Return the names of the policies that `--policy` lists, None for all."""
    if policies is None:
        return None
    return frozenset(policy.name for policy in parse_policies(policies, where="--policy"))

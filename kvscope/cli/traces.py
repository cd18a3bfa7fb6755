"""`kvscope ingest`, `traces` and `export`: traces into the store, what it holds, and out again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvscope.app import values
from kvscope.app.options import Option, Reading
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.options import DEFAULT_DB, Db, Json, TraceArgument, parsed_by
from kvscope.cli.terminal import Terminal
from kvscope.core import units
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.report.section import Table
    from kvscope.store.db import Store

app = typer.Typer(invoke_without_command=True)

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        parser=parsed_by(values.called),
        help="Trace files, plain, .gz or .zst; - is standard input.",
        show_default=False,
    ),
]
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
Output = Annotated[
    str,
    Option(
        "File to write; .gz and .zst compress, - is standard output.",
        "FILE",
        values.target,
        flags=("--output", "-o"),
    ),
]


def ingest(*, paths: Paths, db: Db = DEFAULT_DB, reading: Reading, as_json: Json = False) -> None:
    """Read traces into the store: each once, whole or not at all."""
    if reading.name is not None and len(paths) > 1:
        raise UsageError(
            f"one name for {len(paths)} traces", where="--name", remedy="ingest them one by one"
        )
    from kvscope.app.traces import ingest_file
    from kvscope.store.db import open_store

    ingested = []
    with open_store(db) as store:
        for path in paths:
            ingested.append(ingest_file(store, path, Terminal(), reading))
            if not as_json:
                output.emit(_in_one_line(ingested[-1].trace))
    if as_json:
        from kvscope.app.documents.lists import ingest_document

        output.emit_json(ingest_document(ingested))


def export(to: To, path: Output, trace: TraceArgument = None, db: Db = DEFAULT_DB) -> None:
    """Write a trace in another format; block ids become the numbers of its distinct blocks."""
    from kvscope.app.traces import load_trace
    from kvscope.ingest import export as exports
    from kvscope.store.db import open_store

    terminal = Terminal()
    with open_store(db) as store:
        stored = load_trace(store, trace, terminal)
        with terminal.steps(f"writing {path}", stored.requests) as advance:
            exports.export(store, stored, to, path, advance)
    where = "standard output" if path == values.STANDARD_STREAM else path
    note(f"{where}: {stored.requests:,} requests of {stored.name!r}")


@app.callback()
def traces(context: typer.Context, db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """List the stored traces, the one last worked on first."""
    if context.invoked_subcommand is not None:
        context.obj = db
        return
    from kvscope.store.traces import all_traces

    with _existing(db) as store:
        stored = all_traces(store)
    if as_json:
        from kvscope.app.documents.lists import traces_document

        output.emit_json(traces_document(stored))
    elif stored:
        output.show_table(_table(stored))
    else:
        note(f"{db} holds no traces; run `kvscope ingest` on one")


@app.command("remove")
def remove(context: typer.Context, name: Name, db: Db = DEFAULT_DB) -> None:
    """Remove a stored trace and all that was derived from it; its file stays."""
    from kvscope.store import traces as stored

    with _existing(_named_store(context, db)) as store:
        stored.remove(store, stored.find(store, name))
    note(f"removed {name!r}")


@app.command("bad-lines")
def bad_lines(context: typer.Context, name: Name, db: Db = DEFAULT_DB) -> None:
    """Show the lines of a trace that could not be used, as path:line: reason."""
    from kvscope.store import traces as stored

    with _existing(_named_store(context, db)) as store:
        trace = stored.find(store, name)
        lines = stored.bad_lines(store, trace)
    for line, reason in lines:
        output.emit(f"{trace.source}:{line}: {reason}")
    if len(lines) < trace.bad_lines:
        note(f"the first {len(lines):,} of {trace.bad_lines:,} bad lines")
    elif not lines:
        note(f"{name!r} has no bad lines")


def _named_store(context: typer.Context, db: str) -> str:
    """Return the store named after the sub-command, or else before it."""
    return db if db != DEFAULT_DB else str(context.obj)


def _existing(db: str) -> Store:
    """Open a store without creating it; for writing, so that it is migrated."""
    from kvscope.store.db import MEMORY, open_store

    missing = db != MEMORY and not Path(db).exists()
    return open_store(db, read_only=missing)


def _in_one_line(trace: Trace) -> str:
    span = units.format_duration(trace.span_s)
    parts = [f"{trace.name}: {trace.format}, {trace.requests:,} requests in {span}"]
    if trace.has_hashes:
        parts.append(
            f"{trace.accesses:,} accesses of {trace.distinct_blocks:,} blocks of"
            f" {trace.block_size} tokens"
        )
    return ", ".join([*parts, f"lineage {trace.lineage}"])


def _table(stored: list[Trace]) -> Table:
    from kvscope.report.section import tabulate

    columns = {
        "name": lambda trace: trace.name,
        "format": lambda trace: trace.format,
        "requests": lambda trace: units.format_count(trace.requests),
        "accesses": lambda trace: units.format_count(trace.accesses),
        "blocks": lambda trace: units.format_count(trace.distinct_blocks),
        "span": lambda trace: units.duration_in_words(trace.span_s),
        "lineage": lambda trace: trace.lineage,
        "bad lines": lambda trace: units.format_count(trace.bad_lines),
    }
    return tabulate("", stored, columns, words=("format", "lineage"))

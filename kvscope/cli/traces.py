"""`kvscope traces`: what the store holds, and which lines of it could not be used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.loading import trace_record
from kvscope.cli.options import DEFAULT_DB, Db, Json
from kvscope.core import units

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.report.section import Table
    from kvscope.store.db import Store

app = typer.Typer(invoke_without_command=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A stored trace's name.", show_default=False)
]


@app.callback()
def traces(context: typer.Context, db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """List the stored traces, the one last worked on first."""
    if context.invoked_subcommand is not None:
        context.obj = db
        return
    from kvscope.cli.rendering import show_table
    from kvscope.store.traces import all_traces

    with _existing(db) as store:
        known = all_traces(store)
    if as_json:
        output.emit_json("traces", None, {"traces": [trace_record(trace) for trace in known]})
    elif known:
        show_table(_table(known))
    else:
        note(f"{db} holds no traces; run `kvscope ingest` on one")


@app.command("remove")
def remove(context: typer.Context, name: Name, db: Db = DEFAULT_DB) -> None:
    """Remove a stored trace and all that was derived from it; its file stays."""
    from kvscope.store import traces as stored

    with _existing(_chosen(context, db)) as store:
        stored.remove(store, stored.find(store, name))
    note(f"removed {name!r}")


@app.command("bad-lines")
def bad_lines(context: typer.Context, name: Name, db: Db = DEFAULT_DB) -> None:
    """Show the lines of a trace that could not be used, as path:line: reason."""
    from kvscope.store import traces as stored

    with _existing(_chosen(context, db)) as store:
        trace = stored.find(store, name)
        kept = stored.bad_lines(store, trace)
    for line, reason in kept:
        output.emit(f"{trace.source}:{line}: {reason}")
    if len(kept) < trace.bad_lines:
        note(f"the first {len(kept):,} of {trace.bad_lines:,} bad lines")
    elif not kept:
        note(f"{name!r} has no bad lines")


def _chosen(context: typer.Context, db: str) -> str:
    """The store named behind the sub-command, or else before it."""
    return db if db != DEFAULT_DB else str(context.obj)


def _existing(db: str) -> Store:
    """The store, which listing must not create; open for writing, so that it is migrated."""
    from kvscope.store.db import MEMORY, open_store

    missing = db != MEMORY and not Path(db).exists()
    return open_store(db, read_only=missing)


def _table(known: list[Trace]) -> Table:
    from kvscope.report.section import Table

    rows = tuple(
        (
            trace.name,
            trace.format,
            units.format_count(trace.requests),
            units.format_count(trace.accesses),
            units.format_count(trace.distinct_blocks),
            units.format_duration(trace.span_s),
            trace.lineage,
            units.format_count(trace.bad_lines),
        )
        for trace in known
    )
    columns = ("name", "format", "requests", "accesses", "blocks", "span", "lineage", "bad lines")
    return Table("", columns, rows)

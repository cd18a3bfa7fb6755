"""`kvscope ingest`: bring traces into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvscope.cli import output
from kvscope.cli.loading import ingest_reported, trace_record
from kvscope.cli.options import AS_IT_SAYS, DEFAULT_DB, Db, Json, Reading, with_reading
from kvscope.cli.values import called, parsed_by
from kvscope.core import units
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.ingest.pipeline import Ingested

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        parser=parsed_by(called),
        help="Trace files, plain, .gz or .zst; - is standard input.",
        show_default=False,
    ),
]


@with_reading
def ingest(
    paths: Paths,
    db: Db = DEFAULT_DB,
    reading: Reading = AS_IT_SAYS,
    as_json: Json = False,
) -> None:
    """Read traces into the store: each once, whole or not at all."""
    if reading.name is not None and len(paths) > 1:
        raise UsageError(
            f"one name for {len(paths)} traces", where="--name", remedy="ingest them one by one"
        )
    from kvscope.store.db import open_store

    ingested = []
    with open_store(db) as store:
        for path in paths:
            ingested.append(ingest_reported(store, path, reading))
            if not as_json:
                output.emit(_told(ingested[-1]))
    if as_json:
        _emit_json(ingested)


def _told(found: Ingested) -> str:
    """One line on what is now in the store."""
    trace = found.trace
    parts = [
        (
            f"{trace.name}: {trace.format}, {trace.requests:,} requests in"
            f" {units.format_duration(trace.span_s)}"
        )
    ]
    if trace.has_hashes:
        parts.append(
            f"{trace.accesses:,} accesses of {trace.distinct_blocks:,} blocks of"
            f" {trace.block_size} tokens"
        )
    parts.append(f"lineage {trace.lineage}")
    return ", ".join(parts)


def _emit_json(ingested: list[Ingested]) -> None:
    """The document's `trace` is the last one; `ingested` has all, in the order of the paths."""
    told = [{"created": one.created} | trace_record(one.trace) for one in ingested]
    output.emit_json("ingest", ingested[-1].trace, {"ingested": told})

"""`kvscope ingest`: bring traces into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvscope import units
from kvscope.cli import output
from kvscope.cli.loading import (
    DEFAULT_MAX_BAD,
    BlockSize,
    Format,
    MaxBad,
    Name,
    Seed,
    SessionArrivals,
    Strict,
    ingest_options,
    ingest_reported,
    trace_record,
)
from kvscope.cli.options import DEFAULT_DB, Db, Json
from kvscope.errors import UsageError

if TYPE_CHECKING:
    from kvscope.ingest.pipeline import Ingested

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="Trace files, plain, .gz or .zst; - is standard input.",
        show_default=False,
    ),
]


def ingest(
    paths: Paths,
    db: Db = DEFAULT_DB,
    name: Name = None,
    trace_format: Format = None,
    block_size: BlockSize = None,
    session_arrivals: SessionArrivals = None,
    seed: Seed = 0,
    strict: Strict = False,
    max_bad: MaxBad = DEFAULT_MAX_BAD,
    as_json: Json = False,
) -> None:
    """Read traces into the store: each once, whole or not at all."""
    if name is not None and len(paths) > 1:
        raise UsageError(
            f"one name for {len(paths)} traces", where="--name", remedy="ingest them one by one"
        )
    from kvscope.store.db import open_store

    options = ingest_options(
        name=name,
        trace_format=trace_format,
        block_size=block_size,
        session_arrivals=session_arrivals,
        seed=seed,
        strict=strict,
        max_bad=max_bad,
    )
    ingested = []
    with open_store(db) as store:
        for path in paths:
            ingested.append(ingest_reported(store, path, options))
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

"""`kvscope export`: a stored trace as a file of another tool's format."""

from __future__ import annotations

from typing import Annotated

import typer

from kvscope.cli.diagnostics import note
from kvscope.cli.loading import load_trace
from kvscope.cli.options import DEFAULT_DB, Db, TraceArgument
from kvscope.cli.progress import progress
from kvscope.cli.values import STANDARD_STREAM, parsed_by, target

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help="bailian or parquet (everything), mooncake (times, lengths and blocks),"
        " or oracleGeneral (block accesses for libCacheSim).",
        show_default=False,
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        parser=parsed_by(target),
        help="Where to; .gz and .zst compress, - is standard output.",
        show_default=False,
    ),
]


def export(to: To, path: Output, trace: TraceArgument = None, db: Db = DEFAULT_DB) -> None:
    """Write a trace in another format; block ids become the numbers of its distinct blocks."""
    from kvscope.ingest import export as exports
    from kvscope.store.db import open_store

    with open_store(db) as store:
        chosen = load_trace(store, trace)
        with progress(f"writing {path}", chosen.requests, unit="steps") as advance:
            exports.export(store, chosen, to, path, advance)
    where = "standard output" if path == STANDARD_STREAM else path
    note(f"{where}: {chosen.requests:,} requests of {chosen.name!r}")

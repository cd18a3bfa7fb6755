"""Export: one stored trace into a file of some format; a new one is a line in `EXPORTERS`."""

from __future__ import annotations

from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import STANDARD_STREAM, sink
from kvscope.core.trace import Trace
from kvscope.ingest.formats.bailian import BailianExport
from kvscope.ingest.formats.exporter import Advance, Exporter
from kvscope.ingest.formats.mooncake import MooncakeExport
from kvscope.ingest.formats.oracle_general import OracleGeneralExport
from kvscope.ingest.formats.parquet import ParquetExport
from kvscope.store.db import Store

EXPORTERS: tuple[type[Exporter], ...] = (
    BailianExport,
    MooncakeExport,
    ParquetExport,
    OracleGeneralExport,
)


def exporter_by_name(name: str) -> type[Exporter]:
    """Return the export format called `name`, in any case. Raises UsageError if there is none."""
    for known in EXPORTERS:
        if known.name.lower() == name.lower():
            return known
    raise UsageError(
        f"unknown export format {name!r}",
        where="--to",
        remedy="take one of " + ", ".join(known.name for known in EXPORTERS),
    )


def export(store: Store, trace: Trace, to: str, path: str, advance: Advance | None = None) -> None:
    """Write `trace` to `path` (`-`: standard output) in the format called `to`.

    `advance` gets the number of requests written. Raises UsageError for an unknown format or a
    binary one on standard output, InputError for a trace that the format cannot hold.
    """
    exporter = exporter_by_name(to)()
    if path == STANDARD_STREAM and not exporter.is_text:
        raise UsageError(
            f"{exporter.name} is binary and cannot go to standard output",
            where="--output",
            remedy="name a file",
        )
    if exporter.needs_hashes and not trace.has_hashes:
        raise InputError(
            f"the trace has no block hashes, and {exporter.name} holds nothing else",
            where=trace.name,
            remedy="export it to parquet, or to mooncake",
        )
    with sink(path) as stream:
        exporter.write(store, trace, stream, advance or (lambda _: None))

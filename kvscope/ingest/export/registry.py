"""Every format kvscope writes; a new one is a file in this folder and a line here."""

from __future__ import annotations

from kvscope.errors import UsageError
from kvscope.ingest.export.bailian import BailianExport
from kvscope.ingest.export.base import Exporter
from kvscope.ingest.export.mooncake import MooncakeExport
from kvscope.ingest.export.oracle_general import OracleGeneralExport
from kvscope.ingest.export.parquet import ParquetExport

EXPORTERS: tuple[type[Exporter], ...] = (
    BailianExport,
    MooncakeExport,
    ParquetExport,
    OracleGeneralExport,
)


def by_name(name: str) -> type[Exporter]:
    """The format called `name`, in any case."""
    for known in EXPORTERS:
        if known.name.lower() == name.lower():
            return known
    raise UsageError(
        f"unknown export format {name!r}",
        where="--to",
        remedy="take one of " + ", ".join(known.name for known in EXPORTERS),
    )

"""Parquet with the canonical columns: kvscope's own format, compact and typed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import polars as pl
from polars.io.plugins import register_io_source

from kvscope.core.trace import Trace
from kvscope.ingest.export.base import Advance, Exporter, Row, rows
from kvscope.ingest.formats.parquet import Parquet
from kvscope.ingest.identifiers import ROOT
from kvscope.store.db import Store

_SCHEMA: dict[str, pl.DataType] = {
    "arrival_s": pl.Float64(),
    "chat_id": pl.Int64(),
    "parent_chat_id": pl.Int64(),
    "user_id": pl.Int64(),
    "type": pl.String(),
    "turn": pl.Int32(),
    "input_tokens": pl.Int32(),
    "output_tokens": pl.Int32(),
    "hash_ids": pl.List(pl.Int32()),
    "block_size": pl.Int32(),
}


class ParquetExport(Exporter):
    """Every canonical column; conversations that were inferred are left to be inferred again.

    Lost: ids that were strings (their digests are written) and the original block hashes.
    """

    name = Parquet.name
    summary = Parquet.summary
    is_text = False

    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write row groups as they come."""

        def frames(
            with_columns: list[str] | None,
            predicate: pl.Expr | None,
            n_rows: int | None,
            batch_size: int | None,
        ) -> Iterator[pl.DataFrame]:
            # Nothing is pushed down: a sink asks for all columns of all rows.
            for chunk in rows(store, trace):
                yield _frame(chunk, trace)
                advance(len(chunk))

        register_io_source(frames, schema=_SCHEMA).sink_parquet(stream, compression="zstd")


def _frame(chunk: list[Row], trace: Trace) -> pl.DataFrame:
    """The chunk with a column a field; chat ids only where conversations are the trace's own."""
    columns = {name: [getattr(row, name) for row in chunk] for name in Row.__dataclass_fields__}
    if trace.lineage == "given":
        parents = [ROOT if one is None else one for one in columns["parent_chat_id"]]
        columns |= {"parent_chat_id": parents}
    else:
        nobody = [None] * len(chunk)
        columns |= {"chat_id": nobody, "parent_chat_id": nobody}
    return pl.DataFrame(columns | {"block_size": [trace.block_size] * len(chunk)}, schema=_SCHEMA)

"""Parquet files with the canonical columns: kvscope's own export, or anyone's.

DuckDB reads them, not polars: on a damaged file polars may abort the whole process.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import duckdb
import msgspec
from msgspec.structs import asdict

from kvscope.core.errors import InputError
from kvscope.core.files import STANDARD_STREAM
from kvscope.core.trace import Trace
from kvscope.ingest.formats.base import ROOT, Reader, Records, Request, TraceFormat
from kvscope.ingest.formats.exporter import Advance, Exporter, Row, rows
from kvscope.ingest.source import Source
from kvscope.store.db import Store, statement

_MAGIC = b"PAR1"
_MANDATORY = ("input_tokens", "output_tokens")
_PATTERN_CHARACTERS = frozenset("*?[")
_ROWS_AT_ONCE = 2_048
_OS_ERROR = re.compile(r"\(os error (\d+)\)")

# What a damaged file ends in; the last two where a name or text in it is no UTF-8.
_DAMAGE = (duckdb.Error, OSError, RuntimeError, UnicodeDecodeError)


class _ParquetRow(Request):
    """A request whose hash ids are lists, as the columns of a table are."""

    hash_ids: list[int | str] | None = None


class _ParquetReader(Reader):
    def records(self, source: Source) -> Iterator[Records]:
        first = 1
        with _as_file(source) as path:
            for batch in _batches(path, source.path):
                records = Records()
                for number, row in enumerate(batch, first):
                    try:
                        request = Request(**asdict(msgspec.convert(row, _ParquetRow)))
                        records.add(number, (request,))
                    except msgspec.ValidationError as error:
                        records.refuse(number, str(error))
                yield records
                first += len(batch)


@contextmanager
def _as_file(source: Source) -> Iterator[str]:
    """Yield a path with the source's bytes: Parquet's index is at the end, streams cannot seek."""
    if _is_plain_file(source.path):
        source.drain()
        yield source.path
        return
    with tempfile.NamedTemporaryFile(prefix="kvscope-", suffix=".parquet") as spooled:
        for chunk in source.chunks():
            spooled.write(chunk)
        if source.is_cut:  # a Parquet file ends in its index
            raise InputError(
                "the compressed data is cut", where=source.path, remedy="copy the file again"
            )
        spooled.flush()
        yield spooled.name


def _is_plain_file(path: str) -> bool:
    if path == STANDARD_STREAM or _PATTERN_CHARACTERS & set(path) or not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _batches(path: str, shown: str) -> Iterator[list[dict[str, object]]]:
    """Yield the rows with their canonical columns, some at a time; errors name the file `shown`."""
    try:
        # A connection of its own: a damaged file can make DuckDB give up the one that read it.
        with duckdb.connect() as connection:
            rows = connection.execute(statement("ingest/parquet_rows").text, {"path": path})
            names = [column[0] for column in rows.description or ()]
            _require_lengths(names, shown)
            while batch := rows.fetchmany(_ROWS_AT_ONCE):
                yield [dict(zip(names, row, strict=True)) for row in batch]
    except duckdb.BinderException:  # not one canonical column
        _require_lengths([], shown)
    except _DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].replace(path, shown)
        raise InputError(
            f"the Parquet file is damaged ({reason})", where=shown, remedy="copy or write it again"
        ) from error


def _require_lengths(present: Sequence[str], shown: str) -> None:
    missing = [name for name in _MANDATORY if name not in present]
    if missing:
        raise InputError(
            f"no column {' and no column '.join(missing)}",
            where=shown,
            remedy="name the columns " + ", ".join(Request.__struct_fields__),
        )


class Parquet(TraceFormat):
    """Parquet with columns named as the fields of `Request`; others are ignored."""

    name = "parquet"
    summary = "Parquet with kvscope's own column names (input_tokens, hash_ids, ...)"
    source = "kvscope"
    fields = ("input_tokens", "output_tokens", "arrival_s", "hash_ids")
    default_block_size = 16
    reader = _ParquetReader
    places_sessions = True  # where it has a column `clock`, or delays

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the file begins as Parquet does."""
        return head.startswith(_MAGIC)


class ParquetExport(Exporter):
    """Every canonical column; conversations that were inferred are left to be inferred again.

    Lost: ids that were strings (their digests are written), cache salts (numbers are) and the
    original block hashes.
    """

    name = Parquet.name
    summary = Parquet.summary
    is_text = False

    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write row groups as they come."""
        import polars as pl
        from polars.io.plugins import register_io_source

        schema: dict[str, pl.DataType] = {
            "arrival_s": pl.Float64(),
            "chat_id": pl.Int64(),
            "parent_chat_id": pl.Int64(),
            "user_id": pl.Int64(),
            "type": pl.String(),
            "turn": pl.Int32(),
            "input_tokens": pl.Int32(),
            "output_tokens": pl.Int32(),
            "model": pl.String(),
            "adapter": pl.String(),
            "cache_salt": pl.String(),
            "worker": pl.String(),
            "ttft_s": pl.Float64(),
            "queue_s": pl.Float64(),
            "duration_s": pl.Float64(),
            "cached_tokens": pl.Int32(),
            "hash_ids": pl.List(pl.Int32()),
            "block_size": pl.Int32(),
            "clock": pl.Int32(),
        }

        def frames(*_: object) -> Iterator[pl.DataFrame]:
            # Nothing is pushed down: a sink asks for all columns of all rows.
            for chunk in rows(store, trace):
                yield pl.DataFrame(_columns(chunk, trace), schema=schema)
                advance(len(chunk))

        try:
            register_io_source(frames, schema=schema).sink_parquet(stream, compression="zstd")
        except pl.exceptions.ComputeError as error:  # as which polars reports a full disk
            if (number := _OS_ERROR.search(str(error))) is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _columns(chunk: list[Row], trace: Trace) -> dict[str, list[object]]:
    """Return a column per field; chat ids only where conversations are the trace's own."""
    columns: dict[str, list[object]] = {
        name: [getattr(row, name) for row in chunk] for name in Row.__dataclass_fields__
    }
    if trace.lineage == "given":
        parents = [ROOT if parent is None else parent for parent in columns["parent_chat_id"]]
        columns |= {"parent_chat_id": parents}
    else:
        missing: list[object] = [None] * len(chunk)
        columns |= {"chat_id": missing, "parent_chat_id": missing}
    return columns | {"block_size": [trace.block_size] * len(chunk)}

"""Parquet files with the canonical columns: kvscope's own export, or anyone's.

DuckDB reads them, not polars: on a damaged file polars may abort the whole process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import msgspec
from msgspec.structs import asdict

from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import Reader, ReadOptions, Records, Request, TraceFormat
from kvscope.ingest.source import STDIN, Source
from kvscope.store.db import statement

_MAGIC = b"PAR1"
_MANDATORY = ("input_tokens", "output_tokens")
_PATTERN_CHARACTERS = frozenset("*?[")
_ROWS_AT_ONCE = 2_048

# What a damaged file ends in; the last two where a name or text in it is no UTF-8.
_DAMAGE = (duckdb.Error, OSError, RuntimeError, UnicodeDecodeError)


class _Row(Request):
    """A request whose hash ids are lists, as the columns of a table are."""

    hash_ids: list[int | str] | None = None


class _ParquetReader(Reader):
    def records(self, source: Source) -> Iterator[Records]:
        first = 1
        with _as_file(source) as path:
            for rows in _rows(path, source.path):
                yield _records(rows, first)
                first += len(rows)


def _records(rows: list[dict[str, object]], first: int) -> Records:
    read = Records()
    for number, row in enumerate(rows, first):
        try:
            read.add(number, (Request(**asdict(msgspec.convert(row, _Row))),))
        except msgspec.ValidationError as error:
            read.refuse(number, str(error))
    return read


@contextmanager
def _as_file(source: Source) -> Iterator[str]:
    """A path with the source's bytes: Parquet's index is at its end, a stream cannot be sought."""
    if _is_plain_file(source.path):
        source.drain()
        yield source.path
        return
    with tempfile.NamedTemporaryFile(prefix="kvscope-", suffix=".parquet") as spooled:
        for chunk in source.chunks():
            spooled.write(chunk)
        spooled.flush()
        yield spooled.name


def _is_plain_file(path: str) -> bool:
    if path == STDIN or _PATTERN_CHARACTERS & set(path) or not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _rows(path: str, shown: str) -> Iterator[list[dict[str, object]]]:
    """The rows with their canonical columns, some at a time."""
    try:
        # A connection of its own: a damaged file can make DuckDB give up the one that read it.
        with duckdb.connect() as connection:
            rows = connection.execute(statement("ingest/parquet_rows").text, {"path": path})
            names = [column[0] for column in rows.description or ()]
            _insist_on_lengths(names, shown)
            while batch := rows.fetchmany(_ROWS_AT_ONCE):
                yield [dict(zip(names, row, strict=True)) for row in batch]
    except duckdb.BinderException:  # not one canonical column
        _insist_on_lengths([], shown)
    except _DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].replace(path, shown)
        raise InputError(
            f"the Parquet file is damaged ({reason})",
            where=shown,
            remedy="copy or write it again",
        ) from error


def _insist_on_lengths(present: Sequence[str], shown: str) -> None:
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
    default_block_size = 16

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Whether the file begins as Parquet does."""
        return head.startswith(_MAGIC)

    @classmethod
    def reader(cls, options: ReadOptions) -> Reader:
        """A reader of one request a row; row numbers stand in for line numbers."""
        return _ParquetReader(options)

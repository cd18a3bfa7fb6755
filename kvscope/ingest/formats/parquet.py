"""Parquet files with the canonical columns (as kvscope exports them), or with Baseten's columns.

DuckDB reads them, not polars: on a damaged file polars may abort the whole process. DuckDB
allocates some 430 bytes for each element that a list in the index (footer) announces, before it
reads the elements. So kvscope counts them first: a file of 150 bytes could take any memory.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import duckdb
import msgspec
from duckdb.sqltypes import DuckDBPyType
from msgspec.structs import asdict

from kvscope.core.errors import InputError
from kvscope.core.files import STANDARD_STREAM, files_of
from kvscope.core.trace import Directives, Part, Trace
from kvscope.core.units import GIB
from kvscope.ingest.formats.base import BadLine, Records, Request, TraceFormat, unread_notes
from kvscope.ingest.formats.exporter import Advance, Exporter, as_traced
from kvscope.ingest.limits import (
    EXPANSION_FREE_BYTES,
    MAX_EXPANSION,
    MAX_HASH_IDS,
    MAX_INDEX_BYTES,
    MAX_INDEX_ELEMENTS,
    MAX_PARQUET_BYTES,
    MAX_TEXT,
)
from kvscope.ingest.source import Source
from kvscope.store.db import Store, statement

MAGIC = b"PAR1"
_LENGTH_BYTES = 4
_DEEPEST = 64  # structures in one another, where DuckDB gives up
_LONGEST_VARINT = 10
_FIXED_BYTES = {1: 1, 2: 1, 3: 1, 7: 8}  # booleans in a list, bytes, doubles
_VARINTS, _BINARY, _LISTS, _MAP, _STRUCT = (4, 5, 6), 8, (9, 10), 11, 12


class MalformedError(ValueError):
    """The index does not follow Thrift's compact protocol."""


def read_index(path: str) -> bytes:
    """Return the index at the end of a file; raises MalformedError where it is cut or too long."""
    with Path(path).open("rb") as file:
        end = file.seek(0, os.SEEK_END) - len(MAGIC) - _LENGTH_BYTES
        file.seek(max(end, 0))
        size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size > end or file.read() != MAGIC:
            raise MalformedError("no index at the end")
        if size > MAX_INDEX_BYTES:
            raise MalformedError(f"an index longer than {MAX_INDEX_BYTES >> 20} MiB")
        file.seek(end - size)
        return file.read(size)


def listed_elements(index: bytes) -> int:
    """Return how many elements lists and maps of an index announce, up to any damage in it.

    Source: Apache Thrift, doc/specs/thrift-compact-protocol.md.
    """
    walk = _Walk(index)
    with suppress(IndexError, MalformedError):  # DuckDB names the damage
        walk.struct(0)
    return walk.listed


class _Walk:
    """A walk through values of Thrift's compact protocol; `listed` counts announced elements."""

    def __init__(self, data: bytes) -> None:
        self.listed = 0
        self._data = data
        self._at = 0

    def struct(self, depth: int) -> None:
        """Walk through the fields of a structure `depth` levels deep, up to its stop field."""
        if depth > _DEEPEST:
            raise MalformedError("too deep")
        while header := self._byte():
            if not header >> 4:
                self._varint()  # the field's number
            kind = header & 15
            if kind not in (1, 2):  # a boolean is its field's type
                self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> None:
        if kind in _VARINTS:
            self._varint()
        elif kind == _BINARY:
            size = self._varint()
            self._at += size
        elif kind in _LISTS:
            header = self._byte()
            size = header >> 4
            self._elements(self._varint() if size == 15 else size, (header & 15,), depth)
        elif kind == _MAP:
            if size := self._varint():
                kinds = self._byte()
                self._elements(size, (kinds >> 4, kinds & 15), depth)
        elif kind == _STRUCT:
            self.struct(depth + 1)
        elif kind in _FIXED_BYTES:
            self._at += _FIXED_BYTES[kind]
        else:
            raise MalformedError(f"no type {kind}")

    def _elements(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        self.listed += count
        if depth > _DEEPEST:
            raise MalformedError("too deep")
        for _ in range(count):
            if self._at >= len(self._data):
                raise MalformedError("cut")
            for kind in kinds:
                self._value(kind, depth + 1)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = 0
        for place in range(_LONGEST_VARINT):
            byte = self._byte()
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value
        raise MalformedError("a number without an end")


_MANDATORY = ("input_tokens", "output_tokens")
_PATTERN_CHARACTERS = frozenset("*?[")
_ROWS_AT_ONCE = 2_048
BASETEN = {
    "timestamp_start_unix_ms": "arrival_s",
    "total_hashes": "hash_ids",
    "provided_session_id": "session_id",
    "poor_man_session_id": "session_id",
    "model_name": "model",
    "org_id": "user_id",
    "duration_ttft_ms": "ttft_s",
    "duration_e2e_ms": "duration_s",
    "cached_tokens_reference": "cached_tokens",
}
"""What Baseten's completion traces call the fields. Times are in ms, and the first session id wins.

Source: ai-dynamo/aiperf, src/aiperf/dataset/loader/baseten_trace_models.py, commit 264464a.
"""
_VALUE_BYTES = 8  # of a number; a text takes more
_FEW = 8  # rows, of which each may have MAX_HASH_IDS
_LONGEST_ID = 256  # characters of a hash id that count
_INTEGERS = {f"{sign}{size}" for sign in ("", "u") for size in ("tinyint", "smallint", "bigint")}
_NUMBERS = _INTEGERS | {"integer", "uinteger", "hugeint", "uhugeint", "float", "double", "boolean"}
_NESTED = ("STRUCT(", "MAP(", "UNION(")
_BOUNDED = {"memory_limit": f"{MAX_PARQUET_BYTES >> 20}MiB", "threads": "1", "temp_directory": ""}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")

# What a damaged file ends in; the last two where a name or text in it is no UTF-8.
_DAMAGE = (duckdb.Error, OSError, RuntimeError, UnicodeDecodeError, MalformedError)


class _ParquetRow(Request):
    """A request whose hash ids are lists, as the columns of a table are."""

    hash_ids: list[int | str] | None = None


_IN_JSON = {
    "retention": msgspec.json.Decoder(Directives).decode,
    "parts": msgspec.json.Decoder(list[Part]).decode,
}
"""Columns whose texts are JSON."""


class Parquet(TraceFormat):
    """Parquet with columns named as the fields of `Request` or as Baseten's; others are ignored."""

    name = "parquet"
    summary = "Parquet with kvscope's column names (input_tokens, ...), or Baseten's"
    source = "kvscope; aiperf, loader/baseten_trace_models.py (commit 264464a)"
    fields = ("input_tokens", "output_tokens", "arrival_s", "hash_ids")
    default_block_size = 16
    places_sessions = True  # where it has a column `clock`, or delays

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the file begins as Parquet does."""
        return head.startswith(MAGIC)

    def records(self, source: Source) -> Iterator[Records]:
        first = 1
        for file in _files(source):
            source.begin_file(first, file.path)
            with _as_file(file) as path:
                for batch in _batches(path, file.path, self):
                    records = Records()
                    for number, row in enumerate(batch, first):
                        try:
                            records.add(number, (_request(row),))
                        except (BadLine, msgspec.ValidationError) as error:
                            records.refuse(number, str(error))
                    yield records
                    first += len(batch)


def _files(source: Source) -> Iterator[Source]:
    """Yield the source, or each of its several files: each Parquet file has its own index."""
    files = [] if source.path == STANDARD_STREAM else files_of(source.path)
    if len(files) <= 1:
        yield source
        return
    source.drain()
    for path in files:
        with closing(Source(str(path))) as file:
            yield file


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
        return file.read(len(MAGIC)) == MAGIC


def _batches(path: str, shown: str, reader: Parquet) -> Iterator[list[dict[str, object]]]:
    """Yield rows in batches, with the columns that kvscope reads; errors name the file `shown`.

    The `reader` notes unread columns that seem to hold times, sessions, lengths or hashes.
    """
    try:
        # A connection of its own: a damaged file can make DuckDB give up the one that read it.
        with duckdb.connect(config=dict(_BOUNDED)) as connection:
            connection.execute("SET enable_progress_bar = false")  # it goes to stdout
            columns = _columns(connection, path, shown)
            query, values = statement("ingest/parquet_rows").text, {"path": path}
            present = connection.sql(query, params=values)
            _require_lengths(present.columns, shown)
            _refuse_nested(present.columns, present.types, shown)
            for note in unread_notes(columns - {*present.columns}):
                reader.note(note)
            cut = ", ".join(map(_cut, present.columns, present.types))
            bounded = f"SELECT {cut} FROM ({query})"  # noqa: S608  (columns of the query's own)
            rows = connection.execute(bounded, values)
            while batch := _next_batch(rows, present.columns):
                yield batch
    except duckdb.BinderException:  # not one canonical column
        _require_lengths([], shown)
    except duckdb.OutOfMemoryException as error:
        raise InputError(
            f"{_ROWS_AT_ONCE:,} rows of this Parquet file take more than"
            f" {MAX_PARQUET_BYTES // GIB} GiB",
            where=shown,
            remedy="write it in smaller row groups, or as JSON lines",
        ) from error
    except _DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].replace(path, shown)
        raise InputError(
            f"the Parquet file is damaged ({reason})", where=shown, remedy="copy or write it again"
        ) from error


def _columns(connection: duckdb.DuckDBPyConnection, path: str, shown: str) -> set[str]:
    """Return the column names of a file.

    Raises InputError if its index lists too many elements, or its values expand far too much.
    """
    if listed_elements(read_index(path)) > MAX_INDEX_ELEMENTS:
        raise InputError(
            f"its index lists more than {MAX_INDEX_ELEMENTS:,} elements, as no trace's does",
            where=shown,
            remedy="write it again, in larger row groups",
        )
    counted = connection.execute(statement("ingest/parquet_values").text, {"path": path}).fetchone()
    values, names = counted or (0, None)
    size = _VALUE_BYTES * int(values)
    if size > max(EXPANSION_FREE_BYTES, MAX_EXPANSION * Path(path).stat().st_size):
        raise InputError(
            f"decompresses to more than {MAX_EXPANSION:,} times its size, as no trace does",
            where=shown,
            remedy="write it as JSON lines, if it is one",
        )
    return {*(names or ())}


def _refuse_nested(names: Sequence[str], kinds: Sequence[DuckDBPyType], shown: str) -> None:
    """Raise InputError for a column that is neither of plain values nor of lists of plain values.

    DuckDB's time for nested columns doubles with every few levels.
    """
    for name, kind in zip(names, kinds, strict=True):
        inner = str(kind).removesuffix("[]")
        if inner.endswith("]") or inner.startswith(_NESTED):
            raise InputError(
                f"column {name} is nested", where=shown, remedy="write plain values, or lists"
            )


def _cut(name: str, kind: DuckDBPyType) -> str:
    """Return SQL that reads a column, with texts and lists cut just above their limits."""
    text = str(kind).lower()
    if text in _NUMBERS:
        return name
    if not text.endswith("[]"):
        return f"left({name}::VARCHAR, {MAX_TEXT + 1}) AS {name}"
    ids = f"{name}[:{MAX_HASH_IDS + 1}]"
    if text.removesuffix("[]") not in _NUMBERS:
        ids = f"[left(id::VARCHAR, {_LONGEST_ID}) FOR id IN {ids}]"
    return f"{ids} AS {name}"


def _next_batch(rows: duckdb.DuckDBPyConnection, names: list[str]) -> list[dict[str, object]]:
    """Return the next rows: fewer rows if they have many hash ids, none at the end."""
    batch: list[dict[str, object]] = []
    ids = 0
    while len(batch) < _ROWS_AT_ONCE and ids < MAX_HASH_IDS and (some := rows.fetchmany(_FEW)):
        for values in some:
            row = dict(zip(names, values, strict=True))
            ids += sum(len(value) for value in values if isinstance(value, list))
            batch.append(row)
    return batch


def _request(row: dict[str, object]) -> Request:
    """Return a row's request; raises BadLine or ValidationError for an invalid row."""
    for name, value in row.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise BadLine(f"text longer than {MAX_TEXT:,} characters in {name}")
    for name, field in BASETEN.items():
        value = row.pop(name, None)
        if value is not None and row.get(field) is None:
            is_ms = name.endswith("_ms")
            row[field] = value / 1000 if is_ms and isinstance(value, int | float) else value
    texts = {name: row.pop(name, None) for name in _IN_JSON}
    request = Request(**asdict(msgspec.convert(row, _ParquetRow)))
    for name, text in texts.items():
        if isinstance(text, str):
            try:
                setattr(request, name, _IN_JSON[name](text))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise BadLine(f"{name}: {error}") from error
    return request


def _json_of(value: Directives | list[Part] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _require_lengths(present: Sequence[str], shown: str) -> None:
    missing = [name for name in _MANDATORY if name not in present]
    if missing:
        raise InputError(
            f"no column {' and no column '.join(missing)}",
            where=shown,
            remedy="name the columns " + ", ".join(Request.__struct_fields__),
        )


class ParquetExport(Exporter):
    """Export of every canonical column but session and scope: given parents link the turns.

    Lost: inferred parents (reading infers them again), string ids (digests are written), cache
    salts (numbers are written), and the original block hashes.
    """

    name = Parquet.name
    summary = Parquet.summary
    is_text = False

    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write the requests, a row group at a time."""
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
            "delay_s": pl.Float64(),
            "waits_for": pl.Int64(),
            "retention": pl.String(),
            "repeated_tokens": pl.Int32(),
            "parts": pl.String(),
            "hash_ids": pl.List(pl.Int32()),
            "block_size": pl.Int32(),
            "clock": pl.Int32(),
        }

        def frames(*_: object) -> Iterator[pl.DataFrame]:
            # Nothing is pushed down: a sink asks for all columns of all rows.
            for chunk in as_traced(store, trace):
                columns = {name: [getattr(row, name) for row in chunk] for name in schema}
                for name in _IN_JSON:
                    columns[name] = [_json_of(value) for value in columns[name]]
                columns["block_size"] = [trace.block_size] * len(chunk)
                yield pl.DataFrame(columns, schema=schema)
                advance(len(chunk))

        try:
            register_io_source(frames, schema=schema).sink_parquet(stream, compression="zstd")
        except pl.exceptions.ComputeError as error:  # as which polars reports a full disk
            if (number := _OS_ERROR.search(str(error))) is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error

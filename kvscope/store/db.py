"""Open a kvscope store: one DuckDB file with a versioned schema.

Everything that reaches the database goes through `Store`, and every statement lies in queries/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import nanoarrow
import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import InputError, KvscopeError, StoreBusyError, StoreVersionError
from kvscope.store import sql

Columns = dict[str, NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float64]]


class Frame:
    """Arrays of one length above 0, numbers of 32 or 64 bits, none of them missing.

    DuckDB takes numpy's arrays too, but converts them value by value on its way; Arrow's it reads
    as they lie, which spares a quarter of the time that an insertion takes.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = {name: np.ascontiguousarray(each) for name, each in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as a stream of one batch; DuckDB asks for its schema by a stream of its own."""
        children = [nanoarrow.c_array(each) for each in self._columns.values()]
        named = dict(zip(self._columns, (child.schema for child in children), strict=True))
        batch = nanoarrow.c_array_from_buffers(
            nanoarrow.struct(named), len(self), [None], children=children
        )
        return nanoarrow.c_array_stream(batch).__arrow_c_stream__()


MEMORY = ":memory:"
DEFAULT_PATH = "kvscope.duckdb"
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,  # nothing is fetched from a network, whatever the file
}


class Store:
    """A connection to one store; a context manager that closes it.

    A file that was `created` for it and in which nothing was stored goes when it is closed.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, path: str, *, created: bool = False
    ) -> None:
        self._connection = connection
        self._created = created
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._created and self._holds_nothing():
            Path(self.path).unlink(missing_ok=True)  # before others can open it
        self._connection.close()

    def _holds_nothing(self) -> bool:
        try:
            return not self.row("ingest/trace_count")["traces"]
        except duckdb.Error:  # a database that broke down is left for the user to look at
            return False

    def _execute(
        self,
        name: str,
        parameters: Mapping[str, Any],
        frame: Frame | None = None,  # which DuckDB finds by its name
    ) -> duckdb.DuckDBPyConnection:
        statement = sql.statement(name)
        if set(statement.parameters) != set(parameters):
            raise KvscopeError(
                f"takes {sorted(statement.parameters)}, was given {sorted(parameters)}",
                where=f"queries/{name}.sql",
            )
        return self._connection.execute(statement.text, dict(parameters))

    def run(self, name: str, /, **parameters: Any) -> None:
        """Run the statement `name` for what it does, not for what it returns."""
        self._execute(name, parameters)

    def rows(self, name: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """What the query `name` answers, a dict a row."""
        cursor = self._execute(name, parameters)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def row(self, name: str, /, **parameters: Any) -> dict[str, Any]:
        """The first row of what the query `name` answers."""
        return self.rows(name, **parameters)[0]

    def columns(self, name: str, /, **parameters: Any) -> dict[str, NDArray[Any]]:
        """What the query `name` answers, a numpy array a column; NULL in no column allowed."""
        found = self._execute(name, parameters).fetchnumpy()
        if any(np.ma.is_masked(values) for values in found.values()):
            raise KvscopeError("NULL where a number is expected", where=f"queries/{name}.sql")
        return {column: np.ma.getdata(values) for column, values in found.items()}

    def append(self, name: str, columns: Columns, /, **parameters: int | list[str]) -> None:
        """Run the statement `name`, to which arrays of equal length are the table `frame`."""
        frame = Frame(columns)
        if len(frame):
            self._execute(name, parameters, frame)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing of it."""
        self._connection.begin()
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()


def open_store(path: str = DEFAULT_PATH, *, read_only: bool = False) -> Store:
    """Open the store at `path` (created if missing, `:memory:` keeps nothing).

    Raises StoreBusyError if another process has it open, StoreVersionError if a newer kvscope
    wrote it, InputError if it is not a DuckDB file.
    """
    missing = path != MEMORY and not Path(path).exists()
    if Path(path).is_dir():
        raise InputError("a folder, not a store", where=path, remedy="name a file with --db")
    if missing and not Path(path).parent.is_dir():
        raise InputError("its folder does not exist", where=path, remedy="make it, or name another")
    if read_only and missing:
        raise InputError(
            "no such store",
            where=path,
            remedy="run `kvscope ingest TRACE` first, or name one by --db",
        )
    try:
        connection = duckdb.connect(path, read_only=read_only and path != MEMORY, config=_CONFIG)
    except duckdb.Error as error:
        raise _cannot_open(path, error) from error
    try:
        _migrate(connection, path, read_only=read_only and path != MEMORY)
    except BaseException:
        connection.close()
        raise
    return Store(connection, path, created=missing)


def _cannot_open(path: str, error: duckdb.Error) -> KvscopeError:
    message = str(error)
    if "lock" in message:
        holder = re.search(r"PID (\d+)", message)
        who = f"process {holder[1]}" if holder else "another process"
        return StoreBusyError(
            f"{who} has this store open",
            where=path,
            remedy="wait until it ends, or work on another file with --db",
        )
    if "not a valid DuckDB" in message:
        return InputError(
            "not a kvscope store (not a DuckDB file)", where=path, remedy="name another with --db"
        )
    first = message.splitlines()[0]
    return InputError(f"cannot be opened ({first})", where=path, remedy="name another with --db")


def _migrate(connection: duckdb.DuckDBPyConnection, path: str, *, read_only: bool) -> None:
    """Bring the schema to this version, step by step, each in a transaction of its own."""
    steps = sql.migrations()
    newest = steps[-1][0]
    current = _schema_version(connection)
    if current > newest:
        raise StoreVersionError(
            f"schema version {current}, this kvscope knows up to {newest}",
            where=path,
            remedy="upgrade kvscope, or work on another file with --db",
        )
    if current < newest and read_only:
        raise StoreVersionError(
            f"schema version {current} is older than {newest} and the store is open read-only",
            where=path,
            remedy="open it once for writing, for example with `kvscope traces`",
        )
    for version, text in steps:
        if version > current:
            connection.begin()
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER)")
            connection.execute(text)
            connection.execute("DELETE FROM schema_version")
            connection.execute("INSERT INTO schema_version VALUES ($version)", {"version": version})
            connection.commit()


def _schema_version(connection: duckdb.DuckDBPyConnection) -> int:
    known = connection.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'schema_version'"
    ).fetchone()
    if known is None or not known[0]:
        return 0
    found = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    return int(found[0]) if found and found[0] is not None else 0

"""Open a kvscope store: one DuckDB file with a versioned schema and named SQL.

Everything that reaches the database goes through `Store`. Every statement is a file in queries/,
whose header is its documentation:

    -- turns: number of conversations by their number of turns
    -- $trace_id: the trace
    -- columns: turns, conversations
    SELECT …

A parameter that the header lacks, or that is missing, is an error before DuckDB sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import duckdb

from kvscope.core.errors import InputError, KvscopeError, StoreBusyError, StoreVersionError
from kvscope.core.files import data_folder

if TYPE_CHECKING:  # a stored trace is looked up without loading NumPy
    import numpy as np
    from numpy.typing import NDArray

    Columns = dict[str, NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float64]]

MEMORY = ":memory:"
DEFAULT_PATH = "kvscope.duckdb"
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False  # nothing is fetched from a network, whatever the file
}
_PARAMETER = re.compile(r"^-- \$(\w+): (.+)$")
_COLUMNS = re.compile(r"^-- columns: (.+)$")
_TITLE = re.compile(r"^-- (\w+): (.+)$")


@dataclass(frozen=True, slots=True)
class Statement:
    """One named SQL statement, with what its header promises."""

    name: str
    answers: str
    parameters: tuple[str, ...]
    columns: tuple[str, ...]
    text: str


@cache
def statement(name: str) -> Statement:
    """Return the statement called `name`, its path below queries/ without `.sql`.

    Its first line is `-- name: what it answers`.
    """
    path = data_folder("queries") / f"{name}.sql"
    if not path.is_file():
        raise KvscopeError("no such query", where=str(path), remedy="reinstall kvscope")
    text = path.read_text(encoding="utf-8")
    header = [line for line in text.splitlines() if line.startswith("--")]
    title = _TITLE.match(header[0]) if header else None
    if title is None or title[1] != path.stem:
        raise KvscopeError(
            "the header does not start with the statement's name",
            where=str(path),
            remedy=f"begin the file with '-- {path.stem}: what it answers'",
        )
    parameters = tuple(match[1] for line in header if (match := _PARAMETER.match(line)))
    lists = [match[1] for line in header if (match := _COLUMNS.match(line))]
    columns = tuple(column.strip() for names in lists for column in names.split(","))
    return Statement(name, title[2], parameters, columns, text)


def migrations() -> list[tuple[int, str]]:
    """Return the schema's steps in order: (version, SQL) from queries/schema/NNN_name.sql."""
    files = sorted((data_folder("queries") / "schema").glob("*.sql"))
    return [(int(file.name[:3]), file.read_text(encoding="utf-8")) for file in files]


class Frame:
    """Arrays of one length above 0, numbers of 32 or 64 bits, none of them missing.

    DuckDB takes NumPy's arrays too, but converts them value by value; Arrow's it reads without
    conversion, which saves a quarter of an insertion's time.
    """

    def __init__(self, columns: Columns) -> None:
        import numpy as np

        self._columns = {name: np.ascontiguousarray(each) for name, each in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the table as a stream of one batch; DuckDB reads its schema from another one."""
        import nanoarrow

        children = [nanoarrow.c_array(each) for each in self._columns.values()]
        named = dict(zip(self._columns, (child.schema for child in children), strict=True))
        batch = nanoarrow.c_array_from_buffers(
            nanoarrow.struct(named), len(self), [None], children=children
        )
        return nanoarrow.c_array_stream(batch).__arrow_c_stream__()


class Store:
    """A connection to one store; a context manager that closes it.

    A file that was `created` for it and in which nothing was stored is removed on closing.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, path: str, *, created: bool = False
    ) -> None:
        self._connection = connection
        self._created = created
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._created and self._is_empty():
            Path(self.path).unlink(missing_ok=True)  # before others can open it
        self._connection.close()

    def reading(self) -> AbstractContextManager[Store]:
        """Return a context with this store, which stays open after it."""
        return nullcontext(self)

    writing = reading

    def _is_empty(self) -> bool:
        try:
            return not self.row("ingest/trace_count")["traces"]
        except duckdb.Error:  # a database that broke down is left for the user to look at
            return False

    def _execute(
        self, name: str, parameters: Mapping[str, Any], frame: Frame | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Run a statement; DuckDB finds `frame` by its name."""
        query = statement(name)
        if set(query.parameters) != set(parameters):
            raise KvscopeError(
                f"takes {sorted(query.parameters)}, was given {sorted(parameters)}",
                where=f"queries/{name}.sql",
            )
        return self._connection.execute(query.text, dict(parameters))

    def run(self, name: str, /, **parameters: Any) -> None:
        """Run the statement `name` and ignore what it returns."""
        self._execute(name, parameters)

    def rows(self, name: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of the query `name` as dicts."""
        cursor = self._execute(name, parameters)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def row(self, name: str, /, **parameters: Any) -> dict[str, Any]:
        """Return the first row of the query `name`."""
        return self.rows(name, **parameters)[0]

    def columns(self, name: str, /, **parameters: Any) -> dict[str, NDArray[Any]]:
        """Return the columns of the query `name` as arrays. Raises KvscopeError for a NULL."""
        import numpy as np

        arrays = self._execute(name, parameters).fetchnumpy()
        if any(np.ma.is_masked(values) for values in arrays.values()):
            raise KvscopeError("NULL where a number is expected", where=f"queries/{name}.sql")
        return {column: np.ma.getdata(values) for column, values in arrays.items()}

    def append(self, name: str, columns: Columns, /, **parameters: int | list[str]) -> None:
        """Run the statement `name` on arrays of equal length, which it reads as table `frame`."""
        frame = Frame(columns)
        if len(frame):
            self._execute(name, parameters, frame)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block writes, or nothing of it if the block raises."""
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
    read_only = read_only and path != MEMORY
    if Path(path).is_dir():
        raise InputError("a folder, not a store", where=path, remedy="name a file with --db")
    if missing and not Path(path).parent.is_dir():
        raise InputError("its folder does not exist", where=path, remedy="make it, or name another")
    if read_only and missing:
        raise InputError(
            "no such store",
            where=path,
            remedy="run `kvscope ingest TRACE` first, or name one with --db",
        )
    try:
        connection = duckdb.connect(path, read_only=read_only, config=_CONFIG)
    except duckdb.Error as error:
        raise _cannot_open(path, error) from error
    try:
        _migrate(connection, path, read_only=read_only)
    except BaseException:
        connection.close()
        raise
    return Store(connection, path, created=missing)


def _cannot_open(path: str, error: duckdb.Error) -> KvscopeError:
    message = str(error)
    if "lock" in message:
        holder = re.search(r"PID (\d+)", message)
        process = f"process {holder[1]}" if holder else "another process"
        return StoreBusyError(
            f"{process} has this store open",
            where=path,
            remedy="wait until it ends, or work on another file with --db",
        )
    what = f"cannot be opened ({message.splitlines()[0]})"
    if "not a valid DuckDB" in message:
        what = "not a kvscope store (not a DuckDB file)"
    return InputError(what, where=path, remedy="name another with --db")


def _migrate(connection: duckdb.DuckDBPyConnection, path: str, *, read_only: bool) -> None:
    """Bring the schema to this version, step by step, each in a transaction of its own."""
    steps = migrations()
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
    """Return the version of the schema, 0 for an empty file."""
    try:  # to look it up among the tables first would take 10 ms
        row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    except duckdb.CatalogException:
        return 0
    return int(row[0]) if row and row[0] is not None else 0

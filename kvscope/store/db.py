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

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import duckdb
from msgspec import Struct

from kvscope.core.errors import (
    InputError,
    KvscopeError,
    OutdatedStoreError,
    ReadOnlyStoreError,
    StoreVersionError,
)
from kvscope.core.files import check_writable, data_folder
from kvscope.store.failures import Waiting, damaged, explaining, foreign, waiting_for

if TYPE_CHECKING:  # a stored trace is looked up without loading NumPy
    from numpy.typing import NDArray

    Columns = Mapping[str, NDArray[Any]]

MEMORY = ":memory:"
DEFAULT_PATH = "kvscope.duckdb"
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False  # nothing is fetched from a network, whatever the file
}
# DuckDB tries every enabled method on every column. These four saved no space in a measured store
# and took a tenth of an insertion's time. DuckDB 2.0 ignores this option in `config` above.
_UNUSED_COMPRESSION = "SET disabled_compression_methods = 'rle,zstd,fsst,dictionary'"
_REMEDY = "name another with --db"
_PARAMETER = re.compile(r"^-- \$(\w+): (.+)$")
_COLUMNS = re.compile(r"^-- columns: (.+)$")
_TITLE = re.compile(r"^-- (\w+): (.+)$")


class Statement(Struct, frozen=True):
    """One named SQL statement; its header states purpose (`answers`), parameters and columns."""

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
    """Return the schema's steps in order: (version, SQL) from queries/schema/NNN_name.sql.

    The first makes an empty database a store, each other one brings the version before up to date.
    """
    files = sorted((data_folder("queries") / "schema").glob("*.sql"))
    return [(int(file.name[:3]), file.read_text(encoding="utf-8")) for file in files]


class Store:
    """A connection to one store; a context manager that closes it.

    A file that was `created` for the store is removed on closing if no transaction was committed.
    Methods raise DamagedStoreError and DiskFullError if DuckDB fails for these reasons.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, path: str, *, created: bool = False
    ) -> None:
        self._connection = connection
        self._created = created
        self._within_transaction = False
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's connection, for commands that are not statements of queries/."""
        return self._connection

    def limit_memory(self, size_bytes: int, spill: Path) -> None:
        """Limit DuckDB's memory in this process to `size_bytes`; the rest spills to `spill`."""
        place = str(spill).replace("'", "''")
        self._connection.execute(f"SET memory_limit = '{size_bytes >> 20}MiB'")
        self._connection.execute(f"SET temp_directory = '{place}'")

    @contextmanager
    def in_row_order(self) -> Iterator[None]:
        """Run the block's statements in one thread, so that sums of floats are reproducible."""
        self._connection.execute("SET threads = 1")
        try:
            yield
        finally:
            with suppress(duckdb.Error):  # a damaged store takes no more statements
                self._connection.execute("RESET threads")

    def close(self) -> None:
        """Close the connection."""
        if self._created:
            _remove_database(self.path)  # before others can open it
        try:
            with explaining(self.path):
                self._connection.close()
        finally:
            if self._created:
                _remove_database(self.path)  # the log that closing may have written

    def exists(self) -> bool:
        """Return True: an open store exists."""
        return True

    def reading(self) -> AbstractContextManager[Store]:
        """Return a context with this store, which stays open afterwards."""
        return nullcontext(self)

    def writing(self, patience_s: float | None = None) -> AbstractContextManager[Store]:
        """Return a context with this store, which stays open; `patience_s` is not used."""
        return nullcontext(self)

    def _execute(
        self,
        name: str,
        parameters: Mapping[str, Any],
        frame: Columns | None = None,
        *,
        filtered: bool = False,
    ) -> duckdb.DuckDBPyConnection:
        """Run a statement that may read `frame`; `filtered`: return rows of its requests only."""
        query = statement(name)
        if set(query.parameters) != set(parameters):
            raise KvscopeError(
                f"takes {sorted(query.parameters)}, was given {sorted(parameters)}",
                where=f"queries/{name}.sql",
            )
        text = query.text
        if filtered and frame is not None:  # before the sort, which would take all rows
            rows, order = text.rsplit("ORDER BY", 1)
            text = f"SELECT * FROM ({rows}) SEMI JOIN frame USING (request) ORDER BY {order}"  # noqa: S608
        return self._connection.execute(text, dict(parameters))

    def run(self, name: str, /, **parameters: Any) -> None:
        """Run the statement `name`, which writes, and ignore its result."""
        with explaining(self.path), nullcontext() if self._within_transaction else self._commits():
            self._execute(name, parameters)

    def rows(self, name: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of the query `name` as dicts."""
        with explaining(self.path):
            cursor = self._execute(name, parameters)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def row(self, name: str, /, **parameters: Any) -> dict[str, Any]:
        """Return the first row of the query `name` as a dict; IndexError if it has no row."""
        return self.rows(name, **parameters)[0]

    def columns(
        self, name: str, requests: NDArray[Any] | None = None, /, **parameters: Any
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of the query `name` as arrays. Raises KvscopeError for a NULL.

        With `requests`, return only their rows; the query must be ordered by request.
        """
        import numpy as np

        frame = None if requests is None else {"request": requests}
        with explaining(self.path):
            arrays = self._execute(name, parameters, frame, filtered=True).fetchnumpy()
        if any(np.ma.is_masked(values) for values in arrays.values()):
            raise KvscopeError("NULL where a number is expected", where=f"queries/{name}.sql")
        return {column: np.ma.getdata(values) for column, values in arrays.items()}

    def append(self, name: str, columns: Columns, /, **parameters: int | list[str]) -> None:
        """Run the statement `name` on arrays of equal length, which it reads as table `frame`.

        Arrays hold numbers of 32 or 64 bits, none of them missing or NaN.
        """
        import numpy as np

        frame = {column: np.ascontiguousarray(each) for column, each in columns.items()}
        if not len(next(iter(frame.values()))):
            return
        with explaining(self.path):
            # One thread keeps the rows in order; with the option on, it takes a quarter longer. The
            # option is global: queries that need an order state it.
            self._connection.execute("SET preserve_insertion_order = false")
            try:
                with self.in_row_order():
                    self._execute(name, parameters, frame)
            finally:
                self._connection.execute("RESET preserve_insertion_order")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes of the block, or none if it raises."""
        with explaining(self.path):
            self._connection.begin()
        self._within_transaction = True
        try:
            yield
            with explaining(self.path), self._commits():
                self._connection.commit()
        except BaseException:
            with suppress(duckdb.Error):  # DuckDB may have rolled back already
                self._connection.rollback()
            raise
        finally:
            self._within_transaction = False
        self._created = False

    @contextmanager
    def _commits(self) -> Iterator[None]:
        """Give the write-ahead log of the block's commit the same file permissions as the store.

        DuckDB would make a log that all users can read, but it appends to an existing one.
        """
        if self.path == MEMORY:
            yield
            return
        log = Path(f"{self.path}.wal")
        with suppress(OSError):  # of a log that is there; DuckDB says of others what is wrong
            mode = Path(self.path).stat().st_mode & 0o666
            os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield
        with suppress(FileNotFoundError):
            if not log.stat().st_size:  # nothing was written
                log.unlink()


def open_store(
    path: str = DEFAULT_PATH,
    *,
    read_only: bool = False,
    known: bool = False,
    waiting: Waiting | None = None,
) -> Store:
    """Open the store at `path` (created if missing, `:memory:` keeps nothing).

    A file that is not kvscope's is never written to: an existing file is read before it is opened
    for writing, unless it is `known` to be kvscope's. While another process has the store open,
    this waits as `waiting` says; None: up to 20 s, without a note.

    Raises StoreBusyError if the wait ends in vain, OutdatedStoreError for reading a store of an
    older kvscope, StoreVersionError for one of a newer one, ReadOnlyStoreError if it cannot be
    written, DiskFullError, DamagedStoreError, and InputError if it is not a kvscope store.
    """
    if path == MEMORY:
        return Store(_connected(path, read_only=False, waiting=waiting), path)
    place = Path(path)
    _check_place(place)
    if not place.exists():
        if read_only:
            raise InputError(
                "no such store",
                where=path,
                remedy="run `kvscope ingest TRACE` first, or name one with --db",
            )
        created = _create(place)
        try:
            return Store(_connected(path, read_only=False, waiting=waiting), path, created=created)
        except BaseException:
            if created:
                _remove_database(path)
            raise
    if not read_only:
        if not known:
            with suppress(OutdatedStoreError):
                _connected(path, read_only=True, waiting=waiting).close()
        _check_writable(place)
    return Store(_connected(path, read_only=read_only, waiting=waiting), path)


def check_new(path: Path) -> None:
    """Raise InputError if a store cannot be created at `path`, where none exists."""
    _check_place(path)
    try:
        check_writable(path)
    except OSError as error:
        raise _read_only("its folder cannot be written", path) from error


def _check_writable(path: Path) -> None:
    """Raise ReadOnlyStoreError where the store at `path` cannot be written."""
    if not os.access(path, os.W_OK):
        raise _read_only("cannot be written", path)
    if not os.access(path.parent, os.W_OK):  # DuckDB writes its log there
        raise _read_only("its folder cannot be written", path)


def _read_only(what: str, path: Path) -> ReadOnlyStoreError:
    return ReadOnlyStoreError(
        what, where=str(path), remedy="name another with --db; :memory: keeps nothing"
    )


def _check_place(path: Path) -> None:
    """Raise InputError unless `path` is a readable, not empty file or a name for a new file."""
    if path.is_dir():
        raise InputError("a folder, not a store", where=str(path), remedy="name a file with --db")
    if not path.exists():
        if not path.parent.is_dir():
            raise InputError(
                "its folder does not exist", where=str(path), remedy="make it, or name another"
            )
        if Path(f"{path}.wal").exists():
            raise InputError(
                f"the store is gone, and {path}.wal is left of it",
                where=str(path),
                remedy="restore it or remove that file",
            )
        return
    if not path.is_file():
        raise InputError("not a file", where=str(path), remedy=_REMEDY)
    if not path.stat().st_size:
        raise InputError(
            "an empty file, not a store", where=str(path), remedy="remove it, or " + _REMEDY
        )
    if not os.access(path, os.R_OK):
        raise InputError("cannot be read (permission denied)", where=str(path), remedy=_REMEDY)


def _create(path: Path) -> bool:
    """Create an empty store, whole or not at all; return False if another process did so first.

    It can be read by its owner alone.
    """
    if not os.access(path.parent, os.W_OK):
        raise _read_only("its folder cannot be written", path)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        draft = folder / "store"
        with explaining(str(path)):
            _write_empty(draft)
        draft.chmod(0o600)
        try:
            os.link(draft, path)  # unlike a renaming, it never replaces another's
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            draft.replace(path)
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    return True


def _write_empty(path: Path) -> None:
    connection = duckdb.connect(str(path), config=_CONFIG)
    try:
        _migrate(connection, 0, str(path))
    finally:
        connection.close()


def _remove_database(path: str) -> None:
    for file in (Path(path), Path(f"{path}.wal")):
        file.unlink(missing_ok=True)


def _connected(path: str, *, read_only: bool, waiting: Waiting | None) -> duckdb.DuckDBPyConnection:
    """Return a connection to a store, migrated to this schema version unless `read_only`."""
    connection = waiting_for(
        path, lambda: duckdb.connect(path, read_only=read_only, config=_CONFIG), waiting
    )
    try:
        with explaining(path):
            current = 0 if path == MEMORY else _checked_version(connection, path)
            if read_only:
                _refuse_outdated(current, path)
            else:
                connection.execute(_UNUSED_COMPRESSION)
            _migrate(connection, current, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_outdated(current: int, path: str) -> None:
    newest = migrations()[-1][0]
    if current < newest:
        raise OutdatedStoreError(
            f"an older kvscope wrote it (schema version {current}, now {newest})",
            where=path,
            remedy="copy it to where it can be written, which brings its schema up to date",
        )


def _checked_version(connection: duckdb.DuckDBPyConnection, path: str) -> int:
    """Return the version of the schema, 0 for an empty database.

    Raises InputError for a database that is not kvscope's, StoreVersionError for one of a newer
    kvscope, or of one older than the first step.
    """
    try:  # to look it up among the tables first would take 10 ms
        row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
        connection.execute("SELECT trace_id, content_hash, format FROM traces LIMIT 0")
        current = int(row[0]) if row else 0
    except (duckdb.CatalogException, duckdb.BinderException, TypeError, ValueError):
        tables = connection.execute(
            "SELECT table_name FROM duckdb_tables() UNION ALL"
            " SELECT type FROM duckdb_databases() WHERE NOT internal AND type != 'duckdb'"
        ).fetchall()
        if tables:
            raise foreign(path, [name for (name,) in tables]) from None
        return 0
    oldest, newest = migrations()[0][0], migrations()[-1][0]
    if current < oldest:
        raise StoreVersionError(
            f"an older kvscope wrote it (schema version {current}, this one reads {oldest} on)",
            where=path,
            remedy="ingest its traces again, into another file with --db",
        )
    if current > newest:
        raise StoreVersionError(
            f"a newer kvscope wrote it (schema version {current}, this one knows {newest})",
            where=path,
            remedy="upgrade kvscope, or work on another file with --db",
        )
    return current


def _migrate(connection: duckdb.DuckDBPyConnection, current: int, path: str) -> None:
    """Bring the schema from version `current` to this one's, in one transaction.

    Raises DamagedStoreError where the tables are those of another version.
    """
    pending = [(version, text) for version, text in migrations() if version > current]
    if not pending:
        return
    connection.begin()
    connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER)")
    try:
        for _, text in pending:
            connection.execute(text)
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        raise damaged(path, f"its tables are not those of schema version {current}") from error
    connection.execute("DELETE FROM schema_version")
    connection.execute("INSERT INTO schema_version VALUES ($version)", {"version": pending[-1][0]})
    connection.commit()

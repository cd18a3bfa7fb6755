"""DuckDB's failures in a user's words, and the wait for a store that is in use.

DuckDB lets one process write a file, or several read it; its errors name a process that holds it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
from msgspec import Struct

from kvscope.core.errors import (
    DamagedStoreError,
    InputError,
    KvscopeError,
    StoreBusyError,
    StoreVersionError,
)
from kvscope.core.files import FULL, full_disk

PATIENCE_S = 20.0
"""How long a command waits for a store that another process has open."""

_SILENT_S = 1.0  # a shorter wait is not worth a note
_RETRY_S = 0.05
_MOST_WORDS = 100  # characters of another process's command
_OTHER = "name another with --db"
_SQLITE = b"SQLite format 3\0"
# A wrong checksum raises duckdb.Error itself.
_DAMAGE = (
    duckdb.IOException,
    duckdb.InternalException,
    duckdb.FatalException,
    duckdb.SerializationException,
)


class Waiting(Struct, frozen=True):
    """How to wait for a store that another process has open.

    `patience_s` bounds the wait (None: 20 s, `PATIENCE_S`). After a second, `note` is called once
    with a message that names the other process.
    """

    patience_s: float | None = None
    note: Callable[[str], None] = lambda _: None


def waiting_for(
    path: str, connect: Callable[[], duckdb.DuckDBPyConnection], waiting: Waiting | None
) -> duckdb.DuckDBPyConnection:
    """Return a connection as soon as no other process has the store open.

    `waiting` None: up to 20 s, without a note. Raises StoreBusyError after that time, and other
    failures as `explained` returns them.
    """
    waiting = waiting or Waiting()
    patience_s = PATIENCE_S if waiting.patience_s is None else waiting.patience_s
    start_s, noted = time.monotonic(), False
    while True:
        try:
            return connect()
        except duckdb.Error as error:
            busy = _busy(path, error)
            if busy is None:
                known = explained(path, error)
                other = f"cannot be opened as a store ({_reason(str(error))})"
                raise known or InputError(other, where=path, remedy=_OTHER) from error
        waited_s = time.monotonic() - start_s
        if waited_s >= patience_s:
            raise busy
        if waited_s > _SILENT_S and not noted:
            waiting.note(f"{path}: {busy.what}; waiting for up to {patience_s:.0f} s")
            noted = True
        time.sleep(_RETRY_S)


@contextmanager
def explaining(path: str) -> Iterator[None]:
    """Raise DuckDB's errors of the block as kvscope's, if `explained` knows them."""
    try:
        yield
    except duckdb.Error as error:
        if meant := explained(path, error):
            raise meant from error
        raise


def explained(path: str, error: duckdb.Error) -> KvscopeError | None:
    """Return kvscope's error for one of DuckDB's, None if DuckDB's shows a defect of kvscope."""
    text = str(error)
    if any(reason in text for reason in FULL.values()):
        return full_disk(Path(path), text)
    if isinstance(error, duckdb.OutOfMemoryException):
        return KvscopeError(
            "too little memory for this trace", where=path, remedy="free some, or take a sample"
        )
    if re.search(r"not a valid DuckDB|sqlite|in-memory database", text, re.IGNORECASE):
        return InputError(f"not a kvscope store ({_kind(path)})", where=path, remedy=_OTHER)
    if not isinstance(error, _DAMAGE) and "Corrupt" not in text:
        return None
    if re.search(r"version number|newer version of DuckDB|storage version", text):
        return StoreVersionError(
            "a newer DuckDB wrote it", where=path, remedy=f"upgrade duckdb, or {_OTHER}"
        )
    return damaged(path, _reason(text))


def damaged(path: str, why: str) -> DamagedStoreError:
    """Return the error for a store with unreadable parts."""
    remedy = f"see what can be saved with `kvscope doctor --db {path}`"
    return DamagedStoreError(f"is damaged ({why})", where=path, remedy=remedy)


def foreign(path: str, tables: Sequence[str]) -> InputError:
    """Return the error for a database with other tables than kvscope's."""
    names = ", ".join(sorted(tables)[:3]) + (", …" if len(tables) > 3 else "")
    return InputError(
        f"a database, but not a kvscope store (it holds {names})", where=path, remedy=_OTHER
    )


def _busy(path: str, error: duckdb.Error) -> StoreBusyError | None:
    """Return the error for a store in use, None if `error` is about something else."""
    text = str(error)
    remedy = "wait until it ends, or work on another file with --db"
    if "different configuration than existing connections" in text:
        return StoreBusyError("this process is using the store", where=path, remedy=remedy)
    if "Conflicting lock is held" not in text:
        return None
    holder = re.search(r"held in (.+?) \(PID (\d+)\)", text)
    process = f"process {holder[2]} ({_command(*holder.groups())})" if holder else "another process"
    return StoreBusyError(f"{process} is using the store", where=path, remedy=remedy)


def _command(program: str, pid: str) -> str:
    """Return the command line of a process where the system shows it, else its program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return Path(program).name
    names = [Path(word).name for word in words]
    begin = names.index("kvscope") if "kvscope" in names else 0
    line = " ".join(" ".join([names[begin], *words[begin + 1 :]]).split())
    return line if len(line) <= _MOST_WORDS else line[: _MOST_WORDS - 1] + "…"


def _kind(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            head = file.read(len(_SQLITE))
    except OSError:
        head = b""
    return "an SQLite database" if head == _SQLITE else "not a DuckDB file"


def _reason(text: str) -> str:
    """Return a short reason from an error text of DuckDB: a known cause, else its first line."""
    if "checksum" in text:
        return "wrong checksum"
    if "Could not read enough bytes" in text:
        return "the file ends too early"
    first = re.sub(r"^(\w+ )?Error: ", "", text.splitlines()[0])
    return first if len(first) <= _MOST_WORDS else first[: _MOST_WORDS - 1] + "…"

"""Check whether a stored trace is consistent: ranges, order, sums, a checksum of all its tables.

DuckDB checks its pages; a store from elsewhere may hold any values in sound pages. Values that
kernels index by or SQL adds up are checked where a trace is loaded, by the queries of `kvscope
doctor`. They read every column of every row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec
from msgspec import Struct

from kvscope.core.errors import DamagedStoreError, KvscopeError
from kvscope.core.trace import Trace
from kvscope.store.db import MEMORY, Store, migrations, statement
from kvscope.store.folder import is_in_dataset

TABLES = {
    "requests": "requests",
    "request_attributes": None,
    "blocks": "distinct_blocks",
    "branches": None,
    "own_hash_ids": None,
    "block_groups": None,
    "reuses": None,
    "bad_lines": None,
    "parts": None,
    "traces": None,
}
"""The tables of a trace, and the column of `traces` that counts their rows (None: no column)."""
CHANGED = "its checksum is another"
UNREADABLE = (KvscopeError, duckdb.Error, msgspec.MsgspecError, ValueError)
_MOST_KNOWN = 256
_known_sound = dict[tuple[int, ...], None]()  # file as it was, trace: not read again for nothing


class Checked(Struct, frozen=True):
    """Faults of a trace's tables, and their checksum.

    `changed`: the checksum that the same DuckDB and schema version stored with the trace differs.
    """

    faults: tuple[str, ...]
    checksum: str
    changed: bool


def check(store: Store, trace: Trace) -> Checked:
    """Read all tables of a trace; return their faults and checksum."""
    # DuckDB's hashes are those of a version, and of the columns that a query reads.
    how = [duckdb.__version__, str(migrations()[-1][0])]
    how += [statement(f"doctor/{table}").text for table in TABLES]
    digest, faults = hashlib.blake2b("\n".join(how).encode(), digest_size=16), list[str]()
    for table in TABLES:
        try:
            row = store.row(f"doctor/{table}", trace_id=trace.trace_id)
        except UNREADABLE as error:
            faults.append(f"{table} cannot be read: {in_words(error)}")
            continue
        faults += _faults(table, row["in_table"], row["wrong"], store, trace)
        digest.update(f"{row['in_table']} {row['digest']}\n".encode())
    how_and_what = f"{how[0]}/{how[1]}/{digest.hexdigest()}"
    known = store.rows("doctor/checksum", trace_id=trace.trace_id)  # none: removed meanwhile
    stored = (known[0]["checksum"] if known else None) or ""
    comparable = stored.rpartition("/")[0] == how_and_what.rpartition("/")[0]
    return Checked(tuple(faults), how_and_what, comparable and stored != how_and_what)


def _faults(table: str, rows: int, wrong: int, store: Store, trace: Trace) -> Iterator[str]:
    counted = TABLES[table]
    # A dataset's blocks lie in its shards.
    if counted and rows != getattr(trace, counted) and (rows or not is_in_dataset(store.path)):
        yield f"{rows:,} {table} of {getattr(trace, counted):,}"
    if wrong and table == "traces":
        yield "its sums contradict its requests"
    elif wrong:
        yield f"{wrong:,} {table} contradict the trace"


def keep_checksum(store: Store, trace: Trace) -> None:
    """Store the checksum of a trace that was just written; the caller holds a transaction.

    A store in memory gets none: no other process can change it.
    """
    if store.path == MEMORY:
        return
    checked = check(store, trace)
    store.run("doctor/set_checksum", trace_id=trace.trace_id, checksum=checked.checksum)


def require_sound(store: Store, trace: Trace) -> None:
    """Raise DamagedStoreError for a stored trace with impossible values or another checksum.

    Each process checks an unchanged file only once.
    """
    if store.path == MEMORY:
        return
    state = Path(store.path).stat()
    key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, trace.trace_id)
    if key in _known_sound:
        return
    checked = check(store, trace)
    if checked.faults or checked.changed:
        raise DamagedStoreError(
            f"trace {trace.name!r} is damaged ({(*checked.faults, CHANGED)[0]})",
            where=store.path,
            remedy=f"see what can be saved with `kvscope doctor --db {store.path}`",
        )
    while len(_known_sound) >= _MOST_KNOWN:
        del _known_sound[next(iter(_known_sound))]
    _known_sound[key] = None


def in_words(error: BaseException) -> str:
    """Return the reason why a table cannot be read, as text."""
    what = error.what if isinstance(error, KvscopeError) else str(error).splitlines()[0]
    return what.removeprefix("is damaged (").removesuffix(")")

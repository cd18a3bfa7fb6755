"""Check a store: whether all of it is readable and consistent; copy the sound part to a new store.

DuckDB checks the checksum of each block that it reads, so every column of every row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import duckdb
from msgspec import Struct

from kvscope.core.errors import DamagedStoreError, UsageError
from kvscope.core.files import missing_from
from kvscope.core.trace import Trace
from kvscope.store import results, traces
from kvscope.store.checks import CHANGED, TABLES, UNREADABLE, check, in_words
from kvscope.store.db import Store, open_store
from kvscope.store.failures import explaining
from kvscope.store.file import StoreFile
from kvscope.store.folder import is_in_dataset

_RESULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "runs": ("run_id", ("run_parts",)),
    "fits": ("fit_id", tuple(f"fit_{part}" for part in results.FIT_PARTS)),
    "validations": ("validation_id", ("validation_runs",)),
    "reports": ("report_id", ()),
}
"""The tables of results over a trace: each one's id column, and the tables of the parts."""
_ATTACHED = "damaged"


class TraceHealth(Struct, frozen=True):
    """A trace that `kvscope doctor` checked; one with `faults` cannot be saved.

    `result_faults` are faults of results computed over the trace. `source_exists` is true if its
    file still exists to be ingested again.
    """

    DOCUMENT: ClassVar[str] = (
        "name=trace.name source=trace.source source_exists faults result_faults"
    )
    trace: Trace
    faults: tuple[str, ...]
    result_faults: tuple[str, ...]

    @property
    def source_exists(self) -> bool:
        """Whether the files that the trace was read from are still there, as far as can be told."""
        return not missing_from(self.trace.source)


class StoreHealth(Struct, frozen=True):
    """The result of `examine`; `fault`: why the list of traces cannot be read, empty if it can."""

    path: str
    fault: str
    traces: tuple[TraceHealth, ...]

    @property
    def is_sound(self) -> bool:
        """True if neither the store nor any of its traces and results has a fault."""
        return not self.fault and not any(
            health.faults or health.result_faults for health in self.traces
        )


class Saved(Struct, frozen=True):
    """The traces that `save` copied, by name, and sentences on parts that it left out."""

    path: str
    traces: tuple[str, ...]
    left_out: tuple[str, ...]


def examine(path: str, shard_faults: tuple[str, ...] = ()) -> StoreHealth:
    """Return the faults of the store at `path`, found by reading every table.

    `shard_faults`: faults of a dataset's other files. Raises the errors of `open_store` but damage.
    """
    try:
        with StoreFile(path, create=False).reading() as store:
            known = traces.all_traces(store)
            return StoreHealth(
                path, "", tuple(_examined(store, trace, shard_faults) for trace in known)
            )
    except DamagedStoreError as error:
        return StoreHealth(path, error.what, ())


def save(health: StoreHealth, target: str) -> Saved:
    """Copy sound traces and their readable results to a new store; return what was saved and not.

    Raises UsageError where `target` exists, and the errors of `open_store`.
    """
    if Path(target).exists():
        raise UsageError("exists already", where=target, remedy="name a new file")
    saved, left_out = [], []
    highest = dict.fromkeys(("trace_id", *(key for key, _ in _RESULTS.values())), 0)
    with open_store(target) as store:
        if not health.fault:
            with explaining(health.path):
                store.connection.execute(
                    f"ATTACH $path AS {_ATTACHED} (READ_ONLY)", {"path": health.path}
                )
        for each in health.traces:
            name, trace_id = each.trace.name, each.trace.trace_id
            if each.faults or not _copied(store, TABLES, "trace_id", [trace_id]):
                left_out.append(f"trace {name!r}")
                continue
            saved.append(name)
            highest["trace_id"] = max(highest["trace_id"], trace_id)
            for table, (key, parts) in _RESULTS.items():
                ids = _ids(store, table, key, trace_id)
                if ids is None or not _copied(store, (table, *parts), key, ids):
                    left_out.append(f"{table} of {name!r}")
                elif ids:
                    highest[key] = max(highest[key], *ids)
        store.run("doctor/number_on", **highest)
    return Saved(target, tuple(saved), tuple(left_out))


def _examined(store: Store, trace: Trace, shard_faults: tuple[str, ...]) -> TraceHealth:
    checked = check(store, trace)
    faults = checked.faults
    if not faults and not is_in_dataset(store.path):  # what is in range ends
        row = store.row("doctor/depths", trace_id=trace.trace_id)
        faults = tuple(f"{n:,} {name} contradict the trie" for name, n in row.items() if n)
    if not faults and checked.changed:
        faults = (CHANGED,)
    faults += shard_faults
    return TraceHealth(trace, faults, tuple(_result_faults(store, trace)))


def _result_faults(store: Store, trace: Trace) -> Iterator[str]:
    readers: dict[str, Callable[[], Any]] = {
        "runs": lambda: results.with_parts(store, results.all_runs(store, trace)),
        "fits": lambda: [
            results.fit_models(store, row["fit_id"]) for row in results.all_fits(store, trace)
        ],
        "validations": lambda: [
            results.validation_runs(store, row["validation_id"])
            for row in results.all_validations(store, trace)
        ],
        "reports": lambda: [
            results.report_content(store, row["report_id"])
            for row in results.all_reports(store)
            if row["trace"] == trace.name
        ],
    }
    for table, read in readers.items():
        try:
            read()
        except UNREADABLE as error:
            yield f"{table} cannot be read: {in_words(error)}"


def _ids(store: Store, table: str, key: str, trace_id: int) -> list[int] | None:
    """Return the ids of the results over a trace, None if they cannot be read."""
    try:
        rows = _rows(store, table, "trace_id", [trace_id]).select(key).fetchall()
    except duckdb.Error:
        return None
    return [row[0] for row in rows]


def _copied(store: Store, tables: Iterable[str], key: str, ids: list[int]) -> bool:
    """Copy the rows with these ids in all tables; return False if that failed and copied none."""
    if not ids:
        return True
    try:
        with store.transaction():
            for table in tables:
                _rows(store, table, key, ids).insert_into(table)
    except duckdb.Error:
        with suppress(DamagedStoreError), explaining(store.path):
            raise
        return False
    return True


def _rows(store: Store, table: str, key: str, ids: list[int]) -> duckdb.DuckDBPyRelation:
    values = [duckdb.ConstantExpression(each) for each in ids]
    whole = store.connection.table(f"{_ATTACHED}.{table}")
    return whole.filter(duckdb.ColumnExpression(key).isin(*values))

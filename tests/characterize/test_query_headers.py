from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from kvscope.core.files import data_folder
from kvscope.store import db
from kvscope.store.db import Store
from kvscope.store.results import FIT_PARTS
from tests.characterize.tiny import tiny_store

QUERIES = sorted(
    f"{path.parent.name}/{path.stem}"
    for path in data_folder("queries").glob("*/*.sql")
    if path.parent.name != "schema"  # migrations are scripts, run once
)
# parameters that are no columns
GIVEN: dict[str, Any] = {
    "types": ["x"],
    "model_names": ["x"],
    "adapter_names": ["x"],
    "worker_names": ["x"],
    "retention_names": ["x"],
    "categories": ["x"],
    "numbers": [1],
    "places": ["x"],
    "reasons": ["x"],
    "run_ids": [1],
    "names": ["x"],
    "values": [0.5],
    "content": "x",
    "options": "x",
}
PART = ("category", "start_s", "length_s", "outcome")
# what `$rows` of a statement are: structs with some columns of a table
ROWS = {f"fits/add_{part}": f"fit_{part}" for part in FIT_PARTS}
ROWS["validate/add_runs"] = "validation_runs"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """Yield one store for all statements, each of which is rolled back."""
    with tiny_store() as (opened, _):
        yield opened


@cache
def columns_of(store: Store) -> dict[str, Any]:
    """Every column of every table, with its type."""
    tables = store._connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    found = [store._connection.table(name) for (name,) in tables]
    return {
        name: kind for table in found for name, kind in zip(table.columns, table.types, strict=True)
    }


def example(kind: Any) -> Any:
    """Return some value of this type."""
    if kind.id == "map":
        return {"key": ["x"], "value": [example(kind.children[1][1])]}
    if kind.id in {"list", "array"}:
        return [example(kind.children[0][1])]
    if kind.id == "struct":
        return {name: example(child) for name, child in kind.children}
    values = {"varchar": "x", "boolean": True, "double": 0.5}
    return values.get(kind.id, datetime(2026, 1, 1) if kind.id == "timestamp" else 1)  # noqa: DTZ001


def rows(store: Store, table: str) -> list[dict[str, Any]]:
    """Return a row of `table` without the columns that its statement adds."""
    found = store._connection.table(table)
    kinds = dict(zip(found.columns, found.types, strict=True))
    return [{name: example(kinds[name]) for name in kinds if name not in {"fit_id", "place"}}]


def parameter(store: Store, name: str, file: Path) -> Any:
    """Return a value that a parameter of this name can take, by the type of its column."""
    if name == "path":
        return str(file)
    if name.endswith("_shares"):
        return [0.5]
    known = columns_of(store)
    if name == "parts":
        return [{column: example(known[column]) for column in PART}]
    return GIVEN[name] if name in GIVEN else example(known[name]) if name in known else 1


@pytest.mark.parametrize("name", QUERIES)
def test_header_tells_what_the_statement_takes_and_returns(
    name: str, store: Store, tmp_path: Path
) -> None:
    """Parameters and columns in a query's header are those of its SQL, in their order."""
    statement = db.statement(name)
    (parsed,) = duckdb.extract_statements(statement.text)
    assert set(statement.parameters) == parsed.named_parameters
    assert len(set(statement.parameters)) == len(statement.parameters)
    assert statement.answers
    file = tmp_path / "rows.parquet"
    pl.DataFrame({column: [0] for column in statement.columns}).write_parquet(file)
    values = {
        key: rows(store, ROWS[name]) if key == "rows" else parameter(store, key, file)
        for key in statement.parameters
    }
    frame = {name: np.zeros(1, dtype=np.int32) for name in columns_of(store)}  # noqa: F841  (DuckDB finds it by name)
    store._connection.begin()
    try:
        cursor = store._connection.execute(statement.text, values)
        columns = [column[0] for column in cursor.description or ()]
    finally:
        store._connection.rollback()
    if statement.columns or parsed.type == duckdb.StatementType.SELECT:
        assert list(statement.columns) == columns

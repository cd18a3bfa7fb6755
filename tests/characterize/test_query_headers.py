from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from kvscope.paths import data_folder
from kvscope.store import sql
from kvscope.store.db import Store
from tests.characterize.tiny import tiny_store

QUERIES = sorted(
    f"{path.parent.name}/{path.stem}"
    for path in data_folder("queries").glob("*/*.sql")
    if path.parent.name != "schema"  # migrations are scripts, run once
)
BY_TYPE: dict[str, Any] = {"VARCHAR": "x", "BOOLEAN": True, "VARCHAR[]": [], "DOUBLE[]": [0.5]}


def parameter(store: Store, name: str, file: Path) -> Any:
    """Some value that a parameter of this name can take, by the type of the column it is about."""
    if name == "path":
        return str(file)
    if name.endswith("_shares"):
        return [0.5]
    found = store._connection.execute(
        "SELECT data_type FROM duckdb_columns() WHERE column_name = $name", {"name": name}
    ).fetchone()
    return BY_TYPE.get(found[0], 1) if found else 1


@pytest.mark.parametrize("name", QUERIES)
def test_header_tells_what_the_statement_takes_and_returns(name: str, tmp_path: Path) -> None:
    """Parameters and columns in a query's header are those of its SQL, in their order."""
    statement = sql.statement(name)
    (parsed,) = duckdb.extract_statements(statement.text)
    assert set(statement.parameters) == parsed.named_parameters
    assert len(set(statement.parameters)) == len(statement.parameters)
    assert statement.answers
    file = tmp_path / "rows.parquet"
    pl.DataFrame({column: [0] for column in statement.columns}).write_parquet(file)
    with tiny_store() as (store, _):
        values = {key: parameter(store, key, file) for key in statement.parameters}
        cursor = store._connection.execute(statement.text, values)
        columns = [column[0] for column in cursor.description or ()]
    if statement.columns or parsed.type == duckdb.StatementType.SELECT:
        assert list(statement.columns) == columns

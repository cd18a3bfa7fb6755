"""Arrays reach DuckDB as they are."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from kvscope.store.db import Frame, open_store

LIMITS = [
    np.array([np.iinfo(np.int32).min, 0, np.iinfo(np.int32).max], dtype=np.int32),
    np.array([np.iinfo(np.int64).min, 0, np.iinfo(np.int64).max]),
    np.array([-np.inf, 5e-324, 0.1]),
]


@pytest.mark.parametrize("values", LIMITS, ids=lambda values: str(values.dtype))
def test_every_number_arrives(values: np.ndarray) -> None:
    """The least and the largest of each type, in order, from arrays with gaps in memory too."""
    frame = Frame({"plain": values, "backwards": values[::-1]})
    assert len(frame) == 3
    found = duckdb.connect().execute("SELECT * FROM frame").fetchnumpy()
    for name, sent in (("plain", values), ("backwards", values[::-1])):
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], sent)


def test_rows_lie_in_the_order_of_their_arrays(tmp_path: Path) -> None:
    """So many that threads would mix them; the connection keeps the order of others again."""
    block = np.random.default_rng(0).permutation(3_000_000).astype(np.int32)
    path = str(tmp_path / "kvscope.duckdb")
    with open_store(path) as store:
        with store.transaction():
            for part in np.split(block, 2):
                columns = {"block": part, "hash_id": part.astype(np.int64)}
                store.append("ingest/add_own_hash_ids", columns, trace_id=1)
        order = "SELECT current_setting('preserve_insertion_order')"
        assert store.connection.execute(order).fetchone() == (True,)
    with open_store(path, read_only=True) as store:
        rows = store.connection.execute("SELECT block FROM own_hash_ids ORDER BY rowid")
        assert np.array_equal(rows.fetchnumpy()["block"], block)

"""Arrays reach DuckDB as they are."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from kvscope.store.db import Frame

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

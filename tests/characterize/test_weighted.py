from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.characterize.distributions import Weighted, cdfs, quantiles, summaries

ITEMS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 2)), max_size=20)


@given(ITEMS)
def test_against_the_values_written_out(items: list[tuple[int, int, int]]) -> None:
    """Weights mean repetition: quantiles, means and CDFs equal those of the repeated values."""
    items = sorted(items)
    of = Weighted(
        np.array([value for value, _, _ in items], dtype=np.float64),
        np.array([weight for _, weight, _ in items], dtype=np.int64),
    )
    group = np.array([g for *_, g in items], dtype=np.int64)
    grid = np.array([0.5, 3.0, 7.5])
    for g in range(3):
        written = [
            float(value) for value, weight, of_g in items if of_g == g for _ in range(weight)
        ]
        found = summaries(of, group, 3)[g]
        shares = cdfs(of, group, 3, grid)[g]
        if not written:
            assert found is None
            assert np.isnan(quantiles(of, group, 3, np.array([50]))[g, 0])
            continue
        assert found is not None
        for percent, value in ((50, found.p50), (80, found.p80), (90, found.p90), (99, found.p99)):
            assert value == written[-(-percent * len(written) // 100) - 1]
        assert found.max == written[-1]
        assert found.mean == pytest.approx(math.fsum(written) / len(written))
        assert shares == tuple(sum(v <= t for v in written) / len(written) for t in grid)

"""Observations: sizes, clusters, and what merging keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.model.observations import RESOLUTION_S, Observations

rows = st.lists(
    st.tuples(st.floats(0.0, 1e7), st.booleans(), st.integers(0, 500), st.integers(0, 5)),
    min_size=1,
    max_size=60,
)


@given(found=rows)
def test_merging_keeps_the_sums(found: list[tuple[float, bool, int, int]]) -> None:
    """Blocks, reused blocks and seconds are the same; no wait moves by more than a hundredth."""
    waited, reused, weight, cluster = (np.array(column) for column in zip(*found, strict=True))
    of = Observations.of(waited, reused, weight, cluster)
    merged = of.merged()
    assert merged.total == pytest.approx(of.total)
    assert merged.total_reused == pytest.approx(of.total_reused)
    assert merged.weight @ merged.waited_s == pytest.approx(of.weight @ of.waited_s)
    for one, hit in zip(of.waited_s, of.reused, strict=True):
        alike = merged.waited_s[merged.reused == hit]
        assert np.min(np.abs(alike / one - 1)) < 0.0101


def test_the_effective_size() -> None:
    """A hundred equal blocks are a hundred, or as many as their clusters; one heavy run is one."""
    waited, hit = np.ones(100), np.ones(100, dtype=bool)
    assert Observations.of(waited, hit).effective == pytest.approx(100)
    assert Observations.of(waited, hit, None, np.arange(100) // 10).effective == pytest.approx(10)
    heavy = np.concatenate(([1e9], np.ones(99)))
    assert Observations.of(waited, hit, heavy).effective == pytest.approx(1, rel=1e-6)


def test_what_is_nothing_is_left_out() -> None:
    """Runs without blocks go; a wait of nothing counts as the shortest that clocks tell."""
    of = Observations.of(np.array([0.0, 5.0]), np.array([True, True]), np.array([2, 0]))
    assert of.waited_s.tolist() == [RESOLUTION_S]
    assert (of.total, of.clusters, of.reused_runs) == (2, 1, 1)
    assert Observations.of(np.zeros(0), np.zeros(0, dtype=bool)).effective == 0

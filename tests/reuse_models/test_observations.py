"""Observations: sizes, clusters, and what merging keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.reuse_models.distributions import Weibull
from kvscope.reuse_models.evidence import tick_s
from kvscope.reuse_models.observations import RESOLUTION_S, Observations
from kvscope.reuse_models.selection import choose
from tests.reuse_models.drawn import TRUTH, observed

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


def test_the_clock_of_a_trace() -> None:
    """Ticks, jitter and all, where many arrivals show them; else what clocks tell at best."""
    rng = np.random.default_rng(1)
    assert tick_s(np.sort(rng.integers(0, 500, 900)) * 3.0) == 3.0
    assert tick_s(np.sort(rng.integers(0, 10**6, 900)) / 1e3) == pytest.approx(1e-3, rel=1e-3)
    assert tick_s(np.sort(rng.uniform(0, 1e3, 9_000))) == RESOLUTION_S
    shaken = np.arange(500) * 3.0 + rng.choice([-1e-3, 0, 1e-3], 500)
    assert tick_s(shaken) == pytest.approx(3, abs=0.003)
    assert tick_s(np.array([0.0, 100.0, 200.0])) == RESOLUTION_S
    assert tick_s(np.zeros(0)) == RESOLUTION_S


def test_a_coarse_clock_hides_when_but_not_that() -> None:
    """Waits cut down to ticks of 3 s, a tenth of them to nothing: every model keeps its parameters.

    Without left-censoring a Weibull takes the nothings for a hazard without end.
    """
    exact = observed(TRUTH["exponential"][0], 20_000, seed=3)
    ticks = np.where(exact.reused, np.floor(exact.waited_s / 3) * 3, exact.waited_s)
    coarse = Observations.of(ticks, exact.reused, resolution_s=3.0)
    blind = Observations.of(ticks, exact.reused)
    assert 0.04 < coarse.at_once.mean() < 0.1
    assert Weibull().fit(coarse).params_["shape"] == pytest.approx(1, abs=0.1)
    assert Weibull().fit(blind).params_["shape"] < 0.8
    assert choose(coarse).verdict == "exponential fits"

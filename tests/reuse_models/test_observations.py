"""Observations of waits, their Kaplan-Meier, and next prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.reuse_models.conversation import VALUES, NextPrompt, added_tokens
from kvscope.reuse_models.distributions import Weibull
from kvscope.reuse_models.evidence import tick_s
from kvscope.reuse_models.observations import RESOLUTION_S, KaplanMeier, Observations
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


curve_rows = st.lists(
    st.tuples(st.integers(1, 12), st.booleans(), st.integers(1, 9)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(found=curve_rows)
def test_the_curve_is_lifelines(found: list[tuple[int, bool, int]]) -> None:
    """With ties of all kinds, and weights."""
    lifelines: Any = pytest.importorskip("lifelines")
    waited, reused, weight = (np.array(column) for column in zip(*found, strict=True))
    if not reused.any():
        return
    theirs = lifelines.KaplanMeierFitter().fit(waited, reused, weights=weight)
    ours = KaplanMeier().fit(Observations.of(waited, reused, weight))
    at = np.arange(0.5, 14.0, 0.5)
    expected = theirs.survival_function_at_times(at).to_numpy()
    assert ours.survival(at) == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    """Of four blocks two are reused, at 1 and 3, and one leaves sight at 2: 3/4, then 3/8."""
    of = Observations.of(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, False]))
    curve = KaplanMeier().fit(of)
    assert curve.times_s_.tolist() == [1, 3]
    assert curve.survival_.tolist() == [0.75, 0.375]
    assert curve.reuse_within(np.array([0.0, 1.0, 2.9, 99.0])).tolist() == [0, 0.25, 0.25, 0.625]


def test_the_distance_is_a_share_of_the_reuse() -> None:
    """A curve that says half of what is observed misses half, whether 2 % or 80 % are reused."""
    for never in (10, 1_960):
        waited = np.concatenate((np.linspace(1, 40, 40), np.full(never, 50.0)))
        of = Observations.of(waited, np.arange(len(waited)) < 40)
        curve = KaplanMeier().fit(of)
        assert curve.distance(curve.reuse_within) == pytest.approx(1 / curve.horizon_, rel=0.1)
        half = curve.distance(lambda t, curve=curve: curve.reuse_within(t) / 2)  # type: ignore[misc]
        assert half == pytest.approx(0.5)


def test_few_blocks_at_the_end_do_not_count() -> None:
    """Where fewer than five independent blocks are at risk, nothing is compared."""
    of = Observations.of(np.arange(1.0, 21.0), np.ones(20, dtype=bool))
    curve = KaplanMeier().fit(of)
    assert curve.reach_s == 16
    assert KaplanMeier().fit(of, effective=2.0).reach_s == 1


@given(tokens=st.lists(st.integers(0, 10**6), min_size=1, max_size=80))
def test_the_values_are_quantiles(tokens: list[int]) -> None:
    """Ascending, seen, and of any tokens within a value's share as many lie below as it says."""
    found = NextPrompt().fit(np.array(tokens, dtype=np.float64))
    assert len(found.values_) == VALUES
    assert list(found.values_) == sorted(found.values_)
    assert set(found.values_.tolist()) <= {float(one) for one in tokens}
    assert found.quantile(1.0) == max(tokens)
    assert found.quantile(0.0) == min(tokens)
    for place, value in enumerate(found.values_):
        assert sum(one <= value for one in tokens) / len(tokens) >= (place + 0.5) / VALUES


def test_what_a_turn_adds() -> None:
    """Its input less the history before it, and nothing where that was cut."""
    child, before = np.array([1, 2]), np.array([0, 1])
    added = added_tokens(child, before, np.array([5, 30, 10]), np.array([9, 34, 12]))
    assert added.tolist() == [21.0, 0.0]

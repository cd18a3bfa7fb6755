"""Kaplan-Meier: lifelines' curve, and distances that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.reuse_models.observations import KaplanMeier, Observations

rows = st.lists(
    st.tuples(st.integers(1, 12), st.booleans(), st.integers(1, 9)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(found=rows)
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

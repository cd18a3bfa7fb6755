"""Scores of predicted probabilities: against counts of pairs, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.learning.ends.prediction_quality import auc, brier, calibration, calibration_error

_PAIRS = st.lists(st.tuples(st.sampled_from((0.0, 0.1, 0.35, 0.5, 1.0)), st.booleans()), min_size=1)


@given(_PAIRS)
def test_auc_counts_pairs(drawn: list[tuple[float, bool]]) -> None:
    """Of all that came with all that did not: how often it was given more, ties half."""
    chance, came = np.array([c for c, _ in drawn]), np.array([y for _, y in drawn])
    pairs = [(one, other) for one in chance[came] for other in chance[~came]]
    found = auc(chance, came)
    if not pairs:
        assert found is None
        return
    better = sum((one > other) + 0.5 * (one == other) for one, other in pairs)
    assert found == pytest.approx(better / len(pairs))


def test_perfect_useless_and_upside_down() -> None:
    """1, one half and 0."""
    came = np.array([True, False, True, False])
    assert auc(np.array([0.9, 0.1, 0.8, 0.2]), came) == 1.0
    assert auc(np.full(4, 0.3), came) == 0.5
    assert auc(np.array([0.1, 0.9, 0.2, 0.8]), came) == 0.0


def test_brier_is_the_squared_error() -> None:
    """0.09 and 0.25, on average 0.17."""
    assert brier(np.array([0.7, 0.5]), np.array([True, False])) == pytest.approx(0.17)


@given(_PAIRS)
def test_every_prediction_is_in_one_bin(drawn: list[tuple[float, bool]]) -> None:
    """Bins hold all of them, each where it lies; certainty is in the last."""
    chance, came = np.array([c for c, _ in drawn]), np.array([y for _, y in drawn])
    bins = calibration(chance, came)
    assert sum(one.n for one in bins) == len(drawn)
    assert sum(one.n * one.observed for one in bins) == pytest.approx(came.sum())
    for one in bins:
        some = [c for c, _ in drawn if one.low <= c < one.high or c == one.high == 1.0]
        assert one.n == len(some)
        assert one.predicted == pytest.approx(np.mean(some))


def test_the_error_is_weighed_by_requests() -> None:
    """Three off by 10 pp and one by 50 pp: 20 pp."""
    chance = np.array([0.1, 0.1, 0.1, 0.5])
    came = np.array([False, False, False, True])
    assert calibration_error(calibration(chance, came)) == pytest.approx(0.2)

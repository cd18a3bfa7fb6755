"""What is told of foreseen returns: of which requests, and that it is what was said in time."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.learning.ends.offline import EndPredictor
from kvscope.learning.ends.prediction_quality import WINDOWS, auc, prediction_quality
from tests.learning.test_refit_tables import first, told

HORIZON_S = 300.0


def test_every_request_is_judged_or_counted() -> None:
    """With a prediction and a horizon that the trace covers, or as one that lacks either."""
    of = told("to-c")
    ends = EndPredictor(of)
    found = prediction_quality(ends, HORIZON_S)
    assert found.requests + found.unpredicted + found.unknown == len(of.leaf)
    late = of.arrival_s > of.arrival_s[-1] - HORIZON_S
    assert found.unknown == late.sum()
    assert found.requests == sum(one.requests for one in found.windows)
    assert found.requests == sum(one.n for one in found.calibration)
    chance, came = ends.predicted(HORIZON_S).chance, ends.turns.next_s <= HORIZON_S
    some = ~late & ~np.isnan(chance)
    assert found.base_rate == came[some].mean()
    assert found.auc == auc(chance[some], came[some])
    assert found.brier == pytest.approx(np.mean((chance - came)[some] ** 2))
    assert found.auc_first is not None
    assert found.auc_later is not None


def test_the_sample_can_be_foreseen() -> None:
    """After later turns of to-c far better than a coin, after first ones no better; calibrated."""
    found = prediction_quality(EndPredictor(told("to-c")), 600.0)
    assert found.auc_later is not None
    assert found.auc_first is not None
    assert found.calibration_error is not None
    assert found.brier is not None
    assert found.brier_base is not None
    assert found.auc_later > 0.85
    assert found.auc_first == pytest.approx(0.5, abs=0.06)
    assert found.calibration_error < 0.12
    assert found.brier < found.brier_base


@pytest.mark.parametrize("name", ["to-c", "birth-death"])
def test_windows_are_few_and_in_order(name: str) -> None:
    """However long the trace; none overlaps the next."""
    found = prediction_quality(EndPredictor(told(name)), HORIZON_S)
    assert 0 < len(found.windows) <= WINDOWS
    ends_s = [one.end_s for one in found.windows]
    assert all(end <= one.start_s for end, one in zip(ends_s, found.windows[1:], strict=False))
    assert all(one.learned_from > 0 for one in found.windows)


def test_too_short_to_learn() -> None:
    """Nothing is judged, and nothing fails."""
    of = first(told("to-c"), 40)
    found = prediction_quality(EndPredictor(of), 600.0)
    assert found.requests == 0
    assert found.auc is found.base_rate is found.brier is found.trees is None
    assert found.windows == found.calibration == ()

"""How good predicted probabilities are: do they order the outcomes, and do they mean what they say.

`chance` are predicted probabilities, `came` whether it happened; N entries each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.reuse_models.observations import Floats

BINS = 10
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Predictions in [low, high): how many, what they say on average, and how often it came."""

    low: float
    high: float
    n: int
    predicted: float
    observed: float


def auc(chance: Floats, came: Booleans) -> float | None:
    """The probability that of one that came and one that did not, the former was given more.

    Ties count half; None where all came or none did. Source: Hanley and McNeil, The meaning and use
    of the area under a receiver operating characteristic (ROC) curve (1982).
    """
    hits = int(np.count_nonzero(came))
    misses = len(came) - hits
    if not hits or not misses:
        return None
    _, place, many = np.unique(chance, return_inverse=True, return_counts=True)
    rank = np.cumsum(many) - (many - 1) / 2.0  # mean rank of equals, counted from 1
    above = float(rank[place][came].sum()) - hits * (hits + 1) / 2.0
    return above / (hits * misses)


def brier(chance: Floats, came: Booleans) -> float:
    """The mean squared error. Source: Brier, Verification of forecasts (1950)."""
    return float(np.mean((chance - came) ** 2))


def calibration(chance: Floats, came: Booleans) -> tuple[CalibrationBin, ...]:
    """What happened after predictions of like probability, in `BINS` bins; empty ones left out."""
    at = np.minimum((chance * BINS).astype(np.int64), BINS - 1)
    found = []
    for one in np.unique(at).tolist():
        some = at == one
        found.append(
            CalibrationBin(
                low=one / BINS,
                high=(one + 1) / BINS,
                n=int(some.sum()),
                predicted=float(chance[some].mean()),
                observed=float(came[some].mean()),
            )
        )
    return tuple(found)


def calibration_error(bins: tuple[CalibrationBin, ...]) -> float:
    """The mean distance of what was said from what came, over all predictions (ECE).

    Source: Naeini, Cooper and Hauskrecht, Obtaining well calibrated probabilities (2015).
    """
    total = sum(one.n for one in bins)
    return sum(one.n * abs(one.predicted - one.observed) for one in bins) / total

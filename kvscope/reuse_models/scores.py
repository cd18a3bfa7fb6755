"""Quality of predicted probabilities: ranking (AUC) and calibration.

`chance` are predicted probabilities, `came` whether the event happened; N entries each.
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
    """Predictions in [low, high): their number, their mean, and the observed frequency."""

    low: float
    high: float
    n: int
    predicted: float
    observed: float


def auc(chance: Floats, came: Booleans) -> float | None:
    """Return the area under the ROC curve: P(an event ranks above a non-event).

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
    """Return the mean squared error. Source: Brier, Verification of forecasts (1950)."""
    return float(np.mean((chance - came) ** 2))


def calibration(chance: Floats, came: Booleans) -> tuple[CalibrationBin, ...]:
    """Return the observed frequency by predicted probability, in `BINS` bins without empty ones."""
    at = np.minimum((chance * BINS).astype(np.int64), BINS - 1)
    return tuple(
        CalibrationBin(
            low=place / BINS,
            high=(place + 1) / BINS,
            n=int(np.count_nonzero(at == place)),
            predicted=float(chance[at == place].mean()),
            observed=float(came[at == place].mean()),
        )
        for place in np.unique(at).tolist()
    )


def calibration_error(bins: tuple[CalibrationBin, ...]) -> float:
    """Return the expected calibration error: mean distance of prediction and frequency.

    Source: Naeini, Cooper and Hauskrecht, Obtaining well calibrated probabilities (2015).
    """
    total = sum(place.n for place in bins)
    return sum(place.n * abs(place.predicted - place.observed) for place in bins) / total

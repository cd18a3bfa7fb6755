"""How well next turns are predicted: what `EndPredictor` predicted, and what happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvscope.core.arrays import Bools
from kvscope.learning.ends.chances import FEATURES, Trees
from kvscope.learning.ends.offline import EndPredictor
from kvscope.policies.base import Floats

BINS = 10  # of predicted probabilities, for calibration
WINDOWS = 24  # that the time is cut into, at most; each is of some refits
_FEWEST = 10  # of either outcome: with fewer there is no AUC


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Predictions in [low, high): their number, their mean, and the observed frequency."""

    low: float
    high: float
    n: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class QualityWindow:
    """Predictions for the requests of an interval; `auc` is None where they are too few."""

    start_s: float
    end_s: float
    requests: int
    learned_from: int
    base_rate: float
    predicted: float
    auc: float | None
    brier: float


@dataclass(frozen=True, slots=True)
class PredictionQuality:
    """Predictions of a next turn within `horizon_s`, and what came.

    Of `requests` with a prediction and a known outcome; `unpredicted` came before there was enough
    to learn from, `unknown` so late that the trace ends before their horizon. `base_rate` is the
    share that was continued, `brier_base` the score of predicting that for every request.
    `auc_first` is that among first turns, `auc_later` among the others. `trees` are the last fit.
    """

    horizon_s: float
    refit_s: float
    window_s: float
    requests: int
    unpredicted: int
    unknown: int
    fits: int
    base_rate: float | None
    auc: float | None
    auc_first: float | None
    auc_later: float | None
    brier: float | None
    brier_base: float | None
    calibration_error: float | None
    calibration: tuple[CalibrationBin, ...]
    windows: tuple[QualityWindow, ...]
    trees: Trees | None


def prediction_quality(predictor: EndPredictor, horizon_s: float) -> PredictionQuality:
    """Score the predictions made on the way, each before its outcome was known."""
    made = predictor.predicted(horizon_s)
    arrival_s = predictor.traffic.arrival_s
    came = predictor.turns.next_s <= horizon_s
    last_s = float(arrival_s[-1]) if len(arrival_s) else 0.0
    over = arrival_s + horizon_s <= last_s
    some = over & ~np.isnan(made.chance)
    first = predictor.turns.known[:, FEATURES.index("turns")] == 0
    chance, outcome = made.chance[some], came[some]
    bins = calibration(chance, outcome)
    rate = float(outcome.mean()) if len(outcome) else None
    fits = [fit for fit in made.fits if fit is not None]
    return PredictionQuality(
        horizon_s=horizon_s,
        refit_s=predictor.refit_s,
        window_s=predictor.window_s,
        requests=len(outcome),
        unpredicted=int(np.count_nonzero(over)) - len(outcome),
        unknown=int(np.count_nonzero(~over)),
        fits=len({id(fit) for fit in fits}),
        base_rate=rate,
        auc=auc(chance, outcome),
        auc_first=auc(made.chance[some & first], came[some & first]),
        auc_later=auc(made.chance[some & ~first], came[some & ~first]),
        brier=brier(chance, outcome) if len(outcome) else None,
        brier_base=None if rate is None else rate * (1.0 - rate),
        calibration_error=calibration_error(bins) if bins else None,
        calibration=bins,
        windows=tuple(_windows(predictor, made.chance, came, some, horizon_s)),
        trees=fits[-1].trees if fits else None,
    )


def _windows(
    predictor: EndPredictor, chance: Floats, came: Bools, some: Bools, horizon_s: float
) -> Iterator[QualityWindow]:
    """Yield intervals of as many whole refits each."""
    made = predictor.predicted(horizon_s)
    refit = (predictor.traffic.arrival_s // predictor.refit_s).astype(np.int64)
    judged = np.flatnonzero(some)
    if not len(judged):
        return
    low, high = int(refit[judged[0]]), int(refit[judged[-1]]) + 1
    step = -(-(high - low) // WINDOWS)
    for begin in range(low, high, step):
        own = judged[(refit[judged] >= begin) & (refit[judged] < begin + step)]
        if not len(own):
            continue
        row = int(np.searchsorted(made.since, own[-1], side="right")) - 1
        fit = made.fits[row]
        hits = int(np.count_nonzero(came[own]))
        enough = min(hits, len(own) - hits) >= _FEWEST
        yield QualityWindow(
            start_s=begin * predictor.refit_s,
            end_s=(begin + step) * predictor.refit_s,
            requests=len(own),
            learned_from=fit.requests if fit else 0,
            base_rate=hits / len(own),
            predicted=float(chance[own].mean()),
            auc=auc(chance[own], came[own]) if enough else None,
            brier=brier(chance[own], came[own]),
        )


def auc(chance: Floats, came: Bools) -> float | None:
    """Return the area under the ROC curve: P(an event ranks above a non-event).

    Here and below, `chance` are predicted probabilities, `came` whether the event happened.
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


def brier(chance: Floats, came: Bools) -> float:
    """Return the mean squared error. Source: Brier, Verification of forecasts (1950)."""
    return float(np.mean((chance - came) ** 2))


def calibration(chance: Floats, came: Bools) -> tuple[CalibrationBin, ...]:
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

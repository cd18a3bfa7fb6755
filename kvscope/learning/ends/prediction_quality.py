"""How well the ends of conversations are foreseen: what `Ends` predicted beside what happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvscope.learning.chances import FEATURES, Trees
from kvscope.learning.ends.offline import Ends, Floats
from kvscope.reuse_models.scores import (
    Booleans,
    CalibrationBin,
    auc,
    brier,
    calibration,
    calibration_error,
)

WINDOWS = 24  # that the time is cut into, at most; each is of some refits
_FEWEST = 10  # that came, and that did not: of fewer there is no AUC


@dataclass(frozen=True, slots=True)
class ForeseenWindow:
    """Predictions for the requests of a stretch of time; `auc` None where they are too few."""

    start_s: float
    end_s: float
    requests: int
    learned_from: int
    base_rate: float
    predicted: float
    auc: float | None
    brier: float


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Predictions of a next turn within `horizon_s`, beside what came.

    Of `requests` with a prediction and a known outcome; `unpredicted` came before there was enough
    to learn from, `unknown` so late that the trace ends before their horizon. `base_rate` is the
    share that was continued, `brier_base` what knowing just that would score. `auc_first` is that
    among first turns, `auc_later` among the others. `trees` are the last that were learned.
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
    windows: tuple[ForeseenWindow, ...]
    trees: Trees | None


def foreseen(ends: Ends, horizon_s: float) -> Foreseen:
    """Judge the predictions that `ends` made on the way, each before its outcome was known."""
    made = ends.predicted(horizon_s)
    arrival_s = ends.traffic.arrival_s
    came = ends.turns.next_s <= horizon_s
    last_s = float(arrival_s[-1]) if len(arrival_s) else 0.0
    over = arrival_s + horizon_s <= last_s
    some = over & ~np.isnan(made.chance)
    first = ends.turns.known[:, FEATURES.index("turns")] == 0
    chance, outcome = made.chance[some], came[some]
    bins = calibration(chance, outcome)
    rate = float(outcome.mean()) if len(outcome) else None
    learned = [one for one in made.fits if one is not None]
    return Foreseen(
        horizon_s=horizon_s,
        refit_s=ends.refit_s,
        window_s=ends.window_s,
        requests=len(outcome),
        unpredicted=int(np.count_nonzero(over)) - len(outcome),
        unknown=int(np.count_nonzero(~over)),
        fits=len({id(one) for one in learned}),
        base_rate=rate,
        auc=auc(chance, outcome),
        auc_first=auc(made.chance[some & first], came[some & first]),
        auc_later=auc(made.chance[some & ~first], came[some & ~first]),
        brier=brier(chance, outcome) if len(outcome) else None,
        brier_base=None if rate is None else rate * (1.0 - rate),
        calibration_error=calibration_error(bins) if bins else None,
        calibration=bins,
        windows=tuple(_windows(ends, made.chance, came, some, horizon_s)),
        trees=learned[-1].trees if learned else None,
    )


def _windows(
    ends: Ends, chance: Floats, came: Booleans, some: Booleans, horizon_s: float
) -> Iterator[ForeseenWindow]:
    """Stretches of whole refits, as many in each."""
    made = ends.predicted(horizon_s)
    refit = (ends.traffic.arrival_s // ends.refit_s).astype(np.int64)
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
        yield ForeseenWindow(
            start_s=begin * ends.refit_s,
            end_s=(begin + step) * ends.refit_s,
            requests=len(own),
            learned_from=fit.requests if fit else 0,
            base_rate=hits / len(own),
            predicted=float(chance[own].mean()),
            auc=auc(chance[own], came[own]) if enough else None,
            brier=brier(chance[own], came[own]),
        )

"""Variation of a trace from window to window and from day to day.

What varies little can be tuned on the past; what varies much has to be refitted, or left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvscope.characterize.distributions import quantiles
from kvscope.characterize.history import History, load_history
from kvscope.characterize.traffic import over_time
from kvscope.characterize.turns import next_turns_over_time
from kvscope.characterize.windows import DAY_S, Windows, day_windows, equal_windows
from kvscope.core.trace import Trace
from kvscope.store.db import Store

Quantity = Literal["ideal_hit_rate", "reuse_gap_p50_s", "reuse_gap_p80_s", "next_turn_probability"]


@dataclass(frozen=True, slots=True)
class Variation:
    """How much one quantity varies between windows that have a value for it.

    `variation` is the coefficient of variation, deviation / mean; None where the mean is 0.
    """

    quantity: Quantity
    category: str | None
    windows: int
    mean: float
    deviation: float
    variation: float | None


@dataclass(frozen=True, slots=True)
class Stability:
    """Variation between equal windows; between days where the trace spans several."""

    window_s: float
    between_windows: tuple[Variation, ...]
    between_days: tuple[Variation, ...]


WINDOWS = 10

Series = tuple[Quantity, str | None, Sequence[float | None]]


def stability(store: Store, trace: Trace, history: History | None = None) -> Stability:
    """Return mean, deviation and coefficient of variation between windows and between days.

    Of the token-weighted ideal hit rate, and by category of the p50 and p80 reuse gap (in the
    window of the reuse) and of the next-turn probability. Ten equal windows, of which the first,
    which starts with nothing to reuse, and the last, whose next turns are not seen, are left out;
    days are taken whole, where there are two or more. Windows without a value do not count, and
    with one value the deviation is 0. Few requests a window vary by chance alone.
    """
    history = history or load_history(store, trace)
    windows = equal_windows(trace, WINDOWS)
    days = day_windows(trace)
    inner = slice(1, windows.count - 1) if windows.count > 2 else slice(None)
    return Stability(
        window_s=windows.length_s,
        between_windows=_variations(store, trace, history, windows, inner),
        between_days=(
            _variations(store, trace, history, days, slice(None))
            if trace.span_s > DAY_S and days.count > 1
            else ()
        ),
    )


def _variations(
    store: Store, trace: Trace, history: History, windows: Windows, selection: slice
) -> tuple[Variation, ...]:
    series: tuple[Series, ...] = (
        (
            "ideal_hit_rate",
            None,
            [w.token_hit_rate for w in over_time(store, trace, windows).windows],
        ),
        *_gap_series(history, windows),
        *(
            ("next_turn_probability", category, values)
            for category, values in next_turns_over_time(store, trace, windows).items()
        ),
    )
    variations = (
        _variation(quantity, category, values[selection]) for quantity, category, values in series
    )
    return tuple(variation for variation in variations if variation is not None)


def _gap_series(history: History, windows: Windows) -> Iterable[Series]:
    groups = len(history.categories)
    window = windows.index(history.arrival_s[history.request])
    cell = history.category[history.prev] * windows.count + window
    at = quantiles(history.gap, cell, groups * windows.count, np.array([50, 80]))
    by_category = at.reshape(groups, windows.count, 2)
    for k, category in enumerate(history.categories):
        p50, p80 = ([_known(value) for value in by_category[k, :, q].tolist()] for q in (0, 1))
        yield "reuse_gap_p50_s", category, p50
        yield "reuse_gap_p80_s", category, p80


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _variation(
    quantity: Quantity, category: str | None, values: Sequence[float | None]
) -> Variation | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean, deviation = float(np.mean(known)), float(np.std(known))
    return Variation(
        quantity, category, len(known), mean, deviation, deviation / mean if mean else None
    )

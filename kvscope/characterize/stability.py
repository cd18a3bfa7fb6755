"""Variation of a trace from window to window and from day to day.

What varies little can be tuned on the past; what varies much has to be refitted, or left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import quantiles
from kvscope.characterize.history import History
from kvscope.characterize.traffic import over_time
from kvscope.characterize.turns import next_turns_over_time
from kvscope.characterize.windows import DAY_S, Windows, day_windows, equal_windows
from kvscope.core.arrays import Int64s
from kvscope.core.trace import Trace
from kvscope.store.db import Store

Quantity = Literal["ideal_hit_rate", "reuse_gap_p50_s", "reuse_gap_p80_s", "next_turn_probability"]


class Variation(Struct, frozen=True):
    """How much one quantity varies between windows that have a value for it.

    `variation` is the coefficient of variation, deviation / mean; None where the mean is 0.
    """

    quantity: Quantity
    category: str | None
    windows: int
    mean: float
    deviation: float
    variation: float | None


class Stability(Struct, frozen=True):
    """Variation between equal windows; between days where the trace spans several."""

    window_s: float
    between_windows: tuple[Variation, ...]
    between_days: tuple[Variation, ...]


WINDOWS = 10

Series = tuple[Quantity, str | None, Sequence[float | None]]


def stability(store: Store, trace: Trace, history: History) -> Stability:
    """Return mean, deviation and coefficient of variation between windows and between days.

    Of the token-weighted ideal hit rate, and by category of the p50 and p80 reuse gap (in the
    window of the reuse) and of the next-turn probability. Ten equal windows, of which the first,
    which starts with nothing to reuse, and the last, whose next turns are not seen, are left out;
    days are taken whole, where there are two or more. Windows without a value do not count, and
    with one value the deviation is 0. Few requests a window vary by chance alone.
    """
    windows, days = equal_windows(trace, WINDOWS), day_windows(trace)
    inner = slice(1, windows.count - 1) if windows.count > 2 else slice(None)
    several = trace.span_s > DAY_S and days.count > 1
    return Stability(
        window_s=windows.length_s,
        between_windows=tuple(_variations(store, trace, history, windows, inner)),
        between_days=(
            tuple(_variations(store, trace, history, days, slice(None))) if several else ()
        ),
    )


def _variations(
    store: Store, trace: Trace, history: History, windows: Windows, selection: slice
) -> Iterator[Variation]:
    for quantity, category, values in _series(store, trace, history, windows):
        known = [value for value in values[selection] if value is not None]
        if known:
            mean, deviation = float(np.mean(known)), float(np.std(known))
            variation = deviation / mean if mean else None
            yield Variation(quantity, category, len(known), mean, deviation, variation)


def _series(store: Store, trace: Trace, history: History, windows: Windows) -> Iterator[Series]:
    """Yield each quantity and category with its value by window."""
    rates = [window.token_hit_rate for window in over_time(store, trace, windows).windows]
    yield "ideal_hit_rate", None, rates
    groups = len(history.categories)
    category_of = history.category_of(history.prev)

    def cell(part: slice) -> Int64s:
        window = windows.index(history.arrival_s[history.request[part]])
        return category_of(part) * windows.count + window

    at = quantiles(history.gap, cell, groups * windows.count, np.array([50, 80]))
    for category, gaps in zip(history.categories, at.reshape(groups, -1, 2), strict=True):
        p50, p80 = ([None if math.isnan(gap) else gap for gap in row] for row in gaps.T.tolist())
        yield "reuse_gap_p50_s", category, p50
        yield "reuse_gap_p80_s", category, p80
    for category, values in next_turns_over_time(trace, windows, history).items():
        yield "next_turn_probability", category, values

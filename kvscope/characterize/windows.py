"""Time windows: how a trace's span is divided for facts over time."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.trace import Trace

DAY_S = 86_400.0
_MOST_DAYS = 3_653  # ten years: bounds the number of windows
_ROUND_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0),
    *(3_600.0, 7_200.0, 14_400.0, 21_600.0, 43_200.0, DAY_S),
)


class Windows(Struct, frozen=True):
    """`count` windows of `length_s` from the trace's start; the last takes what lies beyond."""

    length_s: float
    count: int

    @property
    def parameters(self) -> dict[str, float | int]:
        """Parameters of the queries over time."""
        return {"window_s": self.length_s, "last_window": self.count - 1}

    def start_s(self, index: int) -> float:
        """Return the start of window `index` in seconds."""
        return index * self.length_s

    def index(self, at_s: Float64s) -> Int64s:
        """Return the index of the window of each time."""
        return np.minimum(np.floor(at_s / self.length_s), self.count - 1).astype(np.int64)


def round_windows(trace: Trace, about: int = 60) -> Windows:
    """Return at most `about` windows of a round length: seconds, minutes, hours, days."""
    least_s = trace.span_s / about
    length = next(
        (length for length in _ROUND_S if length >= least_s), math.ceil(least_s / DAY_S) * DAY_S
    )
    return Windows(length, max(math.ceil(trace.span_s / length), 1))


def equal_windows(trace: Trace, count: int) -> Windows:
    """Return `count` windows of equal length; one window for a trace without a span."""
    if trace.span_s <= 0:
        return Windows(1.0, 1)
    return Windows(trace.span_s / count, count)


def day_windows(trace: Trace) -> Windows:
    """Return the trace's days; a last one of less than half a day belongs to the day before.

    A trace of more than ten years, whose clock must be wrong, has windows of several days.
    """
    length = max(math.ceil(trace.span_s / DAY_S / _MOST_DAYS), 1) * DAY_S
    return Windows(length, max(math.floor(trace.span_s / length + 0.5), 1))

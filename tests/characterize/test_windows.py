from __future__ import annotations

import numpy as np
import pytest

from kvscope.characterize.windows import Windows, day_windows, equal_windows, round_windows
from tests.characterize.tiny import tiny_store


@pytest.mark.parametrize(
    ("span_s", "expected"),
    [
        (0.0, Windows(1.0, 1)),
        (59.9, Windows(1.0, 60)),
        (3_600.0, Windows(60.0, 60)),
        (7_200.0, Windows(120.0, 60)),
        (7_201.0, Windows(300.0, 25)),
        (100 * 86_400.0, Windows(2 * 86_400.0, 50)),
    ],
)
def test_round_windows(span_s: float, expected: Windows) -> None:
    """At most sixty windows of a length that people read."""
    with tiny_store(span_s=span_s) as (_, trace):
        assert round_windows(trace) == expected


@pytest.mark.parametrize(("days", "expected"), [(0.2, 1), (1.4, 1), (1.9, 2), (2.4, 2), (7.0, 7)])
def test_day_windows(days: float, expected: int) -> None:
    """A rest of less than half a day belongs to the day before."""
    with tiny_store(span_s=days * 86_400) as (_, trace):
        assert day_windows(trace).count == expected


def test_arrays_and_queries_cut_alike() -> None:
    """A time on a boundary falls into the same window in numpy and in SQL."""
    with tiny_store() as (store, trace):
        windows = equal_windows(trace, 10)
        rows = store.rows("characterize/over_time", trace_id=trace.trace_id, **windows.parameters)
    arrivals = np.array([0.0, 10.0, 20.0, 40.0, 100.0])
    assert np.bincount(windows.index(arrivals)).tolist() == [row["requests"] for row in rows]
    assert [row["requests"] for row in rows] == [1, 1, 1, 0, 1, 0, 0, 0, 0, 1]

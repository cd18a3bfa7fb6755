"""The fewest replicas for an SLO, with an interval."""

from __future__ import annotations

import numpy as np

from kvscope.tuning.fewest import FleetSize, fleet_size
from kvscope.tuning.target import Target

TARGET = Target(slo_s=1.0, percentile=0.95)
FEW = np.arange(400, dtype=np.int32) // 4


def latencies(slow: int) -> np.ndarray:
    """Return 400 latencies of which so many break the SLO, all over the window."""
    times = np.full(400, 0.5)
    times[np.linspace(0, 399, slow).astype(int)] = 2.0
    return times


def test_clear_numbers_have_no_spread() -> None:
    tried = {1: latencies(400), 2: latencies(200), 3: latencies(0), 4: latencies(0)}
    size = fleet_size(tried, dict.fromkeys(tried, False), FEW, TARGET)
    assert size == FleetSize(3, 3, 3)


def test_a_close_number_has_both_neighbours_in_its_interval() -> None:
    """At 3 replicas 19 of 400 requests are late, and 20 may be: many resamples have more."""
    tried = {2: latencies(40), 3: latencies(19), 4: latencies(0)}
    size = fleet_size(tried, dict.fromkeys(tried, False), FEW, TARGET)
    assert size == FleetSize(3, 3, 4)


def test_a_fleet_that_fails_below_the_doubled_number_moves_the_number_up() -> None:
    """Four of eight replicas miss the SLO, so that three are luck; beyond four none matters."""
    late = {1: 400, 2: 400, 3: 0, 4: 400, 5: 0, 6: 0, 7: 400, 8: 0}
    tried = {count: latencies(slow) for count, slow in late.items()}
    size = fleet_size(tried, dict.fromkeys(tried, False), FEW, TARGET)
    assert size == FleetSize(8, 8, 8)
    tried[4] = tried[8]
    size = fleet_size(tried, dict.fromkeys(tried, False), FEW, TARGET)
    assert size == FleetSize(3, 3, 3)


def test_an_overloaded_fleet_never_meets_an_slo() -> None:
    tried = {1: latencies(0), 2: latencies(0)}
    assert fleet_size(tried, {1: True, 2: False}, FEW, TARGET) == FleetSize(2, 2, 2)
    assert fleet_size(tried, {1: True, 2: True}, FEW, TARGET) == FleetSize(None, None, None)

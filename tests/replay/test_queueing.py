"""Waiting in line: equal to a server that is stepped through request by request."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.core.errors import UsageError
from kvscope.replay.metrics import queued_ttft_s, waiting_s

REQUESTS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), max_size=30)


@given(REQUESTS, st.floats(0.1, 10))
def test_equals_a_server_stepped_by_hand(
    requests: list[tuple[float, float]], rate_scale: float
) -> None:
    """Each starts when it has come and the one before it is done."""
    arrivals = sorted(arrival for arrival, _ in requests)
    services = [service for _, service in requests]
    free_s, expected = 0.0, []
    for arrival, service in zip(arrivals, services, strict=True):
        came = arrival / rate_scale
        free_s = max(came, free_s) + service
        expected.append(free_s - came)
    found = queued_ttft_s(np.array(arrivals), np.array(services), rate_scale)
    assert found == pytest.approx(np.array(expected), abs=1e-9)
    assert (found >= np.array(services)).all()


def test_who_comes_to_an_idle_server_does_not_wait() -> None:
    """Exactly nothing, whatever rounding the sums of earlier services had."""
    arrival = np.arange(1_000) * 0.3
    service = np.full(1_000, 0.1)
    assert (waiting_s(arrival, service) == 0).all()
    assert (queued_ttft_s(arrival, service) == service).all()


def test_a_faster_trace_waits_longer() -> None:
    """At four times the rate the same server is overloaded, and the line grows to the end."""
    arrival = np.arange(100) * 0.3
    waits = waiting_s(arrival, np.full(100, 0.1), rate_scale=4)
    assert waits == pytest.approx(np.arange(100) * (0.1 - 0.3 / 4))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(scale: float) -> None:
    """Time neither stands still nor runs backwards."""
    with pytest.raises(UsageError, match="rate scale"):
        waiting_s(np.zeros(1), np.zeros(1), scale)

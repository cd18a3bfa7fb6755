"""Arrival order: merges conversations as they are born with the later turns of those alive."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from numpy.random import Generator

from kvscope.errors import UsageError
from kvscope.synth.base import Record

State = TypeVar("State")
Serve = Callable[[float, State], tuple[Record | None, Iterable[tuple[float, State]]]]
"""Answers an arrival: its record (None before the trace begins, and for what is not a request
itself), and the later arrivals (time in s, state) that follow from it."""

DAY_S = 86_400.0


def arrivals(
    rng: Generator, rate_per_s: float, *, start_s: float = 0.0, daily_swing: float = 0.0
) -> Iterator[float]:
    """Endless Poisson arrival times in s, from `start_s`, at a mean of `rate_per_s`.

    The rate follows a sine of period one day, `daily_swing` (0-1) above and below the mean;
    at time 0 it is at the mean, on its way up.
    """
    time_s = start_s
    peak_per_s = rate_per_s * (1 + daily_swing)
    while True:
        time_s += rng.exponential(1 / peak_per_s)
        rate_now = rate_per_s * (1 + daily_swing * math.sin(2 * math.pi * time_s / DAY_S))
        # Thinning: candidates at the peak rate, kept in proportion to the rate at their time.
        if daily_swing == 0 or rng.random() * peak_per_s < rate_now:
            yield time_s


def in_order(
    births: Iterator[tuple[float, State]], serve: Serve[State], requests: int
) -> Iterator[Record]:
    """The first `requests` records of all conversations, by time.

    `births` are first arrivals in order of time; `serve` is called once an arrival, in order.
    Raises UsageError, at the first record, if `requests` is negative.
    """
    if requests < 0:
        raise UsageError(f"requests {requests} is negative", remedy="ask for 0 or more")
    waiting: list[tuple[float, int, State]] = []
    order = 0
    birth = next(births, None)
    while requests:
        if birth is not None and (not waiting or birth[0] <= waiting[0][0]):
            time_s, state = birth
            birth = next(births, None)
        elif waiting:
            time_s, _order, state = heapq.heappop(waiting)
        else:
            return
        record, later = serve(time_s, state)
        if record is not None:
            requests -= 1
            yield record
        for next_s, next_state in later:
            # The running number breaks ties in time, so that states are never compared.
            heapq.heappush(waiting, (next_s, order, next_state))
            order += 1

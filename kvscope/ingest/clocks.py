"""Sessions that are timed by a clock of their own: which those are, and when they may begin.

Such a trace says when each request comes within its session, not when the sessions begin, and so
not how many are open at a time. It is recognized by one of three signs: its format says so, its
sessions begin with a request without a time, or all of them begin at one instant.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s

_STARTS = (0.5, 0, 1), (1, 0, 1), (1, 0, 2), (2, 4, 1), (4, 16, 1)
"""Times the trace's rate, at least so many starts within a typical session, and the seed. Much
rarer starts would take long: learners are refitted by time."""


class SessionStarts(Struct, frozen=True):
    """A Poisson process by which sessions without a common clock begin.

    `open_sessions`: how many are open when a request arrives, its own included, on average.
    """

    sessions_per_s: float
    seed: int
    open_sessions: float


def other_starts(arrival_s: Float64s, clock: Int32s) -> Iterator[SessionStarts]:
    """Yield other starts of sessions without a common clock, from rarer to denser ones.

    `clock` numbers the sessions from 0, -1 for a request on the trace's own. None where fewer than
    two sessions have a clock, and where they are of one request each.
    """
    if clock.max() < 1:
        return
    begin_s, end_s = session_span(arrival_s[clock >= 0], clock[clock >= 0])
    span_s, typical_s = float(end_s.max() - begin_s.min()), float(np.median(end_s - begin_s))
    if not typical_s:
        return
    for times, least, seed in _STARTS:
        rate = max(times * len(begin_s) / span_s, least / typical_s)
        yield SessionStarts(rate, seed, open_sessions(placed(arrival_s, clock, rate, seed), clock))


def begin_together(arrival_s: Float64s, session: Int32s) -> bool:
    """Return whether all requests belong to several sessions that begin at one instant.

    `session` numbers the sessions from 0, -1 for a request without one. On a common clock the
    sessions of a trace that lasts do not all begin at once.
    """
    if (session < 0).any() or arrival_s.min() == arrival_s.max():
        return False
    begin_s, _ = session_span(arrival_s, session)
    return len(begin_s) > 1 and bool((begin_s == begin_s[0]).all())


def placed(arrival_s: Float64s, clock: Int32s, sessions_per_s: float, seed: int) -> Float64s:
    """Return the arrivals (s) with sessions that begin as a Poisson process, the first one first.

    `clock` numbers the sessions from 0 in the order in which they are to begin; requests with -1
    stay where they are.
    """
    own = clock >= 0
    begin_s, _ = session_span(arrival_s[own], clock[own])
    gaps_s = np.random.default_rng(seed).exponential(1 / sessions_per_s, len(begin_s) - 1)
    moved_s = np.concatenate([[0.0], np.cumsum(gaps_s)]) + arrival_s.min() - begin_s
    times_s = arrival_s.copy()
    times_s[own] += moved_s[clock[own]]
    return times_s


def session_span(arrival_s: Float64s, session: Int32s) -> tuple[Float64s, Float64s]:
    """Return the first and the last arrival (s) of each session, numbered from 0."""
    begin_s, end_s = np.full((2, session.max() + 1), np.inf)
    np.minimum.at(begin_s, session, arrival_s)
    np.minimum.at(end_s, session, -arrival_s)
    return begin_s, -end_s


def open_sessions(arrival_s: Float64s, clock: Int32s) -> float:
    """Return the mean number of sessions open when a request arrives, its own included."""
    at_s = arrival_s[clock >= 0]
    begin_s, end_s = (np.sort(times_s) for times_s in session_span(at_s, clock[clock >= 0]))
    begun = np.searchsorted(begin_s, at_s, side="right")
    ended = np.searchsorted(end_s, at_s, side="left")
    return float((begun - ended).mean())

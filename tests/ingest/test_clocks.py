"""Sessions without a common clock: how they are recognized, and when they begin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.ingest.clocks import SessionStarts, open_sessions
from kvscope.ingest.formats.base import ReadOptions, Request
from kvscope.replay.derived_traces import begun
from tests import small_traces

SIZE = 16
UNPLACED = "sessions have no common clock: as placed, "


def request(at_s: float | None, session: str | None, **fields: Any) -> Request:
    """Return a request of two blocks that a session shares."""
    first = 0 if session is None else ord(session[0]) * 100
    ids = [first, first + int(at_s or 0)]
    return Request(
        input_tokens=32, output_tokens=1, arrival_s=at_s, session_id=session, hash_ids=ids, **fields
    )


def clocks(trace: Sequence[Request], options: ReadOptions | None = None) -> tuple[list[int], str]:
    """Return each request's clock, in order of arrival, and the note on sessions."""
    made = small_traces.built(trace, SIZE, options)
    notes = [note for note in made.notes if note.startswith("sessions ")]
    return made.requests["clock"].tolist(), "".join(notes)


def test_a_format_says_that_sessions_have_clocks_of_their_own() -> None:
    """Conversations of one session share its clock; without such words the trace has one."""
    trace = [
        request(0.0, "a", clock="x"),
        request(1.0, "b", clock="x"),
        request(2.0, "c", clock="y"),
    ]
    assert clocks(trace) == ([0, 0, 1], UNPLACED + "1 are open at a time")
    assert clocks([request(0.0, "a"), request(1.0, "a"), request(2.0, "b")]) == ([-1] * 3, "")
    assert clocks(trace[:2]) == ([0, 0], "")  # a single session


def test_a_session_whose_first_request_has_no_time_begins_at_none() -> None:
    """Delays say when its later requests come, and the line before says nothing of it."""
    trace = [
        request(None, "a"),
        request(None, "a", delay_s=4.0),
        request(None, "b"),
        request(None, "b", delay_s=2.0),
        request(9.0, "c"),
        request(None, "c", delay_s=1.0),
        request(11.0, None),
    ]
    assert clocks(trace) == ([0, 0, 1, 1, -1, -1, -1], UNPLACED + "1.5 are open at a time")


def test_sessions_that_all_begin_at_once_are_timed_each_from_its_start() -> None:
    """One that begins later, or a request outside of all sessions, shows a common clock."""
    together = [request(at, name) for name in "abc" for at in (5.0, 5.0 + ord(name))]
    assert clocks(together) == ([0, 1, 2, 0, 1, 2], UNPLACED + "2.5 are open at a time")
    assert clocks([*together, request(6.0, "d")])[1] == ""
    assert clocks([*together, request(6.0, None)])[1] == ""
    assert clocks([request(5.0, name) for name in "abc"])[1] == ""  # a batch lasts no time


def sessions(count: int, *, clock: bool = True) -> list[Request]:
    """Return sessions of three requests a second apart, placed back to back."""
    return [
        request(
            float(2 * number + turn), f"{chr(100 + number)}", clock=str(number) if clock else None
        )
        for number in range(count)
        for turn in range(3)
    ]


def test_stated_arrivals_are_a_seeded_poisson_process() -> None:
    """Gaps between starts average 1 / rate, the seed alone decides them, and turns stay apart.

    Then the clock is common.
    """
    options = ReadOptions(session_arrivals=4.0, seed=1)
    trace = sessions(2000)
    own, note = clocks(trace, options)
    assert set(own) == {-1}
    assert note == "sessions were placed as a Poisson process of 4 sessions/s (seed 1)"

    def starts(options: ReadOptions) -> list[float]:
        made = small_traces.built(trace, SIZE, options).requests
        at_s, parent = made["arrival_s"], made["parent"]
        assert at_s[parent >= 0] == pytest.approx(at_s[parent[parent >= 0]] + 1.0)
        found: list[float] = at_s[parent < 0].tolist()
        return found

    first = starts(options)
    assert first == starts(options)
    assert first != starts(replace(options, seed=2))
    assert first == sorted(first)
    assert math.isclose(first[-1] / 1999, 0.25, rel_tol=0.1)  # 4.5 standard errors


def test_the_rate_of_sessions_must_be_positive() -> None:
    """A rate that cannot be is refused before anything is read."""
    for rate in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="--session-arrivals"):
            ReadOptions(session_arrivals=rate)


def test_other_starts_make_the_trace_that_would_have_been_read() -> None:
    """A trace whose sessions begin otherwise equals one that was read with these arrivals."""
    trace = [
        *sessions(20),
        *(request(at, "z", clock="19", turn=9) for at in (39.5, 43.0)),  # another of its agents
        request(3.5, None),
    ]
    options = ReadOptions(session_arrivals=1.5, seed=3)
    read = small_traces.prompts(small_traces.built(trace, SIZE, options))
    made = begun(small_traces.prompts(small_traces.built(trace, SIZE)), SessionStarts(1.5, 3, 0.0))
    assert not np.array_equal(made.parent, np.sort(made.parent))
    for name in made.__struct_fields__:
        if name != "clock":
            assert np.array_equal(getattr(made, name), getattr(read, name)), name
    assert np.count_nonzero(made.clock < 0) == 1


def test_open_sessions_are_counted_where_requests_arrive() -> None:
    """Back to back one is open, but for the instant of a change; begun at once all are."""
    at_s, clock = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0, 0, 1, 1], dtype=np.int32)
    assert open_sessions(at_s, clock) == 1.0
    assert open_sessions(np.array([0.0, 2.0, 0.0, 1.0]), clock) == 7 / 4

"""Clocks of sessions, and what rows of sessions mean."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.core.errors import InputError, UsageError
from kvscope.core.trace import Trace
from kvscope.ingest import columns
from kvscope.ingest.clocks import SessionStarts, open_sessions
from kvscope.ingest.formats.base import ReadOptions, Request, Turns
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.replay.derived_traces import begun
from kvscope.store.db import MEMORY, open_store
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


BLOCK = 4
_Row = dict[str, Any]


def stored(folder: Path, rows: list[_Row], turns: Turns | None = None) -> tuple[Trace, list[_Row]]:
    """Return the trace of these rows and what the store has of its requests."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_store(MEMORY) as store:
        ingested = ingest(store, str(path), IngestOptions(read=ReadOptions(BLOCK, turns=turns)))
        found = store.connection.execute("SELECT * FROM requests ORDER BY request")
        names = [each[0] for each in found.description]
        return ingested.trace, [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def row(session: str, tokens: int, ids: list[int], **others: Any) -> _Row:
    return {
        "session_id": session, "input_length": tokens, "output_length": 2, "hash_ids": ids
    } | others  # fmt: skip


WHOLE = [
    row("a", 8, [1, 2], timestamp=0),
    row("b", 8, [1, 3], timestamp=100),
    row("a", 16, [1, 2, 4, 5], timestamp=2000),
    row("b", 14, [1, 3, 6, 7], timestamp=3000),
    row("a", 22, [1, 2, 4, 5, 8, 9], timestamp=5000),
]
"""Two sessions whose rows are whole prompts, in order of time; the fourth is not full."""

DELTA = [
    row("a", 8, [1, 2], timestamp=0),
    row("b", 8, [1, 3], timestamp=100),
    row("a", 7, [4, 5], delay=2000),
    row("b", 6, [6, 7], delay=2900),
    row("a", 6, [8, 9], delay=3000),
]
"""The same with only what is new in each row."""


def test_rows_of_new_tokens_are_completed_by_the_rows_before_them(tmp_path: Path) -> None:
    """Lengths are whole blocks, times follow from delays; the note says both ways to read it."""
    trace, requests = stored(tmp_path, DELTA)
    assert [each["input_tokens"] for each in requests] == [8, 8, 16, 16, 24]
    assert [each["blocks"] for each in requests] == [2, 2, 4, 4, 6]
    assert [each["arrival_s"] for each in requests] == pytest.approx([0, 0.1, 2.04, 3.04, 5.08])
    assert trace.distinct_blocks == 9
    (note,) = [note for note in trace.notes if "only what is new" in note]
    assert "3 prompts are completed" in note
    assert "--turns whole" in note
    assert "3 of 5 requests have no arrival time, 3 of them a delay" in trace.notes
    assert [note for note in trace.notes if "20 ms per output token" in note]


def test_delays_count_from_the_end_of_the_answer_before(tmp_path: Path) -> None:
    """A stated duration is taken as it is."""
    trace, requests = stored(
        tmp_path, [row("a", 8, [1, 2], timestamp=0, duration_ms=700), DELTA[2]]
    )
    assert [each["arrival_s"] for each in requests] == [0, 2.7]
    assert not [note for note in trace.notes if "per output token" in note]


def test_whole_prompts_of_sessions_stay_what_they_are(tmp_path: Path) -> None:
    trace, requests = stored(tmp_path, WHOLE)
    assert [each["input_tokens"] for each in requests] == [8, 8, 16, 14, 22]
    assert trace.distinct_blocks == 9
    assert not [note for note in trace.notes if "session" in note]


def test_what_rows_hold_can_be_stated_and_is_another_trace(tmp_path: Path) -> None:
    """Stated `whole`, rows of new tokens are prompts by themselves: other blocks."""
    whole, requests = stored(tmp_path, DELTA, "whole")
    assert [each["input_tokens"] for each in requests] == [8, 8, 7, 6, 6]
    delta, _ = stored(tmp_path, DELTA, "delta")
    assert delta.content_hash != whole.content_hash
    with pytest.raises(InputError, match="3 of 3 follow-up rows repeat blocks of their session"):
        stored(tmp_path, WHOLE, "delta")


def test_histories_that_are_rewritten_at_their_front_are_whole_prompts(tmp_path: Path) -> None:
    """A clock in the system prompt: no row repeats a block, but each is longer than before."""
    rows = [row("a", 8 * turn, [100 * turn + k for k in range(2 * turn)]) for turn in range(1, 9)]
    _, requests = stored(tmp_path, rows)
    assert [each["input_tokens"] for each in requests] == [8 * turn for turn in range(1, 9)]


def test_rows_that_contradict_both_readings_are_refused(tmp_path: Path) -> None:
    """One of twenty-five repeats its session's blocks, the others are new and short."""
    rows = [row("a", 40, [*range(10)])]
    rows += [row("a", 8, [100 + 2 * k, 101 + 2 * k]) for k in range(24)]
    rows += [row("a", 40, [*range(10)])]
    with pytest.raises(InputError, match="neither whole prompts nor only what is new") as caught:
        stored(tmp_path, rows)
    assert "--turns" in caught.value.remedy
    _, requests = stored(tmp_path, rows, "whole")
    assert len(requests) == 26


def test_too_few_follow_up_rows_decide_nothing(tmp_path: Path) -> None:
    _, requests = stored(tmp_path, DELTA[:4])
    assert [each["input_tokens"] for each in requests] == [8, 8, 7, 6]


@pytest.mark.parametrize("first", [946_684_800, 1_700_000_000, 4_102_444_000])
def test_seconds_since_1970_are_not_milliseconds(tmp_path: Path, first: int) -> None:
    rows = [
        {"timestamp": first + k, "input_length": 4, "output_length": 1, "hash_ids": [k]}
        for k in range(3)
    ]
    trace, requests = stored(tmp_path, rows)
    assert [each["arrival_s"] for each in requests] == [0.0, 1.0, 2.0]
    assert [note for note in trace.notes if note.startswith("times are in seconds since 1970")]


@pytest.mark.parametrize("first", [0, 900_000_000, 1_700_000_000_000])
def test_milliseconds_stay_milliseconds(tmp_path: Path, first: int) -> None:
    rows = [
        {"timestamp": first + 1000 * k, "input_length": 4, "output_length": 1, "hash_ids": [k]}
        for k in range(3)
    ]
    trace, requests = stored(tmp_path, rows)
    assert [each["arrival_s"] for each in requests] == [0.0, 1.0, 2.0]
    assert not [note for note in trace.notes if "1970" in note]


def test_a_chat_id_that_comes_again_with_turns_is_a_conversation(tmp_path: Path) -> None:
    """Times are read from `timestamp_ms` too."""
    rows = [
        {
            "request_id": f"r{at}", "timestamp_ms": 1_710_000_000_000 + 500 * at, "input_length": 4,
            "output_length": 1, "chat_id": f"c{at % 2}", "turn": 1 + at // 2,
            "hash_ids": [f"b{at}"],
        }
        for at in range(6)
    ]  # fmt: skip
    trace, requests = stored(tmp_path, rows)
    assert (trace.lineage, trace.span_s) == ("given", 2.5)
    assert [each["conversation"] for each in requests] == [0, 1, 0, 1, 0, 1]
    assert [each["turn"] for each in requests] == [1, 1, 2, 2, 3, 3]


def test_fields_of_times_sessions_lengths_and_hashes_that_are_not_read_are_named(
    tmp_path: Path,
) -> None:
    rows = [
        {
            "timestamp": 1, "input_length": 4, "output_length": 1, "hash_ids": [1],
            "arrived_at_us": 5, "thread": "t", "colour": "red", "prefix_hashes": [], "conv": 3,
        }
    ]  # fmt: skip
    trace, _ = stored(tmp_path, rows)
    assert "fields not read: arrived_at_us, conv, prefix_hashes, thread" in trace.notes


def test_types_beyond_those_told_apart_are_pooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order of the lines; fewer types keep their names, and nothing is said."""
    row = {"timestamp": 1, "input_length": 4, "output_length": 1, "hash_ids": [1]}
    rows = [row | {"type": name} for name in ("a", "b", "c", "a", "d", "b")]
    assert not any("pooled" in note for note in stored(tmp_path, rows)[0].notes)
    monkeypatch.setattr(columns, "MOST_TYPES", 2)
    trace, requests = stored(tmp_path, rows)
    assert [each["type"] for each in requests] == [
        *("a", "b", "further types"),
        *("a", "further types", "b"),
    ]
    assert any("are pooled as `further types`" in note for note in trace.notes)

"""What a trace's fields mean, decided by what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.core.errors import InputError
from kvscope.core.trace import Trace
from kvscope.ingest.formats.base import ReadOptions, Turns
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.store.db import MEMORY, open_store

SIZE = 4
_Row = dict[str, Any]


def stored(folder: Path, rows: list[_Row], turns: Turns | None = None) -> tuple[Trace, list[_Row]]:
    """Return the trace of these rows and what the store has of its requests."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_store(MEMORY) as store:
        ingested = ingest(store, str(path), IngestOptions(read=ReadOptions(SIZE, turns=turns)))
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
            "arrived_at_us": 5, "thread": "t", "colour": "red", "prefix_hashes": [],
        }
    ]  # fmt: skip
    trace, _ = stored(tmp_path, rows)
    assert "fields not read: arrived_at_us, prefix_hashes, thread" in trace.notes

"""What the lengths format alone does: three tools' columns, exact times."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import Request

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_burstgpt_columns(read: Any) -> None:
    """Seconds, type, model, and the session where a newer file has it; failures have 0."""
    data = (
        b"Timestamp,Session ID,Elapsed time,Model,"
        b"Request tokens,Response tokens,Total tokens,Log Type\n"
        b"5,12,3.5,ChatGPT,472,18,490,Conversation log\n"
        b"45.25,,2,GPT-4,1087,0,1087,API log\n"
    )
    assert read(data).requests == [
        Request(
            input_tokens=472,
            output_tokens=18,
            arrival_s=5.0,
            session_id="12",
            type="Conversation log",
            model="ChatGPT",
        ),
        Request(input_tokens=1087, output_tokens=0, arrival_s=45.25, type="API log", model="GPT-4"),
    ]


def test_vidur_columns_with_and_without_arrivals(read: Any) -> None:
    """Vidur's traces tell arrivals, its data sets lengths alone."""
    timed = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.125,1200,30\n"
    assert read(timed).requests == [Request(input_tokens=1200, output_tokens=30, arrival_s=0.125)]
    untimed = b",num_prefill_tokens,num_decode_tokens,pd_ratio\n0,1200,30,40.0\n"
    assert read(untimed).requests == [Request(input_tokens=1200, output_tokens=30)]


def test_a_further_header_names_the_columns_below_it(read: Any) -> None:
    """Files appended to each other may have their columns in another order, or others."""
    data = (
        AZURE + b"1,900,7\n" + AZURE + b"2,900,8\n"
        b"TIMESTAMP,GeneratedTokens,ContextTokens\n3,9,900\n"
        b"ContextTokens,GeneratedTokens,Model,TIMESTAMP\n900,10,m,4\n"
    )
    result = read(data)
    assert [(x.arrival_s, x.input_tokens, x.output_tokens, x.model) for x in result.requests] == [
        (1, 900, 7, None), (2, 900, 8, None), (3, 900, 9, None), (4, 900, 10, "m"),
    ]  # fmt: skip
    note = "columns change within the trace: each header names those below it"
    assert result.reader.notes == [note]
    assert not result.rejects.count
    assert read(AZURE + b"1,900,7\n" + AZURE).reader.notes == []


def test_column_names_ignore_case_and_quotes(read: Any) -> None:
    """Headers as other tools export them are the same headers."""
    data = b'"timestamp", "CONTEXTTOKENS","generatedTokens"\n"1.5","7", 8\n'
    assert read(data).requests == [Request(input_tokens=7, output_tokens=8, arrival_s=1.5)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2023-11-17 00:00:00", 20_700.0),
        ("2023-11-16T18:15:00.0000001", 1e-7),
        ("2023-11-16T18:15:01Z", 1.0),
        ("2023-11-16 20:15:01+02:00", 1.0),
        ("2023-11-16 12:45:01.5-0530", 1.5),
        ("2023-11-16 19:15:00.123456789+01", 0.123456789),
        ("2023-11-16 18:14:59.9999999", -1e-7),
        ("2024-02-29 18:15:00.0000001", 105 * 86_400 + 1e-7),
    ],
)
def test_times_count_from_the_first(read: Any, text: str, seconds: float) -> None:
    """Dates with up to nine digits of seconds, with or without an offset, are exact."""
    data = AZURE + b"2023-11-16 18:15:00,1,1\n" + text.encode() + b",1,1\n"
    assert [request.arrival_s for request in read(data).requests] == [0.0, seconds]


TICKS_PER_S = 10**7
TICKS = st.integers(0, 7_000_000_000 * TICKS_PER_S - 1)  # 100 ns each, from 1970 to 2191


@settings(max_examples=100, deadline=None)
@given(st.lists(TICKS, min_size=1, max_size=5))
def test_times_are_the_nearest_double(read: Any, times: list[int]) -> None:
    """Each time is the double nearest to the exact difference from the first."""
    lines = [
        f"{dt.datetime.fromtimestamp(ticks // TICKS_PER_S, tz=dt.UTC):%Y-%m-%d %H:%M:%S}"
        f".{ticks % TICKS_PER_S:07},1,1\n"
        for ticks in times
    ]
    got = [request.arrival_s for request in read(AZURE + "".join(lines).encode()).requests]
    assert got == [float(Fraction(ticks - times[0], TICKS_PER_S)) for ticks in times]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2023-11-16 18:15:46", "columns unlike the header's: expected 3, got 1"),
        ("1.5,7,8,9", "columns unlike the header's: expected 3, got 4"),
        ("1.5,,8", "expected a whole number in ContextTokens: ''"),
        ("1.5,7,1_0", "expected a whole number in GeneratedTokens: '1_0'"),
        (
            "1.5,7," + "9" * 99,
            f"expected a whole number in GeneratedTokens: '{'9' * 12}...{'9' * 13}'",
        ),
        ("yesterday,7,8", "expected a date and time, or seconds: 'yesterday'"),
        ("nan,7,8", "expected a date and time, or seconds: 'nan'"),
        ("2023-11-16 24:00:00,7,8", "expected a date and time, or seconds: '2023-11-16 24:00:00'"),
        ("2023-02-29 18:15:46,7,8", "expected a date and time, or seconds: '2023-02-29 18:15:46'"),
        ('1.5,"7,8', "CSV is malformed: unexpected end of data"),
    ],
)
def test_reasons_name_the_column_and_the_value(read: Any, row: str, reason: str) -> None:
    """A reason is enough to find the defect."""
    assert read(AZURE + row.encode() + b"\n").rejects.lines == [(2, reason)]


def test_seconds_and_dates_do_not_mix(read: Any) -> None:
    """The first time decides; the other kind has no common zero with it."""
    result = read(AZURE + b"1.5,7,8\n2023-11-16 18:15:46,7,8\n2.5,7,8\n")
    reason = "time is not seconds, as before: '2023-11-16 18:15:46'"
    assert result.rejects.lines == [(3, reason)]
    assert [request.arrival_s for request in result.requests] == [1.5, 2.5]


def test_the_header_is_mandatory(read: Any) -> None:
    """Without names no column means anything; the error says which are known."""
    for header in (b"1.5,7,8\n", b"a,b,c\n", b'"\n', b"\xff\n", b"timestamp,contexttokens\n"):
        with pytest.raises(InputError, match="the first line must name the columns") as caught:
            read(header + b"1.5,7,8\n", "lengths")
        assert str(caught.value).startswith(f"{read.path}: ")


def test_a_header_alone_is_an_empty_trace(read: Any) -> None:
    """No rows, no requests, no rejects."""
    result = read(AZURE)
    assert (result.requests, result.rejects.count) == ([], 0)

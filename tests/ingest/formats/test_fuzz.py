"""Damaged traces: a reader may refuse lines or the trace, but never fails and never miscounts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError
from kvscope.ingest.formats import registry

TEXT = [known.name for known in registry.FORMATS if known.name != "parquet"]  # by lines
TELLING = [
    b'"',
    b",",
    b"\n",
    b"\r",
    b"{",
    b"]",
    b"-",
    b"1e999",
    b"\\ud800",
    b"\xff",
    b"null",
    b"\x00",
]

POSITION = st.floats(0, 1, exclude_max=True)
EDIT = st.one_of(
    st.tuples(st.just("flip"), POSITION, st.integers(0, 7)),
    st.tuples(st.just("delete"), POSITION, st.integers(1, 30)),
    st.tuples(st.just("duplicate"), POSITION, st.integers(1, 60)),
    st.tuples(st.just("truncate"), POSITION, st.just(0)),
    st.tuples(st.just("splice"), POSITION, st.binary(max_size=6) | st.sampled_from(TELLING)),
)


def damaged(data: bytes, edits: list[tuple[str, float, Any]]) -> bytes:
    """Return `data` after these edits, each at a position relative to its length."""
    for kind, position, detail in edits:
        at = int(position * len(data))
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ 1 << detail]) + data[at + 1 :]
        elif kind == "delete":
            data = data[:at] + data[at + detail :]
        elif kind == "duplicate":
            data = data[: at + detail] + data[at:]
        elif kind == "truncate":
            data = data[:at]
        elif kind == "splice":
            data = data[:at] + detail + data[at:]
    return data


def records_in(data: bytes) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


def strings_of(result: Any) -> list[str]:
    """Every string that the requests carry."""
    return [
        value
        for request in result.requests
        for field in request.__struct_fields__
        for value in (
            getattr(request, field)
            if isinstance(getattr(request, field), list)
            else [getattr(request, field)]
        )
        if isinstance(value, str)
    ]


def check(read: Any, data: bytes, sample: Any) -> None:
    """Read `data`; every line is a record, a reject or cut, and what is read can be stored."""
    try:
        result = read(data, sample.format)
    except InputError:
        return
    rejected = result.rejects.count
    cut = bool(result.reader.cut)  # the last line
    lines = len(result.records) + rejected + cut
    if sample.skips:
        assert lines <= records_in(data)
    else:
        assert lines == max(records_in(data) - sample.headers, 0)
    assert len(result.rejects.lines) == rejected
    for text in strings_of(result) + [reason for _, reason in result.rejects.lines]:
        assert len(text.encode()) < 400


@pytest.mark.parametrize("name", TEXT)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_lines_are_read_or_rejected(
    name: str, samples: Any, read: Any, data: st.DataObject
) -> None:
    """Whatever happens to a trace's bytes, each line is accepted, rejected or cut, once."""
    edits = data.draw(st.lists(EDIT, min_size=1, max_size=4))
    check(read, damaged(samples[name].data, edits), samples[name])


@pytest.mark.parametrize("name", TEXT)
@settings(max_examples=50, deadline=None)
@given(noise=st.binary(max_size=200))
@example(noise=b"\xef\xbb\xbf")
@example(noise=b'"\n"\n""')
def test_noise_is_rejected(name: str, samples: Any, read: Any, noise: bytes) -> None:
    """Bytes that are no trace at all are rejected line by line."""
    check(read, noise, samples[name])


@pytest.mark.parametrize("name", TEXT)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_damage_never_fails_detection(name: str, samples: Any, data: st.DataObject) -> None:
    """A damaged beginning is recognized or not; no format fails on it."""
    edits = data.draw(st.lists(EDIT, min_size=1, max_size=4))
    head = damaged(samples[name].data, edits)
    assert {known.recognizes(head) for known in registry.FORMATS} <= {True, False}


@settings(max_examples=30, deadline=None)
@given(edits=st.lists(EDIT, min_size=1, max_size=3))
def test_a_damaged_parquet_file_is_refused_or_read(
    samples: Any, read: Any, edits: list[tuple[str, float, Any]]
) -> None:
    """A damaged Parquet file ends in InputError, or its rows are read or rejected."""
    try:
        result = read(damaged(samples["parquet"].data, edits), "parquet")
    except InputError:
        return
    assert len(result.records) + result.rejects.count == result.last


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("opening", [b"[", b'{"requests":[', b'{"chat_id":'])
def test_endless_nesting_is_rejected(name: str, samples: Any, read: Any, opening: bytes) -> None:
    """A line of nothing but opening brackets is rejected, not recursed into."""
    check(read, opening * 20_000, samples[name])
    assert {known.recognizes(opening * 5_000) for known in registry.FORMATS} <= {True, False}

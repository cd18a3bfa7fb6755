"""Clocks that are wrong: refused, or analyzed to the end, never a failure in between."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.report.overview import headline, sections
from kvscope.store.db import Store
from kvscope.usecases.analyze import analyze

EXTREMES = [0, -1, 1e-300, 2.5, 1e9, 1.7e12, 1e15, -1e15, 1e16, 1.7e18, 1e300, 1.7e308, -1e308]
TIMES = st.sampled_from(EXTREMES) | st.floats(allow_nan=False, allow_infinity=False)


def analyzed(store: Store, path: Path) -> tuple[int, int]:
    """Return how many lines were stored and refused; put an analysis of what is into words."""
    trace = ingest(store, str(path), IngestOptions(max_bad=1.0)).trace
    analysis = analyze(store, trace)
    assert [headline(analysis), *sections(analysis)]
    return trace.requests, trace.bad_lines


def rows(told: list[dict[str, float]]) -> list[dict[str, object]]:
    """Mooncake rows of one session, with these fields each."""
    prompt = {"input_length": 1024, "output_length": 1, "session_id": "s"}
    return [prompt | {"hash_ids": [1, at // 2]} | row for at, row in enumerate(told)]


def written(path: Path, told: list[dict[str, float]]) -> Path:
    """Return a trace with these rows."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(told)))
    return path


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        ([{"timestamp": 0}, {"timestamp": 1.7e18}], 1),
        ([{"timestamp": 1e300}, {"timestamp": 5}], 1),
        ([{"delay": 1e308}, {"delay": 1e308}, {"delay": 1}], 1),
        ([{"delay": 6e14}, {"delay": 6e14}], 1),
        ([{"timestamp": 60_000_000}, {"delay": -50_000_000}], 1),
        ([{"timestamp": -1e15}, {"timestamp": 1e15}], 2),
    ],
)
def test_a_wrong_clock_is_refused_line_by_line(
    store: Store, tmp_path: Path, told: list[dict[str, float]], stored: int
) -> None:
    """Times beyond a trillion seconds and delays into the past are bad lines; the rest is told."""
    assert analyzed(store, written(tmp_path / "a.jsonl", told)) == (stored, len(told) - stored)


@pytest.mark.parametrize("delay_s", [float("inf"), float("nan"), -1.0, 1e13])
def test_delays_of_a_parquet_file_are_checked_too(
    store: Store, tmp_path: Path, delay_s: float
) -> None:
    """Parquet can hold infinity and NaN, which JSON cannot."""
    path = tmp_path / "a.parquet"
    pl.DataFrame(
        {"input_tokens": [5, 6], "output_tokens": [1, 2], "delay_s": [delay_s, 1.0]}
    ).write_parquet(path)
    assert analyzed(store, path) == (1, 1)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"timestamp": TIMES, "delay": TIMES}),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_a_clock_says_analysis_ends(
    store: Store, tmp_path: Path, told: list[dict[str, float]]
) -> None:
    """Each line is stored or refused, and the analysis of those stored has all its sections."""
    try:
        stored, refused = analyzed(store, written(tmp_path / "a.jsonl", told))
    except InputError:  # not one line is left
        return
    assert stored + refused == len(told)

"""Traffic over time, its windows and its stability."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.characterize.distributions import (
    Summary,
    Windows,
    day_windows,
    equal_windows,
    round_windows,
)
from kvscope.characterize.history import load_history, load_sizes
from kvscope.characterize.summary import stability
from kvscope.characterize.traffic import contribution, lengths, over_time, request_sizes
from tests.characterize.tiny import CHAT_1, CHAT_2, REQUESTS, SEARCH_1, lengths_only, tiny_store


def test_lengths() -> None:
    """Token quantiles are nearest-rank, and the pace of arrivals is that of the five requests."""
    with tiny_store() as (store, trace):
        found = lengths(trace, load_sizes(store, trace), load_history(store, trace))
    assert found.requests == 5
    assert found.input_tokens == Summary(mean=9.4, p50=9, p80=9, p90=17, p99=17, max=17)
    assert found.output_tokens == Summary(mean=3.8, p50=3, p80=4, p90=10, p99=10, max=10)
    assert found.arrival_rate_per_s == 5 / 100
    # Intervals 10, 10, 20, 60: mean 25, variance (225 + 225 + 25 + 1225) / 4.
    assert found.inter_arrival_cv == pytest.approx(425**0.5 / 25)
    assert found.single_turn_mean_tokens == (13 + 9 + 10 + 14) / 4
    assert found.multi_turn_mean_tokens == 20


def test_request_sizes() -> None:
    """A request's size is its input and output, rounded up to whole blocks."""
    with tiny_store() as (store, trace):
        everything, single, multi = request_sizes(load_sizes(store, trace))
    # Tokens 13, 20, 9, 10, 14; blocks of 4: 4, 5, 3, 3, 4.
    assert everything.turns == "all"
    assert everything.tokens == Summary(mean=13.2, p50=13, p80=14, p90=20, p99=20, max=20)
    assert everything.blocks == Summary(mean=3.8, p50=4, p80=4, p90=5, p99=5, max=5)
    assert (single.turns, single.requests) == ("single", 4)
    assert single.blocks == Summary(mean=3.5, p50=3, p80=4, p90=4, p99=4, max=4)
    assert (multi.turns, multi.requests, multi.tokens.mean) == ("multi", 1, 20)


def test_over_time() -> None:
    """Each window counts what arrives in it; the last one takes the arrival at the very end."""
    with tiny_store() as (store, trace):
        early, late = over_time(store, trace, Windows(50.0, 2)).windows
    assert (early.start_s, early.requests, early.input_tokens, early.output_tokens) == (0, 4, 43, 9)
    assert early.arrival_rate_per_s == 4 / 50
    assert early.token_hit_rate == 6 * 4 / 43
    assert early.block_hit_rate == 6 / 10
    assert (late.start_s, late.requests, late.token_hit_rate) == (50, 1, 0)


def test_over_time_shows_windows_without_requests() -> None:
    """A silent window is there, with rates that nobody can know."""
    with tiny_store() as (store, trace):
        found = over_time(store, trace, Windows(30.0, 4)).windows
    assert [window.requests for window in found] == [3, 1, 0, 1]
    assert (found[2].arrival_rate_per_s, found[2].token_hit_rate) == (0, None)


def test_contribution() -> None:
    """Six blocks hit: two by first chat turns, three by the later one, one by search."""
    with tiny_store() as (store, trace):
        found = contribution(store, trace)
    assert found.token_hit_rate == 6 * 4 / 47
    assert found.block_hit_rate == 6 / 11
    assert found.multi_turn_request_share == 1 / 5
    assert found.multi_turn_hit_share == 3 / 6
    assert [(row.type, row.multi_turn, row.requests, row.hit_blocks) for row in found.rows] == [
        ("chat", False, 2, 2),
        ("chat", True, 1, 3),
        ("search", False, 2, 1),
    ]
    assert found.rows[1].hit_tokens == 12
    assert [row.hit_share for row in found.rows] == [2 / 6, 3 / 6, 1 / 6]
    assert [row.request_share for row in found.rows] == [2 / 5, 1 / 5, 2 / 5]


def test_lengths_alone_tell_no_hit_rate() -> None:
    """Without hashes a hit rate is unknown, not 0."""
    with lengths_only() as (store, trace):
        found = contribution(store, trace)
        windows = over_time(store, trace).windows
    assert (found.token_hit_rate, found.block_hit_rate) == (None, None)
    assert {window.token_hit_rate for window in windows} == {None}
    assert found.rows[0].hit_share is None


@pytest.mark.parametrize(
    ("span_s", "expected"),
    [
        (0.0, Windows(1.0, 1)),
        (59.9, Windows(1.0, 60)),
        (3_600.0, Windows(60.0, 60)),
        (7_200.0, Windows(120.0, 60)),
        (7_201.0, Windows(300.0, 25)),
        (100 * 86_400.0, Windows(2 * 86_400.0, 50)),
    ],
)
def test_round_windows(span_s: float, expected: Windows) -> None:
    """At most sixty windows of a length that people read."""
    with tiny_store(span_s=span_s) as (_, trace):
        assert round_windows(trace) == expected


@pytest.mark.parametrize(("days", "expected"), [(0.2, 1), (1.4, 1), (1.9, 2), (2.4, 2), (7.0, 7)])
def test_day_windows(days: float, expected: int) -> None:
    """A rest of less than half a day belongs to the day before."""
    with tiny_store(span_s=days * 86_400) as (_, trace):
        assert day_windows(trace).count == expected


def test_arrays_and_queries_cut_alike() -> None:
    """A time on a boundary falls into the same window in numpy and in SQL."""
    with tiny_store() as (store, trace):
        windows = equal_windows(trace, 10)
        rows = store.rows("characterize/over_time", trace_id=trace.trace_id, **windows.parameters)
    arrivals = np.array([0.0, 10.0, 20.0, 40.0, 100.0])
    assert np.bincount(windows.index(arrivals)).tolist() == [row["requests"] for row in rows]
    assert [row["requests"] for row in rows] == [1, 1, 1, 0, 1, 0, 0, 0, 0, 1]


def test_between_windows() -> None:
    """Ten windows of 10 s, the first and the last left out: r1, r2 and r3 remain."""
    with tiny_store() as (store, trace):
        found = stability(store, trace, load_history(store, trace))
    assert found.window_s == 10
    assert found.between_days == ()
    of = {(row.quantity, row.category): row for row in found.between_windows}
    hits = of["ideal_hit_rate", None]
    rates = [12 / 17, 4 / 8, 8 / 9]
    mean = sum(rates) / 3
    deviation = (sum((rate - mean) ** 2 for rate in rates) / 3) ** 0.5
    assert hits.windows == 3
    assert (hits.mean, hits.deviation) == pytest.approx((mean, deviation))
    assert hits.variation == pytest.approx(deviation / mean)
    # chat 2's blocks are reused after 10 s by r2 and after 30 s by r3.
    gaps = of["reuse_gap_p50_s", CHAT_2]
    assert (gaps.windows, gaps.mean, gaps.deviation, gaps.variation) == (2, 20, 10, 0.5)
    # chat 1's after 10 s by r1; its reuse by r4 lies in the last window.
    assert (of["reuse_gap_p80_s", CHAT_1].windows, of["reuse_gap_p80_s", CHAT_1].mean) == (1, 10)
    followed = of["next_turn_probability", SEARCH_1]
    assert (followed.windows, followed.mean, followed.variation) == (1, 0, None)


def test_between_days() -> None:
    """Stretched to two days, r0 to r3 are the first and r4 the second."""
    stretch = 2 * 864.0
    requests = {**REQUESTS, "arrival_s": [at * stretch for at in REQUESTS["arrival_s"]]}
    with tiny_store(requests) as (store, trace):
        found = stability(store, trace, load_history(store, trace))
    of = {(row.quantity, row.category): row for row in found.between_days}
    hits = of["ideal_hit_rate", None]
    assert (hits.windows, hits.mean) == (2, pytest.approx((24 / 43 + 0) / 2))
    assert of["reuse_gap_p50_s", CHAT_1].windows == 2
    assert of["reuse_gap_p50_s", CHAT_1].mean == pytest.approx((10 + 60) / 2 * stretch)
    assert of["next_turn_probability", CHAT_1].mean == 1 / 2

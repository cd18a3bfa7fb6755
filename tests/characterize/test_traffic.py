from __future__ import annotations

import pytest

from kvscope.characterize.distributions import Summary
from kvscope.characterize.traffic import contribution, lengths, over_time, request_sizes
from kvscope.characterize.windows import Windows
from tests.characterize.tiny import lengths_only, tiny_store


def test_lengths() -> None:
    """Token quantiles are nearest-rank, and the pace of arrivals is that of the five requests."""
    with tiny_store() as (store, trace):
        found = lengths(store, trace)
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
        everything, single, multi = request_sizes(store, trace)
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

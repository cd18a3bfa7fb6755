"""Outcomes of a replay by hand, and the queue at one server."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from kvscope.characterize.distributions import Windows
from kvscope.core.hits import HitDefinition, standard
from kvscope.core.percentiles import percentiles
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.curve import lru_curve
from kvscope.replay.derived_traces import at_rate
from kvscope.replay.metrics import (
    ServedRequests,
    by_category,
    over_time,
    queued_ttft_s,
    serve,
    summarize,
    waiting_s,
)
from kvscope.replay.misses import lru_hit_blocks
from kvscope.replay.stack_distances import lru_distances
from tests import small_traces

PROFILE = LatencyProfile("made", "made", base_s=0.25, per_token_s=0.125)
DEFINITIONS = st.builds(
    HitDefinition,
    name=st.just("drawn"),
    warmup=st.sampled_from([0.0, 0.3, 0.5]),
    partial=st.booleans(),
    last_token_rule=st.booleans(),
    outputs=st.sampled_from(["carried", "ignored"]),
).filter(lambda one: not (one.partial and one.outputs == "carried"))


@settings(deadline=None, max_examples=100)
@given(st.data(), small_traces.SIZES, DEFINITIONS, st.integers(0, 20))
def test_rates_are_those_of_the_curve(
    data: st.DataObject, size: int, definition: HitDefinition, capacity: int
) -> None:
    """By token, block and request, at any capacity, after any warm-up: LRU's exact curve."""
    prompts = small_traces.prompts(small_traces.built(data.draw(small_traces.requests(size)), size))
    runs = lru_distances(prompts, definition)
    hits = lru_hit_blocks(runs, len(prompts.leaf), capacity)
    outcome = summarize(serve(prompts, definition, hits, PROFILE))
    for weight in ("token", "block", "request"):
        weighted = replace(definition, weight=weight)
        rate = float(lru_curve(prompts, weighted, runs).rate(capacity))
        assert getattr(outcome, f"{weight}_hit_rate") == pytest.approx(rate, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.data(), DEFINITIONS, st.sampled_from([0.5, 2.0, 40.0]))
def test_categories_and_windows_add_up(
    data: st.DataObject, definition: HitDefinition, length_s: float
) -> None:
    """Every counted request is in one category and in one window."""
    trace = data.draw(small_traces.requests(2, chats=True))
    prompts = small_traces.prompts(small_traces.built(trace, 2))
    hits = lru_hit_blocks(lru_distances(prompts, definition), len(trace), 5)
    served = serve(prompts, definition, hits, PROFILE)
    whole = summarize(served, slo_s=0.5)
    windows = Windows(length_s, max(round(prompts.arrival_s[-1] / length_s), 1))
    for parts in (by_category(served, 0.5), over_time(served, windows, 0.5)):
        outcomes = [part.outcome for part in parts]
        for name in ("requests", "hit_tokens", "total_tokens", "violations"):
            assert sum(getattr(one, name) for one in outcomes) == getattr(whole, name)
        assert sum(one.tel_ms or 0 for one in outcomes) == pytest.approx(whole.tel_ms)
        longest = max(one.ttft_ms.p99 for one in outcomes)
        assert longest >= whole.ttft_ms.p99


@pytest.fixture
def prompts() -> Prompts:
    """Three turns a second apart, 8, 18 and 26 tokens in blocks of 4, and another user's 8."""
    turns = [(0.0, 8), (1.0, 18), (1.0, 8), (2.0, 26)]
    return small_traces.prompts(
        small_traces.built(
            [
                Request(
                    arrival_s=at,
                    input_tokens=tokens,
                    output_tokens=2,
                    hash_ids=list(range(tokens // 4)),
                    chat_id=number,
                    parent_chat_id={1: 0, 3: 1}.get(number),
                )
                for number, (at, tokens) in enumerate(turns)
            ],
            4,
        )
    )


@pytest.fixture
def served(prompts: Prompts) -> ServedRequests:
    """They hit 0, 2, 1 and 4 blocks; u = 8, 10, 4, 10, TTFT 1.25, 1.5, 0.75 and 1.5 s."""
    return serve(prompts, standard(), np.array([0, 2, 1, 4], dtype=np.int32), PROFILE)


def test_latency_is_counted_by_hand(served: ServedRequests) -> None:
    """Nearest ranks of four values, the excess over 1.4 s, and the line at the server."""
    outcome = summarize(served, slo_s=1.4)
    assert outcome.hit_tokens == 28
    assert outcome.total_tokens == 60
    assert (outcome.uncached_tokens.p50, outcome.uncached_tokens.p90) == (8, 10)
    assert (outcome.ttft_ms.p50, outcome.ttft_ms.p99) == (1_250, 1_500)
    assert outcome.violations == 2
    assert outcome.tel_ms == pytest.approx(200)
    # Done at 1.25, 2.75, 3.5 and 5 s: 1.25, 1.75, 2.5 and 3 s after they came.
    assert served.queued_ttft_s == pytest.approx([1.25, 1.75, 2.5, 3.0])
    assert outcome.queued_violations == 3
    assert outcome.queued_tel_ms == pytest.approx(350 + 1_100 + 1_600)
    assert [one.category for one in by_category(served)] == ["unknown 1", "unknown 2", "unknown 3"]


def test_an_slo_that_is_just_met_is_no_violation(served: ServedRequests) -> None:
    """Above it, not at it; and without one nothing is said of it."""
    assert summarize(served, slo_s=1.5).violations == 0
    assert summarize(served, slo_s=1.25).violations == 2
    outcome = summarize(served)
    assert outcome.tel_ms is outcome.violations is outcome.queued_tel_ms is None


def test_a_faster_trace_and_slower_tiers_take_longer(prompts: Prompts) -> None:
    """Transfers add to the service, so that they add to the queue as well."""
    hits = np.array([0, 2, 1, 4], dtype=np.int32)
    transfer_s = np.array([0.0, 1.0, 0.0, 0.0])
    served = serve(at_rate(prompts, 2), standard(), hits, PROFILE, transfer_s=transfer_s)
    assert served.ttft_s == pytest.approx([1.25, 2.5, 0.75, 1.5])
    assert served.queued_ttft_s == pytest.approx([1.25, 3.25, 4.0, 5.0])


def test_a_trace_without_times_has_no_queue(prompts: Prompts) -> None:
    """All at once is what a trace says that says nothing."""
    untimed = replace(prompts, arrival_s=np.zeros(4))
    hits = np.zeros(4, dtype=np.int32)
    outcome = summarize(serve(untimed, standard(), hits, PROFILE), slo_s=1)
    assert outcome.queued_ttft_ms is outcome.queued_violations is None
    assert outcome.violations == 4


def test_percentiles_are_nearest_rank() -> None:
    """Of a hundred values p95 is the 95th, of one it is that one."""
    values = np.random.default_rng(0).permutation(np.arange(1, 101))
    assert astuple(percentiles(values)) == (50, 90, 95, 99)
    assert astuple(percentiles(np.array([7.5]))) == (7.5,) * 4
    assert percentiles(np.arange(1, 102)).p95 == 96


REQUESTS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), max_size=30)


@given(REQUESTS)
def test_equals_a_server_stepped_by_hand(requests: list[tuple[float, float]]) -> None:
    """Each starts when it has come and the one before it is done."""
    arrivals = sorted(arrival for arrival, _ in requests)
    services = [service for _, service in requests]
    free_s, expected = 0.0, []
    for arrival, service in zip(arrivals, services, strict=True):
        free_s = max(arrival, free_s) + service
        expected.append(free_s - arrival)
    found = queued_ttft_s(np.array(arrivals), np.array(services))
    assert found == pytest.approx(np.array(expected), abs=1e-9)
    assert (found >= np.array(services)).all()


def test_who_comes_to_an_idle_server_does_not_wait() -> None:
    """Exactly nothing, whatever rounding the sums of earlier services had."""
    arrival = np.arange(1_000) * 0.3
    service = np.full(1_000, 0.1)
    assert (waiting_s(arrival, service) == 0).all()
    assert (queued_ttft_s(arrival, service) == service).all()

"""What fleets gave: losses add up, references bound routers, and a growing queue is called one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.hits import standard
from kvscope.core.percentiles import percentiles
from kvscope.core.trace import Prompts
from kvscope.fleet.outcome import FleetOutcome, Slo, fleet_outcome, infinite_hit_blocks
from kvscope.fleet.replay import FleetReplay, asked, pooled_fleet, replay_fleet
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.replay.curve import lru_curve
from kvscope.replay.metrics import queued_ttft_s
from kvscope.replay.replay import replay
from kvscope.replay.settings import run_setting
from kvscope.replay.traffic import traffic
from kvscope.routers.balancers import RoundRobin
from kvscope.routers.references import BestCached
from tests.oracles.replay import paths
from tests.small_traces import SIZES, built, prompts, requests

PROFILE = LatencyProfile("made", "made", 0.25, 0.125, decode_base_s=0.25)
SLO = Slo(2.0)


def outcome(trace: Prompts, done: FleetReplay, slo: Slo = SLO, warmup: float = 0.0) -> FleetOutcome:
    """Return what a replay of the trace gave."""
    definition = standard(warmup=warmup)
    return fleet_outcome(
        trace, traffic(trace, definition), run_setting(definition, PROFILE), slo, done
    )


@st.composite
def traces(draw: st.DrawFn) -> Prompts:
    """Draw a trace."""
    size = draw(SIZES)
    return prompts(built(draw(requests(size)), size))


@settings(deadline=None, max_examples=60)
@given(
    traces(),
    st.integers(1, 4),
    st.integers(0, 12),
    st.sampled_from([RoundRobin, BestCached]),
    st.sampled_from([0.0, 0.3]),
)
def test_losses_add_up(
    trace: Prompts,
    replicas: int,
    capacity: int,
    kind: type[RoundRobin | BestCached],
    warmup: float,
) -> None:
    """Infinite = taken + not chosen + not held, no loss is negative, replicas sum to the fleet."""
    definition = standard(warmup=warmup)
    steps = traffic(trace, definition)
    done = replay_fleet(steps, asked(trace), PROFILE, Lru(), kind(), replicas, capacity)
    got = outcome(trace, done, warmup=warmup)
    assert got.not_held >= -1e-12
    assert got.not_chosen >= -1e-12
    assert got.taken + got.not_chosen + got.not_held == pytest.approx(got.infinite)
    assert got.infinite == pytest.approx(lru_curve(trace, definition).ideal)
    inputs = trace.input_tokens[int(len(trace.leaf) * warmup) :].sum()
    computed = sum(each.computed_tokens for each in got.replicas)
    assert computed == pytest.approx((1 - got.taken) * inputs)
    assert got.sent_tokens.sum() == pytest.approx(computed)
    assert got.imbalance.overall >= 1
    if kind is BestCached:
        assert got.not_chosen == pytest.approx(0)
    if replicas == 1:
        assert got.imbalance.overall == got.imbalance.p95 == 1


@settings(deadline=None, max_examples=60)
@given(traces(), st.randoms())
def test_an_infinite_cache_in_any_order(trace: Prompts, random: object) -> None:
    """Requests hit what any request before them left, whatever their order."""
    steps = traffic(trace, standard())
    order = list(range(len(trace.leaf)))
    random.shuffle(order)  # type: ignore[attr-defined]
    hits = infinite_hit_blocks(steps, np.array(order, dtype=np.int32))
    left: set[int] = set()
    for request, path in ((request, paths(steps)[request]) for request in order):
        look = path[: steps.look[request]]
        expected = next((at for at, block in enumerate(look) if block not in left), len(look))
        assert hits[request] == expected
        left.update(path)


@settings(deadline=None, max_examples=40)
@given(traces(), st.integers(0, 12))
def test_one_pooled_replica_is_one_cache_with_a_queue(trace: Prompts, capacity: int) -> None:
    """With one replica, pooling changes nothing; more only shorten the wait."""
    steps = traffic(trace, standard())
    hits = replay(steps, Lru(), capacity).hit_blocks
    one = pooled_fleet(steps, hits, PROFILE, 1)
    alone_s = one.token_s - one.begin_s
    assert one.ttft_s == pytest.approx(queued_ttft_s(trace.arrival_s, alone_s))
    two = pooled_fleet(steps, hits, PROFILE, 2)
    assert (two.ttft_s <= one.ttft_s + 1e-9).all()
    assert outcome(trace, two).latencies.tpot_ms is None


def steady(count: int, gap_s: float) -> Prompts:
    """Return requests of 16 tokens that share nothing: a prefill of 2.25 s each."""
    trace = [
        Request(input_tokens=16, output_tokens=5, arrival_s=number * gap_s, hash_ids=[number])
        for number in range(count)
    ]
    return prompts(built(trace, 16))


@pytest.mark.parametrize(("replicas", "overloaded"), [(2, True), (3, False)])
def test_a_growing_queue_has_no_percentiles(replicas: int, overloaded: bool) -> None:
    """One request a second, each of 2.25 s: two servers fall behind, three do not."""
    trace = steady(200, 1.0)
    steps = traffic(trace, standard())
    done = replay_fleet(steps, asked(trace), PROFILE, Lru(), RoundRobin(), replicas, 10)
    got = outcome(trace, done, Slo(3.0))
    assert got.latencies.overloaded is overloaded
    assert (got.latencies.ttft_ms is None) is overloaded
    assert np.isinf(got.target_ttft_s) == overloaded
    assert got.meets is not overloaded
    assert got.overloaded_replicas == (replicas if overloaded else 0)
    used = 1.0 if overloaded else 0.75
    assert [each.utilization for each in got.replicas] == pytest.approx([used] * replicas, abs=0.02)
    if not overloaded:
        assert got.latencies.ttft_ms == percentiles(np.full(200, 2250.0))
        assert got.latencies.tpot_ms == percentiles(np.full(200, 250.0))


@pytest.mark.parametrize(("tpot_s", "meets"), [(0.25, True), (0.2, False)])
def test_the_slo_of_output_tokens(tpot_s: float, meets: bool) -> None:
    trace = steady(50, 10.0)
    steps = traffic(trace, standard())
    done = replay_fleet(steps, asked(trace), PROFILE, Lru(), RoundRobin(), 2, 10)
    got = outcome(trace, done, Slo(3.0, tpot_s=tpot_s))
    assert got.meets is meets
    assert got.latencies.attainment == 1
    assert got.latencies.tpot_attainment == float(meets)


def test_rejected_requests_miss_the_slo() -> None:
    """A request without a token has no time, is not within the SLO, and ends the percentile."""
    trace = steady(20, 10.0)
    steps = traffic(trace, standard())
    done = replay_fleet(steps, asked(trace), PROFILE, Lru(), RoundRobin(), 2, 10)
    none = np.full(20, False)
    none[::10] = True
    rejected = replace(
        done,
        begin_s=np.where(none, np.nan, done.begin_s),
        token_s=np.where(none, np.nan, done.token_s),
        end_s=np.where(none, np.nan, done.end_s),
    )
    got = outcome(trace, rejected, Slo(3.0))
    assert got.latencies.rejected == 2
    assert got.latencies.attainment == pytest.approx(0.9)
    assert np.isinf(got.target_ttft_s)
    assert outcome(trace, rejected, Slo(3.0, percentile=0.9)).meets

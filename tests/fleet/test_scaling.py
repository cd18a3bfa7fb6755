"""Replicas that come and go: each life is a new engine, and routers see those that serve."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvscope.core.arrays import Float64s
from kvscope.core.trace import Prompts
from kvscope.fleet.autoscaled import AgeHits, AutoscaledFleet
from kvscope.fleet.engines import replay_engines
from kvscope.fleet.options import RATE_S, SETTLE_S, SYNC_S, Scaling
from kvscope.fleet.outcome import Slo
from kvscope.fleet.replay import FleetReplay, no_view
from kvscope.fleet.scaling import Schedule, schedule
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.derived_traces import select
from kvscope.routers.balancers import LeastRequests, Session
from kvscope.routers.base import MemorySizes, Prompt, Router
from kvscope.routers.dynamo import DynamoApprox
from kvscope.routers.llm_d import LlmD
from kvscope.routers.lru_index import clear, empty_index, holds, touch
from kvscope.routers.registry import ROUTERS
from kvscope.routers.sglang import Sglang
from kvscope.vllm_sim import replay_engine
from tests.fleet.test_engines import COST, SETTINGS, a_trace
from tests.tuning.examples import chats, workload

ON_ENGINES = [kind for kind in ROUTERS if not kind.copies]


def of(*changes: tuple[float, int]) -> Schedule:
    """Return a schedule of these numbers, each from a time on."""
    times, counts = zip((-math.inf, changes[0][1]), *changes[1:], strict=True)
    return Schedule(np.array(times), np.array(counts))


def check_lives(trace: Prompts, done: FleetReplay, policy: Policy) -> int:
    """Check that each life did what a new engine does that gets its requests; return how many."""
    assert done.age_s is not None
    joined_s = np.where(np.isinf(done.age_s), -1.0, done.arrival_s - done.age_s).round(6)
    lives = {*zip(done.replica.tolist(), joined_s.tolist(), strict=True)}
    for replica, since_s in lives:
        members = np.flatnonzero((done.replica == replica) & (joined_s == since_s))
        part = replay_engine(select(trace, members), policy, SETTINGS, COST)
        assert done.hit_blocks[members].tolist() == part.hit_blocks.tolist()
        ttft_s = done.token_s[members] - done.arrival_s[members]
        np.testing.assert_allclose(ttft_s, part.ttft_s, rtol=1e-9)
    return len(lives)


@pytest.mark.parametrize("kind", ON_ENGINES, ids=lambda each: each.name)
def test_each_life_is_a_new_engine(kind: type[Router]) -> None:
    """Behind every router; none chooses a replica that does not serve."""
    trace = a_trace(600.0)
    scaled = of((0, 1), (60, 3), (180, 1), (300, 4), (420, 2), (480, 3))
    values = {"balance_abs_threshold": 0, "balance_rel_threshold": 1} if kind is Sglang else {}
    done = replay_engines(trace, Lru(), kind(values), 4, SETTINGS, COST, scaled=scaled)
    serving = [scaled.at(arrival_s)[0] for arrival_s in done.arrival_s.tolist()]
    assert np.all(done.replica < serving)
    assert check_lives(trace, done, Lru()) >= 5
    assert np.unique(done.replica).tolist() == [0, 1, 2, 3]


def test_one_number_is_a_fleet_of_so_many() -> None:
    """For policies with parameters too, and with replicas that are never added."""
    trace, policy = a_trace(), TLru({"xi_tokens": 64})
    for kind in ON_ENGINES:
        alike = replay_engines(trace, policy, kind(), 2, SETTINGS, COST)
        done = replay_engines(trace, policy, kind(), 2, SETTINGS, COST, scaled=of((0, 2)))
        assert done.replica.tolist() == alike.replica.tolist(), kind.name
        assert done.token_s.tolist() == alike.token_s.tolist()
        assert np.all(np.isinf(done.age_s))
    more = replay_engines(trace, policy, ROUTERS[0](), 5, SETTINGS, COST, scaled=of((0, 2)))
    assert more.replica.max() == 1


def test_a_replica_ends_what_it_has_begun() -> None:
    """Asked back meanwhile it is there at the first arrival after that, empty."""
    trace = a_trace(30.0)  # more than two replicas serve at once
    scaled = of((0, 3), (10, 1), (10.05, 3))
    done = replay_engines(trace, Lru(), ON_ENGINES[0](), 3, SETTINGS, COST, scaled=scaled)
    assert not np.isnan(done.end_s).any()
    again = np.flatnonzero((done.replica == 2) & np.isfinite(done.age_s))
    before = np.flatnonzero((done.replica == 2) & np.isinf(done.age_s))
    assert done.arrival_s[again[0]] - done.age_s[again[0]] >= done.end_s[before].max() > 10.05
    check_lives(trace, done, Lru())


def test_one_that_comes_back_has_got_nothing() -> None:
    """It was sent a third of 50 requests before; of idle ones that with the fewest is next."""
    trace = a_trace(9000.0)
    times = trace.arrival_s[[150, 160]].tolist()
    scaled = of((0, 3), (times[0], 2), (times[1], 3))
    done = replay_engines(trace, Lru(), LeastRequests(), 3, SETTINGS, COST, scaled=scaled)
    assert np.bincount(done.replica[:150]).min() >= 45
    assert done.replica[160:190].tolist() == [2] * 30


def test_routers_forget_those_that_left() -> None:
    """Nothing is remembered of a prompt that was sent to the second of two replicas alone."""
    parents, path = np.arange(-1, 8, dtype=np.int32), np.arange(1, 9, dtype=np.int32)
    sizes, prompt = MemorySizes(2, 9, 9, 9, 16, 8, parents), Prompt(0, 1.0, 128, 0, 8, 8)
    view = no_view(2, 8, 16)
    view.own.in_flight[0] = view.own.used_blocks[0] = view.own.processed[0] = 1000
    view.own.waiting[0] = view.own.uncached_tokens[0] = 10_000

    def sent(router: Router) -> Any:
        memory = router.memory(sizes, 0)
        assert router.choose(prompt, path, view, memory, router.settings()) == 1
        return memory

    memory = sent(Sglang())
    tree = memory.tree
    assert tree.node_of[path].all()
    tree = Sglang().among(memory, 1, 0).tree
    assert not tree.node_of.any()
    assert not tree.stamps.any()
    assert tree.replica_tokens.tolist() == [0, 0]
    approximate = sent(DynamoApprox())
    assert np.isfinite(approximate.sent_s[1, path]).all()
    assert np.isinf(DynamoApprox().among(approximate, 1, 0).sent_s).all()
    lists = sent(LlmD())
    assert holds(lists.sent, 1, 1)
    assert LlmD().among(lists, 1, 0).sent.sizes.tolist() == [0, 0]


def test_a_guard_learns_of_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that come and go have no guards of their own: each would begin at nothing."""

    def refuse(*_: object) -> None:
        raise AssertionError

    guarded, scaling = TLru({"xi_tokens": 64, "guard": 1}), Scaling(1, 3, 0.5, 10.0)
    sweep = FleetSweep(workload(chats(5, 300)), 300, Slo(1.0), engine=SETTINGS)
    monkeypatch.setattr(FleetSweep, "_with_own_guards", refuse)
    with pytest.raises(AssertionError):
        sweep.replay(Fleet(Session(), guarded, 3))
    assert sweep.replay(Fleet(Session(), guarded, 3, scaling)).age_s is not None


@pytest.mark.parametrize(
    ("rates", "back_s"),
    [
        ([(0.50, 0.50), (0.30, 0.50), (0.49, 0.50)], 300.0),
        ([(0.48, 0.50), (0.50, 0.50), (0.50, 0.50)], 0.0),
        ([(0.10, 0.50), (0.48, 0.50), (0.60, 0.50)], 60.0),
        ([(0.50, 0.50), (0.50, 0.50), (0.40, 0.50)], None),
        ([], None),
    ],
)
def test_hits_are_back_where_they_stay(
    rates: list[tuple[float, float]], back_s: float | None
) -> None:
    """At the first age from which on all are alike."""
    edges = (60.0, 300.0, None)
    ages = tuple(AgeHits(edge, 9, *pair) for edge, pair in zip(edges, rates, strict=False))
    outcome: Any = None
    made = AutoscaledFleet(Scaling(1, 3, 0.5, 10.0), 2.0, 1, 1, outcome, outcome, 2, outcome, ages)
    assert made.back_s == back_s


def in_words(arrivals: list[float], scaling: Scaling) -> list[tuple[float, int]]:
    """Return when how many serve, by Kubernetes's rule, a second at a time."""
    target = Fraction(str(scaling.requests_per_s)) * int(RATE_S)

    def desired(now_s: float, present: int) -> int:
        total = sum(now_s - RATE_S <= arrival_s < now_s for arrival_s in arrivals)
        ratio = total / (present * target)
        wish = (
            present if Fraction(9, 10) <= ratio <= Fraction(11, 10) else math.ceil(total / target)
        )
        return min(max(wish, scaling.low), scaling.high)

    pods = [0.0] * desired(RATE_S, 10**9)
    wishes, found = [(RATE_S, len(pods))], [(0.0, len(pods))]
    for now_s in range(int(RATE_S) + 1, int(max(arrivals)) + 1 + int(scaling.ready_s)):
        if now_s % SYNC_S == 0 and now_s < max(arrivals) + SYNC_S:
            wish = desired(now_s, len(pods))
            wishes = [each for each in [*wishes, (now_s, wish)] if each[0] > now_s - SETTLE_S]
            if wish < len(pods):
                wish = min(len(pods), max(each for _, each in wishes))
            wish = min(wish, max(2 * len(pods), len(pods) + 4))
            pods = pods[:wish] + [now_s + scaling.ready_s] * (wish - len(pods))
        serving = sum(each <= now_s for each in pods)
        if serving != found[-1][1]:
            found.append((float(now_s), serving))
    return found


@given(
    bursts=st.lists(
        st.tuples(st.integers(0, 1500), st.integers(1, 200), st.integers(1, 90)),
        min_size=1,
        max_size=6,
    ),
    high=st.integers(2, 12),
    rate=st.sampled_from([0.1, 0.5, 1.0]),
    ready_s=st.sampled_from([0.0, 20.0, 90.0]),
)
@example(bursts=[(60, 31, 60), (62, 29, 59), (65, 35, 63)], high=4, rate=0.5, ready_s=0.0)
@settings(max_examples=60, deadline=None)
def test_the_number_is_kubernetess(
    bursts: list[tuple[int, int, int]], high: int, rate: float, ready_s: float
) -> None:
    """Against the rule in words: tolerance, growth, the wait before it falls, readiness."""
    arrivals = sorted(
        begin + 0.5 + number * length / count
        for begin, count, length in bursts
        for number in range(count)
    )
    scaling = Scaling(1, high, rate, ready_s)
    made = schedule(np.array(arrivals), scaling)
    for now_s, serving in in_words(arrivals, scaling):
        assert made.at(now_s)[0] == serving, now_s
    assert 1 <= made.replicas.min() <= made.replicas.max() <= high


def test_the_mean_is_over_time() -> None:
    made = of((0, 2), (10, 4), (30, 1))
    assert made.mean(0, 40) == pytest.approx((10 * 2 + 20 * 4 + 10 * 1) / 40)
    assert made.mean(20, 40) == pytest.approx((10 * 4 + 10 * 1) / 20)
    assert made.mean(5, 5) == 2


def test_no_arrivals_need_the_fewest() -> None:
    nothing: Float64s = np.zeros(0)
    assert schedule(nothing, Scaling(2, 5, 1.0, 60.0)).replicas.tolist() == [2]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=80), st.integers(0, 2))
def test_a_list_is_emptied_alone(sent: list[tuple[int, int]], gone: int) -> None:
    """The others keep what they have, and the emptied one is as new."""
    index = empty_index(3, 5)
    for replica, block in sent:
        touch(index, replica, block)
    had = {(replica, block) for replica, block in sent if holds(index, replica, block)}
    clear(index, gone)
    for replica in range(3):
        for block in range(41):
            expected = replica != gone and (replica, block) in had
            assert holds(index, replica, block) == expected
    for block in range(8):
        touch(index, gone, block)
    assert [holds(index, gone, block) for block in range(8)] == [False] * 3 + [True] * 5

"""Simulated vLLMs behind a router: each replica is an engine that got its share of the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.core.parameters import Parameter
from kvscope.core.trace import Prompts
from kvscope.deployment.kv_groups import GroupKind, KvGroup, KvGroups
from kvscope.fleet.closed_loop import think_times
from kvscope.fleet.engines import replay_engines
from kvscope.fleet.replay import FleetReplay
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.derived_traces import select
from kvscope.replay.traffic import traffic
from kvscope.routers.balancers import LeastRequests, RoundRobin
from kvscope.routers.base import EVENT_LAG, MemorySizes, Prompt, Router, View
from kvscope.routers.references import MinTtft, MooncakeConductor
from kvscope.routers.registry import ROUTERS
from kvscope.vllm_sim import EngineSettings, StepCost, replay_engine
from kvscope.vllm_sim.settings import OffloadSettings, StorageSettings, Transfers
from tests.oracles.engines import simulate
from tests.small_traces import built, prompts, requests
from tests.tuning.examples import PROFILE, chats

SETTINGS = EngineSettings(300, max_num_seqs=6, max_num_batched_tokens=256)
COST = StepCost.of(PROFILE)


def a_trace(seconds: float = 300.0, seed: int = 5, count: int = 300) -> Prompts:
    """Return so many requests of conversations within so many seconds."""
    trace = prompts(built(chats(seed, count), 16))
    return replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * seconds)


def check_engines(
    trace: Prompts, done: FleetReplay, policy: Policy, settings: EngineSettings = SETTINGS
) -> None:
    """Check that each replica did what an engine does that gets the same requests when they came.

    Of two that come at once the engine takes the one first that was sent first.
    """
    trace = replace(trace, arrival_s=done.arrival_s)
    for replica in range(done.replicas):
        members = np.flatnonzero(done.replica == replica)
        order = np.argsort(done.arrival_s[members], kind="stable")
        assert np.all(np.diff(done.arrival_s[members][order]) >= 0)
        if not np.array_equal(order, np.arange(len(order))):
            continue  # in the closed loop turns may overtake; `select` wants the trace's order
        part = replay_engine(select(trace, members), policy, settings, COST)
        loaded = 0 if part.loaded_blocks is None else part.loaded_blocks
        assert done.hit_blocks[members].tolist() == (part.hit_blocks + loaded).tolist()
        ttft_s = done.token_s[members] - done.arrival_s[members]
        np.testing.assert_allclose(ttft_s, part.ttft_s, rtol=1e-12)
        assert done.evictions[replica] == part.evictions


@pytest.mark.parametrize("policy", [Lru(), TLru({"xi_tokens": 64})], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", [RoundRobin, LeastRequests, MinTtft], ids=lambda each: each.name)
@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_are_engines(kind: type[Router], replicas: int, policy: Policy) -> None:
    trace = a_trace()
    done = replay_engines(trace, policy, kind(), replicas, SETTINGS, COST)
    assert len(np.unique(done.replica)) == replicas
    assert np.all(done.best_blocks >= done.hit_blocks)
    check_engines(trace, done, policy)


@pytest.mark.parametrize("kind", ["sliding", "linear"])
def test_replicas_of_hybrid_models_are_engines(kind: GroupKind) -> None:
    """Each hits what one engine with these groups does; routers see what full attention holds."""
    trace, window = a_trace(), 0 if kind == "linear" else 40
    size = trace.block_size
    groups = KvGroups((KvGroup(kind, size, window), KvGroup("full", size)))
    settings = replace(SETTINGS, groups=groups).on_pool(SETTINGS.usable_blocks, size)
    assert settings.usable_blocks == SETTINGS.usable_blocks * (1 if kind == "linear" else 2)
    done = replay_engines(trace, Lru(), MinTtft(), 2, settings, COST)
    assert done.hit_blocks.any()
    assert np.all(done.best_blocks >= done.hit_blocks)
    check_engines(trace, done, Lru(), settings)
    alike = replay_engines(trace, Lru(), MinTtft(), 2, SETTINGS, COST)
    assert done.hit_blocks.tolist() != alike.hit_blocks.tolist()


@pytest.mark.parametrize("kind", [RoundRobin, LeastRequests, MinTtft], ids=lambda each: each.name)
@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_above_a_tier_are_engines(kind: type[Router], replicas: int) -> None:
    """Each hits, loads and waits as one engine that gets the same requests, with files below too.

    Routers see the pools alone: one that sees caches takes a prompt that was evicted for absent.
    """
    trace, copies = a_trace(), Transfers(0.002, 0.004)
    tier = OffloadSettings(200, load=copies, store=copies)
    files = StorageSettings(300, read=copies, write=copies)
    hits = []
    for offload in (
        None,
        tier,
        replace(tier, release="0.32", eviction_policy="arc", prompt_only=False),
        replace(tier, storage=files),
    ):
        limits = replace(SETTINGS, usable_blocks=150, offload=offload)
        done = replay_engines(trace, Lru(), kind(), replicas, limits, COST)
        assert np.all(done.best_blocks >= done.hit_blocks)
        check_engines(trace, done, Lru(), limits)
        hits.append(int(done.hit_blocks.sum()))
    assert min(hits[1:]) > hits[0]


@given(
    seed=st.integers(0, 10_000),
    seconds=st.sampled_from([20.0, 150.0, 900.0]),
    capacity=st.integers(30, 300),
    load_s=st.sampled_from([0.0, 0.003, 0.2]),
    store_s=st.sampled_from([0.0, 0.01, 0.5]),
    stored=st.sampled_from([{}, {"store_threshold": 2}, {"blocks_per_chunk": 3}]),
    lag_s=st.sampled_from([0.0, 0.4]),
)
@settings(max_examples=25, deadline=None)
def test_whenever_copies_end_replicas_are_engines(
    seed: int,
    seconds: float,
    capacity: int,
    load_s: float,
    store_s: float,
    stored: Mapping[str, Any],
    lag_s: float,
) -> None:
    """Also those that end while a replica has nothing to compute, before its next request comes."""
    trace = prompts(built(chats(seed, 80), 16))
    trace = replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * seconds)
    times = Transfers(0.001, load_s), Transfers(0.001, store_s)
    tier = OffloadSettings(capacity, load=times[0], store=times[1], **stored)
    limits = replace(SETTINGS, usable_blocks=120, offload=tier)
    router = Spy({"event_lag_s": lag_s})
    check_engines(trace, replay_engines(trace, Lru(), router, 3, limits, COST), Lru(), limits)


def test_a_tier_under_which_requests_never_start_is_refused() -> None:
    """As one engine refuses it: files are read into a tier that is too small for a prompt."""
    trace = a_trace(30.0)
    tier = OffloadSettings(30, storage=StorageSettings())
    limits = replace(SETTINGS, usable_blocks=150, offload=tier)
    shared = replace(limits, offload=replace(tier, storage=StorageSettings(shared=True)))
    for refused in (
        lambda: replay_engine(trace, Lru(), limits, COST),
        lambda: replay_engines(trace, Lru(), RoundRobin(), 2, limits, COST),
        lambda: replay_engines(trace, Lru(), RoundRobin(), 2, shared, COST),
    ):
        with pytest.raises(UsageError, match=r": [1-9]\d* requests never start"):
            refused()


def test_in_the_closed_loop_turns_follow_the_end_of_the_one_before() -> None:
    trace = a_trace(100.0)
    steps = traffic(trace, standard())
    think_s = think_times(trace, steps, PROFILE).think_s
    done = replay_engines(trace, Lru(), LeastRequests(), 2, SETTINGS, COST, think_s=think_s)
    later = np.flatnonzero(think_s >= 0)
    assert len(later) > 100
    due_s = done.end_s[trace.parent[later]] + think_s[later]
    np.testing.assert_allclose(done.arrival_s[later], due_s, rtol=1e-12)
    first = np.flatnonzero(think_s < 0)
    assert done.arrival_s[first].tolist() == trace.arrival_s[first].tolist()
    assert np.all(np.diff(done.arrival_s[done.order]) >= 0)


def test_in_the_closed_loop_replicas_are_the_same_engines() -> None:
    """Turns keep the trace's order where all users think for as long as the trace takes."""
    trace = a_trace(100.0)
    trace = select(trace, np.flatnonzero(trace.parent < 0))
    pairs = replace(trace, parent=np.arange(-1, len(trace.leaf) - 1, dtype=np.int32))
    think_s = np.full(len(pairs.leaf), 0.25)
    think_s[0] = -1.0
    done = replay_engines(pairs, Lru(), RoundRobin(), 2, SETTINGS, COST, think_s=think_s)
    assert done.order.tolist() == list(range(len(pairs.leaf)))
    check_engines(pairs, done, Lru())
    slow = Transfers(0.01, 0.02)
    above = replace(SETTINGS, usable_blocks=60, offload=OffloadSettings(90, load=slow, store=slow))
    done = replay_engines(pairs, Lru(), RoundRobin(), 2, above, COST, think_s=think_s)
    check_engines(pairs, done, Lru(), above)


class Seen(NamedTuple):
    """What a spy noted: (requests x replicas x 4) of its own load, and of the scraped one.

    `cached` and `reported` (requests x replicas) are cached blocks, in truth and by KV events.
    """

    own: Int64s
    scraped: Int64s
    cached: Int64s
    reported: Int64s


class Spy(Router):
    """Note every load that a router sees, and what is cached."""

    name = "spy"
    summary = "notes loads"
    source = "made up"
    sees = "truth"
    parameters = (Parameter("scrape_s", 0.5, "seconds between two scrapes"), EVENT_LAG)

    def memory(self, sizes: MemorySizes, seed: int) -> Seen:
        """Return room for all that is seen."""
        loads = np.zeros((2, sizes.requests, sizes.replicas, 4), dtype=np.int64)
        caches = np.zeros((2, sizes.requests, sizes.replicas), dtype=np.int64)
        notes.append(Seen(*loads, *caches))
        return notes[-1]

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Choose in turn."""
        for replica in range(view.replicas):
            memory.cached[prompt.request, replica] = view.truth.cached_blocks[replica]
            memory.reported[prompt.request, replica] = view.reported_blocks[replica]
            own, scraped = view.own, view.scraped
            memory.own[prompt.request, replica, 0] = own.in_flight[replica]
            memory.own[prompt.request, replica, 1] = own.waiting[replica]
            memory.own[prompt.request, replica, 2] = own.running[replica]
            memory.own[prompt.request, replica, 3] = own.prompt_tokens[replica]
            memory.scraped[prompt.request, replica, 0] = scraped.in_flight[replica]
            memory.scraped[prompt.request, replica, 1] = scraped.waiting[replica]
            memory.scraped[prompt.request, replica, 2] = scraped.running[replica]
            memory.scraped[prompt.request, replica, 3] = scraped.prompt_tokens[replica]
        return prompt.request % view.replicas


notes: list[Seen] = []


def recounted(
    trace: Prompts, done: FleetReplay, slot: int, replica: int, at_s: float, before_s: float
) -> list[int]:
    """Count a load from the times of all requests that arrived before."""
    sent = done.order[:slot]
    sent = sent[(done.replica[sent] == replica) & (done.arrival_s[sent] < before_s)]
    sent = sent[done.end_s[sent] > at_s]
    return [
        len(sent),
        int((done.begin_s[sent] > at_s).sum()),
        int((done.begin_s[sent] <= at_s).sum()),
        int(trace.input_tokens[sent[done.token_s[sent] > at_s]].sum()),
    ]


def test_loads_are_those_of_the_moment() -> None:
    trace = a_trace(40.0)
    done = replay_engines(trace, Lru(), Spy(), 2, SETTINGS, COST)
    busy = 0
    for slot, request in enumerate(done.order.tolist()):
        now_s = done.arrival_s[request]
        scrape_s = np.floor(now_s / 0.5) * 0.5
        for replica in range(2):
            own = recounted(trace, done, slot, replica, now_s, np.inf)
            scraped = recounted(trace, done, slot, replica, scrape_s, scrape_s)
            assert notes[-1].own[slot, replica].tolist() == own
            assert notes[-1].scraped[slot, replica].tolist() == scraped
            busy += own[1] > 0
    assert busy > 20


def test_late_events_report_what_engines_held() -> None:
    """As if the request had come when the events that have arrived were sent."""
    trace, lag_s = a_trace(40.0), 1.3
    done = replay_engines(trace, Lru(), Spy({"event_lag_s": lag_s}), 2, SETTINGS, COST)
    late = notes[-1]
    assert done.order.tolist() == list(range(len(trace.leaf)))
    assert np.any(late.reported != late.cached)
    for request in range(20, len(trace.leaf), 20):
        sent_s = trace.arrival_s[request] - lag_s
        early = select(trace, np.append(np.flatnonzero(trace.arrival_s < sent_s), request))
        arrival_s = early.arrival_s.copy()
        arrival_s[-1] = sent_s
        replay_engines(replace(early, arrival_s=arrival_s), Lru(), Spy(), 2, SETTINGS, COST)
        assert late.reported[request].tolist() == notes[-1].cached[-1].tolist()


@st.composite
def small_traces(draw: st.DrawFn) -> Prompts:
    """Return up to 12 requests, each of which may follow an earlier one."""
    size = draw(st.sampled_from([1, 3]))
    made = prompts(built(draw(requests(size, most=12, chats=draw(st.booleans()))), size))
    count = len(made.leaf)
    parent = [draw(st.integers(-1, request - 1)) for request in range(count)]
    return replace(made, parent=np.array(parent, dtype=np.int32))


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *((kind, Lru()) for kind in (*ROUTERS, Spy) if not kind.copies),
        *((kind, TLru({"xi_tokens": 5})) for kind in (LeastRequests, MinTtft, Spy)),
    ],
    ids=lambda each: each.name,
)
@given(st.data())
@settings(deadline=None, max_examples=15)  # compiles
def test_equals_the_oracle(kind: type[Router], policy: Policy, data: st.DataObject) -> None:
    """To the last bit: open and closed loop, late events and scrapes, rejected requests."""
    trace = data.draw(small_traces())
    think_s = None
    if data.draw(st.booleans()):
        thoughts = st.sampled_from([-1.0, 0.0, 0.5, 3.0])
        drawn_s = [data.draw(thoughts) for _ in trace.leaf]
        think_s = np.where(trace.parent >= 0, drawn_s, -1.0)
    limits = EngineSettings(
        data.draw(st.integers(2, 30)),
        max_num_seqs=data.draw(st.integers(1, 4)),
        max_num_batched_tokens=data.draw(st.integers(1, 20)),
        async_scheduling=data.draw(st.booleans()),
    )
    delays_s = {"scrape_s": [0.5, 2.0], "event_lag_s": [0.0, 0.5, 3.0]}
    known = {parameter.name for parameter in kind.parameters} & delays_s.keys()
    router = kind({name: data.draw(st.sampled_from(delays_s[name])) for name in sorted(known)})
    replicas, seed = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 9))
    cost = StepCost(base_s=0.3, prefill_token_s=0.01, prefill_pair_s=0.002, floor_s=0.1)
    fleet = trace, policy, router, replicas, limits, cost
    done = replay_engines(*fleet, think_s=think_s, seed=seed)
    expected = simulate(*fleet, think_s=think_s, seed=seed)
    for name in FleetReplay.__struct_fields__:
        np.testing.assert_array_equal(getattr(done, name), getattr(expected, name), err_msg=name)


def test_a_request_that_no_replica_can_hold_is_rejected() -> None:
    trace = a_trace()
    small = EngineSettings(20, max_num_seqs=6, max_num_batched_tokens=256)
    done = replay_engines(trace, Lru(), LeastRequests(), 2, small, COST)
    rejected = np.isnan(done.token_s)
    assert 0 < rejected.sum() < len(rejected)
    assert not done.hit_blocks[rejected].any()


def test_a_router_that_copies_prefixes_is_refused() -> None:
    with pytest.raises(UsageError, match="mooncake@fast25 copies prefixes"):
        replay_engines(a_trace(), Lru(), MooncakeConductor(), 2, SETTINGS, COST)

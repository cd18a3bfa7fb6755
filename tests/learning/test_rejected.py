"""Learners keep to what engines serve: rejected requests, and traffic that turns against them."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.profiles import PROFILES, Alternating
from kvscope.characterize.distributions import Windows
from kvscope.core.arrays import Float64s
from kvscope.core.hits import standard
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.ingest.pipeline import ingest
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.evidence import LEAST_REQUESTS
from kvscope.learning.offline.learners import served_traffic, tables_for, tables_of_served
from kvscope.learning.returns.offline import ReturnsOffline
from kvscope.learning.reuse.offline import ReuseOffline
from kvscope.policies.base import Policy
from kvscope.policies.gittins import Gittins
from kvscope.policies.lru import Lru, ThresholdLru
from kvscope.policies.registry import by_name
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa
from kvscope.replay.replay import NO_TABLES, Tables, replay
from kvscope.replay.sweep import make_run
from kvscope.replay.traffic import Traffic, traffic
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.synth.profiles import write_jsonl
from kvscope.validate.predict import predict
from kvscope.validate.replay import Pace
from kvscope.vllm_sim import EngineSettings, fits
from tests.golden.samples import sample
from tests.learning import test_reuse_online as online
from tests.long import long
from tests.small_traces import built, prompts

SIZE, BLOCKS = 4, 60
POLICIES = (
    ("wa", {"refit_s": 60.0}),
    ("gittins", {"refit_requests": 16.0, "xi_tokens": 16.0}),
)


def asks(ids: list[int], arrival_s: float) -> Request:
    """Return a request for these blocks, with one output token."""
    return Request(
        input_tokens=len(ids) * SIZE, output_tokens=1, arrival_s=arrival_s, hash_ids=list(ids)
    )


def chats(requests: int, seed: int) -> list[Request]:
    """Return chats that go on after a minute, and prompts beyond 60 blocks that return at once."""
    draw = random.Random(seed)
    trace: list[Request] = []
    going: list[list[int]] = []
    fresh, now_s = 1, 0.0
    for number in range(requests):
        now_s += draw.expovariate(1 / 4)
        if number % 5 == 2:
            giant = [-1 - number // 20, *range(10_000, 10_000 + BLOCKS)]
            trace.append(asks(giant, now_s))
            continue
        if going and draw.random() < 0.6:
            chat = draw.choice(going[-15:])
        else:
            chat = []
            going.append(chat)
        added = draw.randint(1, 4)
        chat += range(fresh, fresh + added)
        fresh += added
        trace.append(asks(chat, now_s))
        if len(chat) > 20:
            going.remove(chat)
    return trace


def both(seed: int) -> tuple[Prompts, Prompts, np.ndarray]:
    """Return the trace, what of it an engine of 60 blocks serves, and which requests those are."""
    trace = chats(600, seed)
    whole = prompts(built(trace, SIZE))
    served = fits(traffic(whole, standard()), EngineSettings(BLOCKS))
    some = [request for request, fitting in zip(trace, served, strict=True) if fitting]
    assert 0.7 < served.mean() < 0.9
    return whole, prompts(built(some, SIZE)), served


@pytest.mark.parametrize(("policy", "values"), POLICIES)
def test_predictions_do_not_depend_on_rejected_requests(
    policy: str, values: dict[str, float]
) -> None:
    """The others are predicted to hit what they hit in a trace without the rejected ones."""
    profile = LatencyProfile("test", "test", base_s=0.01, per_token_s=1e-4, per_token_pair_s=0.0)
    for seed in range(3):
        whole, some, served = both(seed)
        hits = [
            predict(
                of, by_name(policy)(values), EngineSettings(BLOCKS), profile, Pace("sequential")
            ).hit_tokens
            for of in (whole, some)
        ]
        assert hits[0][served].tolist() == hits[1].tolist()
        assert not hits[0][~served].any()


@pytest.mark.parametrize(("policy", "values"), POLICIES)
def test_simulations_do_not_depend_on_rejected_requests(
    policy: str, values: dict[str, float]
) -> None:
    """Nor do those of `--capacity-model engine`, whichever engine was simulated before."""
    setting = RunSetting(
        standard(),
        "test",
        0.01,
        1e-4,
        0.0,
        capacity_model="engine",
        max_num_seqs=4,
        max_num_batched_tokens=512,
    )
    whole, some, _ = both(7)
    runs = []
    for of in (whole, some):
        workload = Workload(of, setting, Windows(1e6, 1))
        for blocks in (5 * BLOCKS, BLOCKS):
            run = make_run(workload, ReplayRequest(by_name(policy)(values), blocks))
        runs.append(run)
    assert (runs[0].turned_away, runs[1].turned_away) == (len(whole.leaf) - len(some.leaf), 0)
    assert runs[0].outcome.hit_tokens == runs[1].outcome.hit_tokens
    assert runs[0].evictions == runs[1].evictions


def test_the_plugin_learns_the_same() -> None:
    """Its estimator sees the served requests alone, and finds the simulator's tables."""
    of = traffic(sample("to-c"), standard())
    served = of.input_tokens < np.quantile(of.input_tokens, 0.9)
    some = served_traffic(of, served)
    learner = ReuseOffline()
    tables = tables_of_served(of, served, lambda part: learner.tables(part, online.REFIT_S))
    since, expected = online.served(some, tables.categories)
    assert np.flatnonzero(served)[since].tolist() == [
        np.flatnonzero(served)[0],
        *tables.since[1:].tolist(),
    ]
    for found, table in zip(tables.values[tables.rows], expected, strict=True):
        np.testing.assert_allclose(found, table, rtol=1e-9, atol=1e-12)
    everyone = learner.tables(of, online.REFIT_S)
    assert not np.allclose(everyone.at(-1), tables.at(-1)[: everyone.categories])


def test_a_turn_continues_the_latest_served_one() -> None:
    """Of three turns the second is rejected: the third follows the first."""
    turns = [
        asks([1, 2], 0.0),
        asks([1, 2, *range(10, 108)], 1.0),
        asks([1, 2, *range(10, 109)], 2.0),
    ]
    of = traffic(prompts(built(turns, SIZE)), standard())
    of = of._replace(parent=np.array([-1, 0, 1], dtype=np.int32))
    some = served_traffic(of, np.array([True, False, True]))
    assert some.parent.tolist() == [-1, 0]
    assert some.next_prompt_tokens.tolist() == [404 - 9, -1]
    assert served_traffic(of, np.array([False, True, True])).parent.tolist() == [-1, 0]


SEED, REQUESTS = 601, 3_000
PERIODS_S = {f"swaps every {period} s": period for period in (60, 180, 600, 1_800, 3_600, 7_200)}


@cache
def stream(name: str) -> Traffic:
    """Return one kind of traffic: a profile's, one that swaps at a period, or all in turn."""
    if name == "one after the other":
        return in_turn(("scan", "agent", "time-of-day"))
    profile = PROFILES[name] if name in PROFILES else Alternating(change_s=PERIODS_S[name])
    with TemporaryDirectory() as folder, open_store(MEMORY) as store:
        path = Path(folder) / "stream.jsonl"
        write_jsonl(profile.generate(requests=REQUESTS, seed=SEED), path)
        return traffic(load_prompts(store, ingest(store, str(path)).trace), standard())


def in_turn(names: tuple[str, ...], each: int = REQUESTS // 3) -> Traffic:
    """Return the first requests of several streams, one stream after the other."""
    parts, blocks, begin_s = list[Traffic](), 0, 0.0
    parents = [np.zeros(1, dtype=np.int32)]
    for name in names:
        of = stream(name)
        inside = np.arange(each)
        parent = of.block_parent[1:]
        parents.append(np.where(parent > 0, parent + blocks, 0).astype(np.int32))
        columns = {
            column: values[inside]
            for column, values in of._asdict().items()
            if column not in {"block_size", "block_parent"}
        }
        columns["leaf"] = np.where(columns["leaf"] > 0, columns["leaf"] + blocks, 0)
        columns["arrival_s"] = columns["arrival_s"] + begin_s
        columns["parent"] = np.full(each, -1, dtype=np.int32)
        parts.append(of._replace(**columns))
        blocks += len(parent)
        begin_s = float(columns["arrival_s"][-1])
    joined = {
        column: np.concatenate([getattr(part, column) for part in parts])
        for column in parts[0]._fields
        if column not in {"block_size", "block_parent"}
    }
    joined["leaf"] = joined["leaf"].astype(np.int32)
    assert len({part.block_size for part in parts}) == 1
    return parts[0]._replace(block_parent=np.concatenate(parents), **joined)


def computed(of: Traffic, policy: Policy, capacity: int, tables: Tables = NO_TABLES) -> Float64s:
    """Return the tokens beyond xi that each request computes."""
    hits = replay(of, policy, capacity, tables=tables).hit_blocks.astype(np.int64)
    xi = policy.values.get("xi_tokens", 0.0)
    return np.maximum(of.input_tokens - hits * of.block_size - xi, 0.0)


def most_in_a_row(tokens: Float64s, requests: int) -> float:
    """Return the largest sum over so many requests one after the other."""
    so_far = np.concatenate(([0.0], np.cumsum(tokens)))
    return float((so_far[requests:] - so_far[:-requests]).max())


def lost_against_lru(of: Traffic, own: Float64s, capacity: int, xi: int) -> float:
    """Return the most that a policy, which computes `own`, loses in any time, in turnovers."""
    lru = np.maximum(computed(of, Lru(), capacity) - xi, 0.0)
    net = np.concatenate(([0.0], np.cumsum(own - lru)))
    lost = float((net - np.minimum.accumulate(net)).max())
    most = most_in_a_row(np.maximum(own, lru), LEAST_REQUESTS)
    return lost / max(capacity * of.block_size, most)


STREAMS = [
    "swaps every 600 s",
    "swaps every 7200 s",
    "one after the other",
    "agent",
    "to-b",
    *(long(name) for name in PERIODS_S if name not in {"swaps every 600 s", "swaps every 7200 s"}),
    *map(long, ("regime-change", "scan", "retrieval", "time-of-day", "birth-death", "to-c")),
]


@pytest.mark.parametrize("xi", [0, long(2048)])
@pytest.mark.parametrize("share", [0.02, 0.1, long(0.3)])
@pytest.mark.parametrize("name", STREAMS)
def test_no_stretch_of_time_loses_more_than_a_turnover(name: str, share: float, xi: int) -> None:
    """From whenever to whenever, against LRU, on every stream.

    A turnover is what fills the cache, and no less than 128 requests. What is stated of a shadow
    can be more or less; the real cache adds what a change itself costs.
    """
    of = stream(name)
    capacity = max(int(share * (len(of.block_parent) - 1)), 1)
    policy = Gittins({"xi_tokens": xi, "refit_requests": 64})
    own = computed(of, policy, capacity, ReturnsOffline().tables(of, 64.0))
    assert lost_against_lru(of, own, capacity, xi) <= 1.0


@pytest.mark.parametrize(
    ("policy", "xi"),
    [
        (TLru({"guard": 1}), 2048),
        (Wa({"guard": 1}), 0),
        long(TLru({"guard": 1}, leaves="any"), 2048),
        long(ThresholdLru({"guard": 1}), 0),
    ],
)
@pytest.mark.parametrize(
    "name", ["swaps every 600 s", "to-b", *map(long, ("one after the other", "to-c", "agent"))]
)
def test_other_guarded_policies_keep_that_bound(name: str, policy: Policy, xi: int) -> None:
    """They have LRU and their own order for candidates."""
    of = stream(name)
    capacity = max(int(0.1 * (len(of.block_parent) - 1)), 1)
    own = computed(of, policy, capacity, tables_for(of, type(policy)))
    assert lost_against_lru(of, own, capacity, xi) <= 1.0


def test_without_a_guard_more_is_lost() -> None:
    """Where chats and documents swap habits every half hour, as in the test above."""
    of = stream("swaps every 1800 s")
    capacity, policy = len(of.block_parent) // 50, Gittins({"xi_tokens": 0, "refit_requests": 64})
    tables = ReturnsOffline().tables(of, 64.0)
    lru = computed(of, Lru(), capacity)
    net, bare = (
        np.cumsum(computed(of, policy, capacity, made) - lru)
        for made in (tables, replace(tables, choose=None))
    )
    guarded_lost, bare_lost = (float((x - np.minimum.accumulate(x)).max()) for x in (net, bare))
    assert guarded_lost < bare_lost / 2

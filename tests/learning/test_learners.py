"""Learners by policy, refits of their tables, and directives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import learning
from kvscope.core.hits import standard
from kvscope.core.trace import Directives, Prompts, Retain, StatedDirectives
from kvscope.learning.directives.offline import stated_tables
from kvscope.learning.learners import OnlineLearner, learner_class, reads_fit
from kvscope.learning.next_prompts.offline import NextPromptsOffline, conversation_parameters
from kvscope.learning.offline.learners import OfflineLearner, offline_learner, tables_for
from kvscope.learning.returns.formulas import ROWS
from kvscope.learning.returns.offline import ReturnsOffline
from kvscope.learning.reuse.offline import ReuseOffline
from kvscope.policies.base import Policy
from kvscope.policies.etlru import Etlru
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.registry import POLICIES
from kvscope.policies.trtllm_priority import TrtllmPriority
from kvscope.policies.wa import RATE_PER_S, REUSE_PROBABILITY, Wa
from kvscope.replay.replay import NO_TABLES, replay
from kvscope.replay.traffic import Traffic, traffic
from kvscope.reuse_models.distributions import Exponential
from kvscope.reuse_models.evidence import Evidence, Span
from tests.golden.samples import SAMPLES, sample
from tests.long import long
from tests.oracles.replay import left_behind
from tests.policies import drawn
from tests.policies.traffics import first, traffics

LEARNING = [policy for policy in POLICIES if policy.learner is not None]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_both_halves_are_found(policy: type[Policy]) -> None:
    """The offline half of every policy with a table; the online half where the plugin runs it."""
    online, offline = learner_class(policy), offline_learner(policy)
    assert (offline is not None) == (policy.learner is not None)
    assert offline is None or isinstance(offline, OfflineLearner)
    assert (online is not None) == (policy.learner is not None and policy.runs_in_plugin())
    assert online is None or issubclass(online, OnlineLearner)


def test_each_folder_is_some_policys() -> None:
    """No learner is left without a policy."""
    root = Path(learning.__file__).parent
    folders = {path.parent.name for path in root.glob("*/offline.py")}
    assert folders == {policy.learner for policy in LEARNING}


def test_fits_in_files() -> None:
    """`gittins` may take one along."""
    assert {policy.name for policy in POLICIES if reads_fit(policy)} == {"gittins"}


def test_the_online_halves_are_light() -> None:
    """They run in an engine: no store, no fitting, no compiler."""
    script = """
import sys
from kvscope.learning.learners import learner_class
from kvscope.policies.registry import POLICIES
for policy in POLICIES:
    learner_class(policy)
heavy = {"polars", "duckdb", "numba", "scipy", "kvscope.replay", "kvscope.learning.offline"}
print(sorted(heavy & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


LEARNERS: tuple[Any, ...] = (
    ReuseOffline(),
    NextPromptsOffline(),
    ReturnsOffline(),
)


def told(name: str) -> Traffic:
    return traffic(sample(name), standard())


def evidence_of(name: str) -> tuple[Evidence, Prompts]:
    """Return the same requests as `kvscope fit` sees them."""
    from kvscope.core.files import data_folder
    from kvscope.ingest.pipeline import ingest
    from kvscope.reuse_models.evidence import load_evidence
    from kvscope.store.db import MEMORY, open_store

    with open_store(MEMORY) as store:
        trace = ingest(store, str(data_folder("sample_traces") / f"{name}.jsonl.gz")).trace
        return load_evidence(store, trace), sample(name)


@pytest.mark.parametrize(
    ("learner", "name"),
    [
        (long if isinstance(learner, ReturnsOffline) and name != "agent" else pytest.param)(
            learner, name
        )
        for learner in LEARNERS
        for name in SAMPLES
    ],
)
def test_a_table_does_not_change_with_the_future(name: str, learner: OfflineLearner) -> None:
    """Those that hold for the first requests are the same when no more of them are known."""
    of = first(told(name), 1_500)
    whole = learner.tables(of, 120.0)
    for share in (0.3, 0.7):
        requests = int(len(of.leaf) * share)
        past = learner.tables(first(of, requests), 120.0)
        rows = int(np.searchsorted(whole.since, requests))
        assert len(past.since) == rows
        assert np.array_equal(past.since, whole.since[:rows])
        expected = whole.values[whole.rows[:rows, : past.categories]]
        assert past.values[past.rows] == pytest.approx(expected, rel=1e-6)
        if whole.classes is not None:
            assert np.array_equal(past.classes, whole.classes[:requests])


@pytest.mark.parametrize("name", SAMPLES)
def test_parameters_do_not_change_with_the_future(name: str) -> None:
    """They follow from the first requests alone."""
    of = told(name)
    requests = len(of.leaf) // 5
    assert conversation_parameters(of) == conversation_parameters(first(of, requests), 1.0)


def test_tables_are_what_fit_finds_in_the_window() -> None:
    """Up to the slots of ages and some blocks of the average: p and rate of `kvscope fit`."""
    of = told("birth-death")
    tables = ReuseOffline().tables(of)
    evidence, prompts = evidence_of("birth-death")
    assert evidence.categories == prompts.categories
    compared = 0
    for row, since in enumerate(tables.since):
        end_s = of.arrival_s[since] // 600.0 * 600.0
        if end_s < 3_600:
            continue
        for category, waits in enumerate(evidence.waits(Span(end_s - 3_600, end_s))):
            found = Exponential().fit(waits, intervals=False)
            p, rate = tables.at(row)[category, [REUSE_PROBABILITY, RATE_PER_S]]
            assert p == pytest.approx(found.reuse_probability_, rel=0.02)
            assert rate == pytest.approx(found.params_["rate_per_s"], rel=0.02)
            compared += 1
    assert compared == 95


def test_conversations_are_recovered() -> None:
    """The birth-death sample has a turn a minute and deaths every 150 s."""
    found = conversation_parameters(told("birth-death"), 1.0)
    assert found["turn_rate_per_s"] == pytest.approx(1 / 60, rel=0.05)
    assert found["death_rate_per_s"] == pytest.approx(1 / 150, rel=0.05)
    assert found["next_prompt_tokens"] == pytest.approx(100, rel=0.05)


def test_before_anything_is_seen_all_are_alike() -> None:
    """The first row knows no category from another; and so for a trace of one request."""
    of = told("to-c")
    for learner in LEARNERS:
        values = learner.tables(of).at(0)
        assert np.all(values == values[0])
        assert len(learner.tables(first(of, 1)).rows) == 1
    assert conversation_parameters(first(of, 1)) == {}


def test_time_without_requests_costs_nothing() -> None:
    """A trace with a century in the middle has as many tables as stretches with requests."""
    of = told("birth-death")
    late = of.arrival_s.copy()
    late[5_000:] += 3.2e9
    tables = ReuseOffline().tables(of._replace(arrival_s=late))
    assert len(tables.since) <= len(ReuseOffline().tables(of).since) + 1
    assert np.all(np.isfinite(tables.values))


def test_tables_for_who_reads_them() -> None:
    """A policy gets its own kind, another one nothing."""
    of = told("agent")
    assert tables_for(of, Lru) is NO_TABLES
    assert tables_for(of, Wa).at(0).shape[1] == 4
    assert tables_for(of, Etlru).at(0).shape[1] == 16
    assert tables_for(of, Gittins).at(0).shape == (LEVELS * ROWS, AGES)
    assert len(tables_for(of, Wa, 60.0).since) > len(tables_for(of, Wa).since)


INFINITE = float("inf")
Key = Callable[[int, int, float], tuple[float, ...]]
"""Of a block: the last request, its depth there, the time since. Lowest leaves."""

RETAINS = st.builds(
    Retain,
    start=st.integers(0, 4),
    to=st.sampled_from((None, 1, 2, 5)),
    priority=st.sampled_from((0, 20, 35, 36, 100)),
    ttl_s=st.sampled_from((None, 0.0, 1.0, 3.0)),
)
DIRECTIVES = st.builds(
    Directives,
    retain=st.lists(RETAINS, max_size=3).map(tuple),
    ends=st.sampled_from((False, False, True)),
    pause=st.booleans(),
    refresh=st.booleans(),
)


def stated_at(directives: Directives, token: int) -> tuple[float, float]:
    """Return the priority and TTL of a token: of the last range that covers it."""
    priority, ttl_s = 35.0, 0.0
    for each in directives.retain:
        if each.start <= token < (INFINITE if each.to is None else each.to):
            priority, ttl_s = each.priority, INFINITE if each.ttl_s is None else each.ttl_s
    return priority, ttl_s


def by_priority(stated: Sequence[Directives], size: int) -> Key:
    """Return the key of TensorRT-LLM: level, then the time since the block joined its queue."""

    def key(request: int, depth: int, idle_s: float) -> tuple[float, ...]:
        priority, ttl_s = stated_at(stated[request], depth * size)
        if priority > 35 and idle_s > ttl_s:
            return 35.0, ttl_s - idle_s
        return priority, -idle_s

    return key


def slow_replay(traffic: Traffic, key: Key, capacity: int) -> tuple[list[int], int]:
    """Return the hits of each request and the evictions; only leaves leave."""
    cached: dict[Hashable, tuple[int, int, Hashable]] = {}
    hits, evictions = [], 0
    for at, blocks in enumerate(left_behind(traffic)):
        now_s, leading = float(traffic.arrival_s[at]), 0
        while leading < len(blocks) and blocks[leading] in cached:
            leading += 1
        hits.append(min(leading, int(traffic.look[at])))
        for depth, block in enumerate(blocks):
            cached[block] = at, depth, blocks[depth - 1] if depth else None
        while len(cached) > capacity:
            parents = {parent for _, _, parent in cached.values()}

            def order(block: Hashable, now_s: float = now_s) -> tuple[float, ...]:
                owner, depth, _ = cached[block]
                idle_s = float(now_s - traffic.arrival_s[owner])
                return *key(owner, depth, idle_s), owner, -depth

            del cached[min((block for block in cached if block not in parents), key=order)]
            evictions += 1
    return hits, evictions


@st.composite
def directed(draw: st.DrawFn) -> tuple[Traffic, StatedDirectives, list[Directives]]:
    """Draw traffic in which each request states one of three directives, or nothing."""
    traffic = draw(traffics())
    distinct = draw(st.lists(DIRECTIVES, min_size=1, max_size=3))
    requests = len(traffic.leaf)
    number = draw(
        st.lists(st.integers(-1, len(distinct) - 1), min_size=requests, max_size=requests)
    )
    stated = StatedDirectives(np.array(number, dtype=np.int32), tuple(distinct))
    return traffic, stated, [distinct[each] if each >= 0 else Directives() for each in number]


def compiled(
    traffic: Traffic, stated: StatedDirectives, policy: Policy, capacity: int
) -> tuple[list[int], int]:
    """Return the same from the kernel."""
    done = replay(traffic, policy, capacity, tables=stated_tables(traffic, stated))
    return done.hit_blocks.tolist(), done.evictions


@settings(deadline=None, max_examples=80)
@given(st.data(), directed())
def test_priorities_are_tensorrt_llms(
    data: st.DataObject, of: tuple[Traffic, StatedDirectives, list[Directives]]
) -> None:
    """Levels, expiry to the default level's end, ranges of tokens, leaves only."""
    traffic, stated, each = of
    capacity = data.draw(drawn.capacities(traffic))
    expected = slow_replay(traffic, by_priority(each, traffic.block_size), capacity)
    assert compiled(traffic, stated, TrtllmPriority(), capacity) == expected

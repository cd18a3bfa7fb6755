"""Which candidate `gittins` goes by: shadows say, from the past alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.learning.offline import shadow_replays as shadows
from kvscope.learning.offline.shadow_replays import Taken, first_turns
from kvscope.learning.returns.formulas import FIRST, LRU, NEED, ROWS
from kvscope.learning.returns.offline import ClassSetShadows, ReturnsOffline, class_set_tables
from kvscope.policies.base import Policy
from kvscope.policies.gittins import LEVELS, Gittins
from kvscope.policies.lru import Lru
from kvscope.replay.derived_traces import select
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables, replay
from kvscope.replay.traffic import Traffic, traffic
from kvscope.vllm_sim import EngineSettings, StepCost, replay_engine
from tests.golden.samples import sample
from tests.learning.test_learners import first, told
from tests.learning.test_returns_offline import chain
from tests.policies.traffics import traffics

QUICK = settings(deadline=None, max_examples=60)


class Tripped(ClassSetShadows):
    """Shadows that say LRU, whatever happens."""

    def taken(self, policy: Policy, capacity_blocks: int) -> Taken:
        """LRU from the first request on."""
        return Taken(np.array([0]), np.array([LRU]))


def tripped(of: Traffic) -> Tables:
    """Tables whose guard is always tripped."""
    return Tripped(of, class_set_tables(of, 4.0)).tables()


@QUICK
@given(traffics(), st.integers(0, 30), st.sampled_from((0, 1, 5, 16)))
def test_a_tripped_guard_is_lru(of: Traffic, capacity: int, xi: int) -> None:
    """Request by request, and block by block at the end."""
    done = replay(of, Gittins({"xi_tokens": xi}), capacity, tables=tripped(of))
    lru = replay(of, Lru(), capacity)
    assert done.hit_blocks.tolist() == lru.hit_blocks.tolist()
    assert done.evictions == lru.evictions
    assert np.array_equal(done.cached, lru.cached)


@pytest.mark.parametrize(("name", "blocks"), [("agent", 4_000), ("regime-change", 600)])
def test_a_tripped_guard_is_lru_in_an_engine(name: str, blocks: int) -> None:
    """There too, with requests side by side."""
    whole: Prompts = sample(name)
    prompts = select(whole, np.arange(min(len(whole.leaf), 2_000)))
    cost, size = StepCost(base_s=0.05), EngineSettings(blocks)
    tables = tripped(traffic(prompts, standard()))
    done = replay_engine(prompts, Gittins({"xi_tokens": 8192}), size, cost, tables=tables)
    lru = replay_engine(prompts, Lru(), size, cost)
    assert done.evictions == lru.evictions > 0
    assert done.hit_blocks.tolist() == lru.hit_blocks.tolist()


@pytest.mark.parametrize("most_blocks", [shadows.SHADOW_BLOCKS, 150])
@pytest.mark.parametrize("name", ["regime-change", "to-c"])
def test_the_future_changes_no_hit(
    name: str, most_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests find the same when none follow them, and when others do; with samples too."""
    monkeypatch.setattr(shadows, "SHADOW_BLOCKS", most_blocks)
    of = told(name)
    policy, capacity, half = Gittins({"xi_tokens": 2048}), 500, len(of.leaf) // 2
    whole = replay(of, policy, capacity, tables=ReturnsOffline().tables(of)).hit_blocks
    assert whole.any()
    again = replay(of, policy, capacity, tables=ReturnsOffline().tables(of)).hit_blocks
    assert again.tolist() == whole.tolist()
    before = first(of, half)
    alone = replay(before, policy, capacity, tables=ReturnsOffline().tables(before)).hit_blocks
    assert alone.tolist() == whole[:half].tolist()
    other = of._replace(leaf=of.leaf.copy(), length=of.length.copy())
    other.leaf[half:], other.length[half:] = of.leaf[0], of.length[0]
    changed = replay(other, policy, capacity, tables=ReturnsOffline().tables(other)).hit_blocks
    assert changed[:half].tolist() == whole[:half].tolist()
    assert changed[half:].tolist() != whole[half:].tolist()


def test_a_shadow_computes_what_its_candidate_would() -> None:
    """A cache that is small enough is replayed as it is: LRU's shadow is LRU."""
    of = told("regime-change")
    cost = ClassSetShadows(of, class_set_tables(of)).costs(Gittins({"xi_tokens": 0.0}), 500)
    cost, end = cost
    hits = replay(of, Lru(), 500).hit_blocks.astype(np.int64) * of.block_size
    assert cost[LRU].sum() == float((of.input_tokens - hits)[: end[-1]].sum())
    assert cost[NEED].tolist() == cost[LRU].tolist()  # all of it is needed
    assert cost[FIRST].sum() != cost[LRU].sum()


def test_a_large_cache_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By conversations, to a shadow of no more than so many blocks; the cost follows."""
    of = told("regime-change")
    judge, policy = ClassSetShadows(of, class_set_tables(of)), Gittins({"xi_tokens": 0.0})
    whole = judge.costs(policy, 800).tokens
    monkeypatch.setattr(shadows, "SHADOW_BLOCKS", 400)
    half = judge.costs(policy, 800).tokens
    assert half.sum() == pytest.approx(whole.sum() / 2, rel=0.1)
    assert half[FIRST].sum() / half[LRU].sum() == pytest.approx(
        whole[FIRST].sum() / whole[LRU].sum(), rel=0.03
    )


def test_conversations_go_on_where_they_ended() -> None:
    """The whole of a request continues it; what leaves it half-way begins anew."""
    of = chain([2, 4, 3, 6, 4], [0.0, 1.0, 2.0, 3.0, 4.0])
    assert first_turns(of, last_touch_segments(of)).tolist() == [0, 0, 2, 0, 4]


def test_classes_follow_the_set_in_force() -> None:
    """Those of the second set are numbered behind the first's; fallbacks keep the set before."""
    of = told("regime-change")
    judge = ClassSetShadows(of, class_set_tables(of))
    tables = judge.tables().chosen(Gittins({"xi_tokens": 0.0}), 500)
    assert tables.classes is not None
    assert tables.categories == LEVELS * ROWS
    since, taken = judge.taken(Gittins({"xi_tokens": 0.0}), 500)
    in_force = taken[np.searchsorted(since, np.arange(len(of.leaf)), side="right") - 1]
    assert {LRU, FIRST} <= set(in_force.tolist())
    row = np.searchsorted(tables.since, np.arange(len(of.leaf)), side="right") - 1
    nothing = np.all(tables.values[tables.rows] == 0, axis=(1, 2))
    assert np.array_equal(nothing[row], in_force == LRU)
    assert np.all(tables.classes[in_force == FIRST] < 12)
    assert np.all(tables.classes[in_force > FIRST] >= 12)


def test_drift_costs_less_with_a_guard() -> None:
    """Habits are traded half-way: no worse than LRU by 2 %, where without a guard it is by more."""
    of = told("regime-change")
    policy, capacity = Gittins({"xi_tokens": 0.0}), 853
    tables = ReturnsOffline().tables(of)
    late = of.arrival_s >= 3_600.0

    def computed(hit_blocks: NDArray[np.int32]) -> int:
        return int((of.input_tokens - hit_blocks.astype(np.int64) * of.block_size)[late].sum())

    lru = computed(replay(of, Lru(), capacity).hit_blocks)
    guarded = computed(replay(of, policy, capacity, tables=tables).hit_blocks)
    bare = replace(tables, choose=None)
    unguarded = computed(replay(of, policy, capacity, tables=bare).hit_blocks)
    assert guarded < 1.02 * lru < unguarded

"""Guards in the simulator and shadow caches in an engine judge alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.learning.guard import (
    FALLBACK,
    INTERVAL_REQUESTS,
    LEAST_INTERVALS,
    LOSS_INTERVALS,
    Guard,
    _Intervals,
    interval_blocks,
)
from kvscope.learning.lanes import Scores
from kvscope.learning.offline import shadow_replays as shadows
from kvscope.learning.offline.shadow_replays import Taken, first_turns, interval_ends
from kvscope.learning.returns.formulas import FIRST, LRU, NEED, ROWS
from kvscope.learning.returns.offline import ClassSetShadows, ReturnsOffline, class_set_tables
from kvscope.learning.shadow_cache import Kind, ShadowCache, ShadowCaches, ShadowRequest
from kvscope.policies.base import LanePolicy, Policy
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.threshold_lru import ThresholdLru
from kvscope.policies.tlru import TLru
from kvscope.policies.ttl import Ttl
from kvscope.replay.derived_traces import select
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables, replay
from kvscope.replay.traffic import Traffic, traffic
from kvscope.vllm_sim import EngineSettings, StepCost, replay_engine
from tests.golden.samples import sample
from tests.learning.test_learners import first, told
from tests.learning.test_returns_offline import chain
from tests.policies.traffics import CATEGORIES, long_traffic, traffics

EVEN = [100.0, 100.0, 100.0]
GOOD = [100.0, 90.0, 95.0]  # the second is the best, the third is better than the fallback


def judged(*rows: list[float], guard: Guard | None = None) -> list[int]:
    """Return the candidate in force after each interval, by what each computed in it."""
    guard = guard or Guard(len(rows[0]))
    after = []
    for row in rows:
        before = guard.now
        assert guard.judge(row) == (guard.now != before)
        after.append(guard.now)
    return after


def test_the_fallback_rules_until_there_is_evidence() -> None:
    """The first eight intervals tell nothing, and where all are alike there is never any."""
    assert judged(*[GOOD] * LEAST_INTERVALS) == [FALLBACK] * (LEAST_INTERVALS - 1) + [1]
    assert judged(*[EVEN] * 50) == [FALLBACK] * 50


def test_the_one_that_gains_most_is_taken() -> None:
    """Also instead of another one that gains."""
    other = [100.0, 99.0, 60.0]
    assert judged(*[GOOD] * 10, *[other] * 10)[-1] == 2


def test_a_gain_within_its_deviations_is_none() -> None:
    """One good interval in many is chance; a gain in each is not, however small."""
    lucky = [100.0, 0.0, 100.0]
    assert judged(*[EVEN] * 20, lucky, *[EVEN] * 20) == [FALLBACK] * 41
    assert judged(*[[100.0, 99.9, 100.0]] * 20)[-1] == 1
    guard = Guard(2)
    judged(*[[100.0, 90.0]] * 3, guard=guard)
    fades = 0.5 ** (1 / 16)
    assert guard.gain[1] == pytest.approx(10 * (1 + fades + fades**2))
    assert guard.deviation(1) == pytest.approx(25 * (1 + fades**2 + fades**4) ** 0.5)


def test_one_that_loses_is_given_up_within_a_turnover() -> None:
    """However much it gained before: eight intervals of an eighth of the cache later, at most."""
    worse = [100.0, 110.0, 110.0]
    after = judged(*[[100.0, 90.0, 100.0]] * 500, *[worse] * 8)
    assert after[499] == 1
    assert after[-1] == FALLBACK
    soon = judged(*[[100.0, 90.0, 100.0]] * 10, *[worse] * 8)
    assert soon.index(FALLBACK, 9) < after.index(FALLBACK, 499) - 490


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 20).map(float), min_size=3, max_size=3), min_size=1, max_size=200
    )
)
def test_what_it_can_lose_is_bounded(rows: list[list[float]]) -> None:
    """Whatever comes, one candidate in force loses at most eight times the largest difference."""
    lost = 0.0
    for (before, now), row in zip(pairwise([FALLBACK, *judged(*rows)]), rows, strict=True):
        lost = max(lost, 0.0) + row[before] - row[FALLBACK]
        assert lost <= LOSS_INTERVALS * 20.0
        if now != before:
            lost = 0.0


def test_the_bound_is_near() -> None:
    """After an endless row of the best intervals it takes the eight worst ones."""
    best, worst = [20.0, 0.0], [0.0, 20.0]
    after = judged(*[best] * 500, *[worst] * 8)
    assert after[499:] == [1] * 8 + [FALLBACK]


def test_evidence_can_be_void() -> None:
    """The choice stays, and eight intervals have to pass again."""
    guard = Guard(3)
    assert judged(*[GOOD] * 9, guard=guard)[-1] == 1
    guard.forget()
    worse = [100.0, 110.0, 120.0]
    assert judged(*[worse] * 8, guard=guard) == [1] * (LEAST_INTERVALS - 1) + [FALLBACK]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=150),
    st.sampled_from((0.5, 10.0, 100.0)),
)
def test_intervals_end_where_one_has_computed_enough(
    blocks: list[list[int]], least_blocks: float
) -> None:
    """Request by request as from all at once: sixteen requests, and some shadow so many blocks."""
    counted, ends, since = _Intervals(2, least_blocks), list[int](), 0
    for number, row in enumerate(blocks, start=1):
        done = counted.add(row, [2.0 * count for count in row])
        if done is not None:
            ends.append(number)
            assert done == [2.0 * sum(column) for column in zip(*blocks[since:number], strict=True)]
            assert number - since >= INTERVAL_REQUESTS
            since = number
    columns = np.array(blocks, dtype=np.int64).reshape(-1, 2).T
    assert interval_ends(columns, least_blocks).tolist() == ends


def test_eight_intervals_are_a_turnover() -> None:
    """As the bound says: what a shadow computes in them fills the cache once."""
    assert LOSS_INTERVALS * interval_blocks(800) == 800


POLICIES: dict[str, LanePolicy] = {
    "gittins": Gittins({"xi_tokens": 5}),
    "gittins hits": Gittins({"xi_tokens": 0}),
    "gittins ttl": Gittins({"xi_tokens": 5, "ttl_s": 3.0}),
    "lru": Lru(),
    "tlru": TLru({"xi_tokens": 5, "next_prompt_tokens": 2}),
    "threshold-lru": ThresholdLru({"threshold_tokens": 9}),
    "ttl": Ttl({"ttl_s": 2.0}),
}
PARTS = 3
UNCUT: Kind = (0, ())


def visits(of: Traffic, kinds: list[list[Kind]]) -> Iterator[ShadowRequest]:
    """Yield the requests of a trace, with the segments of their paths."""
    moved = last_touch_segments(of)
    start = moved.start
    for number, arrival_s in enumerate(of.arrival_s.tolist()):
        taken = range(moved.starts[number], moved.starts[number + 1])
        segments = [(int(start[k]), int(moved.end[k]), int(moved.previous[k])) for k in taken]
        blocks = int(of.length[number] + of.anonymous[number])
        history = int(of.history_tokens[number])
        kind = [each[number] for each in kinds]
        yield ShadowRequest(number, arrival_s, segments, blocks, history, kind)


def sound(shadow: ShadowCache) -> None:
    """Sizes are those of the runs, and no more; knots count the runs that hang from them."""
    runs, sizes, hanging = shadow._runs, 0, dict[int, int]()
    for at in range(runs.slots):
        if shadow.end[at] > runs.first[at]:
            sizes += shadow.end[at] - runs.first[at]
            knot = runs.parent[at]
            if knot is not None:
                hanging[id(knot)] = hanging.get(id(knot), 0) + 1
    assert shadow.blocks == sizes <= shadow.capacity
    known = {id(knot): knot.children[shadow._which] for each in runs.branches for knot in each}
    assert {one: count for one, count in known.items() if count} == hanging


def compared(of: Traffic, policy: LanePolicy, capacity: int, seed: int) -> NDArray[np.int32]:
    """Two shadows with classes and tables of their own beside two replays; the hits of one."""
    rng = np.random.default_rng(seed)
    classes = [rng.integers(CATEGORIES - 1, size=len(of.leaf)) for _ in range(2)]
    longest = int((of.length + of.anonymous).max()) + 2
    cuts = np.sort(rng.integers(longest, size=(2, len(of.leaf), PARTS - 1)), axis=-1)
    kinds = [
        list(zip(of_shadow.tolist(), map(tuple, places.tolist()), strict=True))
        for of_shadow, places in zip(classes, cuts, strict=True)
    ]
    values = rng.lognormal(-4.0, 2.0, (2, LEVELS * CATEGORIES * PARTS, AGES))
    shadows = ShadowCaches(2, policy, of.block_size, capacity)
    shadows.use([Scores(each) for each in values])
    found = [shadows.serve(one) for one in visits(of, kinds)]
    for which, shadow in enumerate(shadows.each):
        sound(shadow)
        since, columns = np.zeros(1, dtype=np.int64), (classes[which], cuts[which])
        tables = Tables.of(since, values[which][None], *(x.astype(np.int32) for x in columns))
        expected = replay(of, policy, capacity, tables=tables).hit_blocks
        assert np.minimum([each[which] for each in found], of.look).tolist() == expected.tolist()
    return expected


@settings(deadline=None, max_examples=120)
@given(traffics(), st.integers(1, 30), st.sampled_from(sorted(POLICIES)), st.integers(0, 99))
def test_small_tries(of: Traffic, capacity: int, name: str, seed: int) -> None:
    """Branches, repeats, ties, classes and tables of any kind."""
    compared(of, POLICIES[name], capacity, seed)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("capacity", [25, 150])
def test_at_length(capacity: int, name: str) -> None:
    """Thousands of requests over a deep trie, with many that hang from each other."""
    assert compared(long_traffic(3000, 7), POLICIES[name], capacity, 5).any()


def test_runs_are_forgotten_in_little_memory() -> None:
    """Of the latest 64 requests alone: what others had touched last is gone."""
    of = long_traffic(3000, 7)
    shadows = ShadowCaches(2, Gittins({"xi_tokens": 0}), of.block_size, 5000, slots=64)
    shadows.use([Scores(np.ones((2, AGES)))] * 2)
    nothing = [[UNCUT] * len(of.leaf)] * 2
    some = 0
    for one in visits(of, nothing):
        some += sum(shadows.serve(one))
        if one.number % 100 == 0:
            for shadow in shadows.each:
                sound(shadow)
    lanes = [len(heap) for shadow in shadows.each for heap in shadow._heaps]
    assert some > 0
    assert max(lanes) <= 2 * 64 + 64


@settings(deadline=None, max_examples=80)
@given(traffics(), st.integers(1, 30), st.randoms(use_true_random=False), st.integers(0, 99))
def test_what_does_not_fit_does_no_harm(
    of: Traffic, capacity: int, draw: object, seed: int
) -> None:
    """Stretches at wrong places, of wrong givers, of requests that leave nothing: sizes stay."""
    assert hasattr(draw, "randrange")
    rng = np.random.default_rng(seed)
    shadows = ShadowCaches(2, Gittins({"xi_tokens": 5}), of.block_size, capacity, slots=8)
    shadows.use([Scores(each) for each in rng.lognormal(-4.0, 2.0, (2, LEVELS, AGES))])
    for one in visits(of, [[UNCUT] * len(of.leaf)] * 2):
        wrong = []
        for start, end, _ in one.segments:
            begin = max(start + draw.randrange(-1, 2), 0)
            wrong.append((begin, max(end + draw.randrange(-1, 3), begin), draw.randrange(9)))
        shadows.serve(one._replace(segments=wrong, served=draw.randrange(4) > 0))
        for shadow in shadows.each:
            sizes = [
                max(end - first, 0)
                for end, first in zip(shadow.end, shadows._runs.first, strict=True)
            ]
            assert shadow.blocks == sum(sizes) <= capacity


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

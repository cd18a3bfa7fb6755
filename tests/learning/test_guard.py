"""Guards in the simulator and shadow caches in an engine judge alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.characterize.distributions import Windows
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.latency.profile import PRESETS
from kvscope.learning.evidence import (
    CHANCE,
    FALLBACK,
    LEAST_REQUESTS,
    Goal,
    GuardEvidence,
    decided,
    largest_loss,
    note_request,
    sure_gain,
)
from kvscope.learning.lanes import Scores
from kvscope.learning.offline import shadow_replays as shadows
from kvscope.learning.offline.shadow_replays import Computed, GuardedShadows, Taken, first_turns
from kvscope.learning.offline.shadow_replays import judged as judged_all
from kvscope.learning.returns.formulas import LRU, NEED, OWN, ROWS, WORTHS
from kvscope.learning.returns.offline import ReturnsOffline, class_tables, guarded_shadows
from kvscope.learning.shadow_cache import Kind, ShadowCache, ShadowCaches, ShadowRequest
from kvscope.policies.base import LanePolicy, Policy
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.policies.lru import Lru, ThresholdLru, Ttl
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa
from kvscope.replay.derived_traces import at_rate, select
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables, replay
from kvscope.replay.settings import run_setting
from kvscope.replay.sweep import make_run, serve_replay
from kvscope.replay.traffic import Traffic, traffic
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.routers.balancers import RoundRobin
from kvscope.vllm_sim import EngineSettings, StepCost, replay_engine
from tests.golden.samples import sample
from tests.learning.test_learners import told
from tests.policies.drawn import left
from tests.policies.traffics import CATEGORIES, chain, first, long_traffic, traffics

GOAL = Goal(capacity_blocks=1e9, xi_tokens=0.0, slo_tokens=0.0, tokens_per_s=0.0)
"""Of a cache so large that nothing fades."""
EVEN, GOOD = [100.0, 100.0, 100.0], [100.0, 90.0, 95.0]  # the second is the best candidate


def judged(
    *rows: list[float], goal: Goal = GOAL, apart_s: float = 1.0, begun: GuardEvidence | None = None
) -> tuple[list[int], GuardEvidence]:
    """Return the candidate in force after each request, by the tokens of each, and what is known.

    One block is computed for each request.
    """
    evidence = (begun or GuardEvidence.none(len(rows[0]))).each(np.ndarray.tolist)
    now, after = decided(evidence, FALLBACK), list[int]()
    for row in rows:
        note_request(evidence, goal, apart_s, [1] * len(row), row)
        now = decided(evidence, now)
        after.append(now)
    return after, evidence


def test_the_fallback_rules_until_there_is_evidence() -> None:
    """Where all are alike there is never any; a gain with each request is sure after four."""
    assert judged(*[EVEN] * 50)[0] == [FALLBACK] * 50
    after, _ = judged(*[GOOD] * 8)
    assert after == [FALLBACK] * 4 + [1] * 4


def test_the_one_that_gains_most_is_taken() -> None:
    """Also instead of another one that gains, once it has gained 2 % more."""
    other = [100.0, 99.0, 60.0]
    assert judged(*[GOOD] * 10, *[other] * 10)[0][-1] == 2
    near = [100.0, 90.0, 88.0]
    close, far = (judged(*[[100.0, 90.0, 91.0]] * 10, *[near] * many)[0] for many in (6, 20))
    assert close[-1] == 1
    assert far[-1] == 2


def test_a_single_gain_is_chance() -> None:
    """However large; many small ones are not."""
    lucky = [100.0, 0.0, 100.0]
    assert set(judged(*[EVEN] * 20, lucky, *[EVEN] * 20)[0]) == {FALLBACK}
    assert judged(*[[100.0, 99.9, 100.0]] * 20)[0][-1] == 1


def test_what_is_older_counts_less() -> None:
    """Half after four turnovers of the cache, its square a quarter; no turnover is too short."""
    goal = GOAL._replace(capacity_blocks=1000.0)
    requests = 4 * 1000
    _, known = judged([100.0, 60.0], *[[100.0, 100.0]] * requests, goal=goal)
    assert known.gain[1] == pytest.approx(20.0)
    assert known.square[1] == known.largest[1] == pytest.approx(400.0)
    _, known = judged([100.0, 140.0], *[[100.0, 100.0]] * (requests // 2), goal=goal)
    assert known.loss[1] == pytest.approx(20.0)  # losses in two
    tiny = GOAL._replace(capacity_blocks=1.0)
    _, known = judged([100.0, 60.0], *[[100.0, 100.0]] * (4 * LEAST_REQUESTS), goal=tiny)
    assert known.gain[1] == pytest.approx(20.0)


def test_chance_takes_up_no_more_than_a_third() -> None:
    """Of streams in which gains are as likely as equal losses, however heavy their tails."""
    draw = np.random.default_rng(5)
    taken = 0
    for _ in range(300):
        tokens = 1000.0 + draw.pareto(1.5, 400) * draw.choice([-1.0, 1.0], 400)
        after, _ = judged(*np.stack((np.full(400, 1000.0), tokens), axis=1).tolist())
        taken += any(after)
    assert 0.03 * 300 < taken <= CHANCE * 300


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 20).map(float), min_size=3, max_size=3), min_size=1, max_size=200
    )
)
def test_what_it_can_lose_is_bounded(rows: list[list[float]]) -> None:
    """Whatever comes: since it was best, one candidate in force loses what is stated at most."""
    evidence, now, lost = GuardEvidence.none(3).each(np.ndarray.tolist), FALLBACK, 0.0
    for row in rows:
        before = now
        note_request(evidence, GOAL, 1.0, [1] * 3, row)
        now = decided(evidence, now)
        if before == FALLBACK:
            continue
        lost = max(lost, 0.0) + row[before] - row[FALLBACK]
        if now == before:
            assert lost * (1 - 1e-6) <= evidence.loss[now] <= largest_loss(evidence, now)
        else:
            lost = 0.0


def test_one_that_loses_is_given_up() -> None:
    """After an endless row of gains by a few losses of their size; after a short row sooner."""
    best, worst = [20.0, 0.0], [0.0, 20.0]
    goal = GOAL._replace(capacity_blocks=100.0)
    long_ago, soon = (judged(*[best] * many, *[worst] * 40, goal=goal)[0] for many in (5_000, 8))
    assert long_ago[4_999] == soon[7] == 1
    assert 20 < long_ago.index(FALLBACK, 4_999) - 4_999 < 40
    assert soon.index(FALLBACK, 7) - 7 < 8


@pytest.mark.parametrize("capacity", [100.0, 10_000.0, 1e9])
@pytest.mark.parametrize("steady", [True, False])
def test_who_knows_the_guard_gains_little(capacity: float, steady: bool) -> None:
    """Traffic that turns against whatever is in force: less than half of what it could take.

    That is what a candidate in force would lose all the time; the other half is LRU's.
    """
    draw, goal = np.random.default_rng(7), GOAL._replace(capacity_blocks=capacity)
    known, now, lost, could = GuardEvidence.none(2).each(np.ndarray.tolist), FALLBACK, 0.0, 0.0
    for _ in range(5_000):
        difference = 10.0 if steady else float(draw.exponential(10.0))
        own = 100.0 - difference if now == FALLBACK else 100.0 + difference
        lost += [0.0, difference][now]
        could += difference
        note_request(known, goal, 1.0, [10, 10], [100.0, own])
        now = decided(known, now)
    assert 0.3 * could < lost < 0.5 * could


LATE = GOAL._replace(slo_tokens=50.0, xi_tokens=10.0)


def test_a_gain_that_makes_requests_late_is_none() -> None:
    """Fewer tokens in all, but more requests beyond the SLO's: it is not taken up."""
    spread, few = [[45.0, 60.0]] * 3, [[300.0, 60.0]]
    rows = (spread + few) * 10
    assert judged(*rows, goal=LATE._replace(slo_tokens=0.0))[0][-1] == 1
    after, known = judged(*rows, goal=LATE)
    assert set(after) == {FALLBACK}
    assert known.late[1] == pytest.approx(-30.0)
    assert judged(*[[60.0, 20.0]] * 10, *rows, goal=LATE)[0][-1] == FALLBACK


def test_requests_wait_for_each_other() -> None:
    """Where an engine computes 40 tokens a second, 45 a second make every request late."""
    rows = [[30.0, 45.0, 30.0], [100.0, 45.0, 30.0]] * 20
    goal = LATE._replace(tokens_per_s=40.0, slo_tokens=120.0)
    _, known = judged(*rows, goal=goal)
    assert known.backlog == pytest.approx([1100.0 + 60.0, 45.0 + 39 * 5.0, 30.0], abs=130)
    assert known.late[1] != 0.0
    _, idle = judged(*rows, goal=goal, apart_s=100.0)
    assert idle.late == [0.0] * 3
    assert idle.backlog == [100.0, 45.0, 30.0]


SURE = {"gain": 400.0, "square": 10_000.0, "largest": 100.0}


def known_of(**sums: float) -> GuardEvidence:
    """Return evidence of one candidate beside LRU."""
    lists = {name: [0.0, sums.get(name, 0.0)] for name in GuardEvidence._fields}
    return GuardEvidence(**lists)  # type: ignore[arg-type]


def test_a_guard_at_its_bounds() -> None:
    """What keeps it from switching, and what makes it revert: just below and just above."""
    known = known_of(**SURE)
    gain, most = sure_gain(known, 1), largest_loss(known, 1)
    assert gain == pytest.approx((10_100 * (2 * np.log(3) + np.log(101))) ** 0.5)
    assert most == pytest.approx(1.5 * 10_100**0.5)
    for changed, taken, kept in (
        ({}, 1, 1),
        ({"gain": gain * 0.99}, 0, 1),
        ({"loss": most * 0.49}, 1, 1),
        ({"loss": most * 0.51}, 0, 1),
        ({"loss": most * 1.01}, 0, 0),
        ({"late": -0.5, "late_square": 8.0}, 0, 1),
        ({"late": -2.9, "late_square": 8.0}, 0, 1),
        ({"late": -3.1, "late_square": 8.0}, 0, 0),
        ({"gain": -1.0}, 0, 0),
        ({"square": 0.0, "largest": 0.0}, 0, 1),
    ):
        known = known_of(**SURE | changed)
        assert (decided(known, 0), decided(known, 1)) == (taken, kept), changed


def test_evidence_of_another_day_is_half_of_it() -> None:
    """Squares are a quarter, so that it is as sure; nothing waits."""
    known = known_of(**SURE, loss=8.0, late=6.0, late_square=12.0, backlog=99.0).each(np.array)
    halved = [float(sums[1]) for sums in known.discounted()]
    assert halved == [200.0, 2_500.0, 25.0, 4.0, 3.0, 3.0, 0.0]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from((0.0, 3e4)), st.sampled_from((0.0, 6e4)))
def test_a_kernel_judges_as_an_engine_does(seed: int, slo: float, rate: float) -> None:
    """The same candidate in force before every request, from the same evidence."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 500, (300, 3))
    tokens = np.maximum(blocks * 16.0 - draw.integers(0, 16, 300)[:, None], 0.0)
    arrival_s = np.cumsum(draw.exponential(0.1, 300))
    goal = Goal(2_000.0, 512.0, slo, rate)
    known = GuardEvidence.none(3)
    in_force = judged_all(Computed(np.arange(300), arrival_s, blocks, tokens, 1.0), goal, known)
    lists, now, before_s = GuardEvidence.none(3).each(np.ndarray.tolist), FALLBACK, 0.0
    for at, at_s in enumerate(arrival_s.tolist()):
        assert in_force[at] == now
        note_request(lists, goal, at_s - before_s, blocks[at].tolist(), tokens[at].tolist())
        now, before_s = decided(lists, now), at_s
    assert in_force[-1] == now
    for found, expected in zip(known, lists, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


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


class Tripped(GuardedShadows):
    """Shadows that say LRU, whatever happens."""

    def taken(self, policy: Policy, capacity_blocks: int) -> Taken:
        """LRU from the first request on."""
        return Taken(np.array([0]), np.array([LRU]))


def tripped(of: Traffic) -> Tables:
    """Tables whose guard is always tripped."""
    alike = np.repeat(np.array(WORTHS)[:, None], AGES, axis=1)
    return Tripped(of, class_tables(of, 4.0), alike, lanes=LEVELS).tables()


@QUICK
@given(traffics(), st.integers(0, 30), st.sampled_from((0, 1, 5, 16)))
def test_a_tripped_guard_is_lru(of: Traffic, capacity: int, xi: int) -> None:
    """Request by request, and block by block at the end."""
    done = replay(of, Gittins({"xi_tokens": xi}), capacity, tables=tripped(of))
    lru = replay(of, Lru(), capacity)
    assert done.hit_blocks.tolist() == lru.hit_blocks.tolist()
    assert done.evictions == lru.evictions
    assert left(of, done) == left(of, lru)


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
    cost = guarded_shadows(of, class_tables(of)).computed(Gittins({"xi_tokens": 0.0}), 500).tokens.T
    hits = replay(of, Lru(), 500).hit_blocks.astype(np.int64) * of.block_size
    assert cost[LRU].tolist() == (of.input_tokens - hits).tolist()
    assert cost[NEED].tolist() == cost[LRU].tolist()  # all of it is needed
    assert cost[OWN].sum() != cost[LRU].sum()


def test_a_large_cache_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By conversations, to a shadow of no more than so many blocks; the cost follows."""
    of = told("regime-change")
    judge, policy = guarded_shadows(of, class_tables(of)), Gittins({"xi_tokens": 0.0})
    whole = judge.computed(policy, 800).tokens.sum(axis=0)
    monkeypatch.setattr(shadows, "SHADOW_BLOCKS", 400)
    half = judge.computed(policy, 800).tokens.sum(axis=0)
    assert half.sum() == pytest.approx(whole.sum() / 2, rel=0.1)
    assert half[OWN] / half[LRU] == pytest.approx(whole[OWN] / whole[LRU], rel=0.03)


def test_an_engine_serves_a_sample_as_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the conversations, in half of the cache, by half of what it computes in a second."""
    goals = list[Goal]()
    monkeypatch.setattr(shadows, "SHADOW_BLOCKS", 400)

    def judging(done: Computed, goal: Goal, known: GuardEvidence) -> NDArray[np.int64]:
        goals.append(goal)
        return judged_all(done, goal, known)

    monkeypatch.setattr(shadows, "judged", judging)
    of = told("regime-change")
    policy = Gittins({"xi_tokens": 64, "slo_tokens": 4_000, "tokens_per_s": 1_000})
    guarded_shadows(of, class_tables(of)).taken(policy, 800)
    assert goals == [Goal(400.0, 64.0, 4_000.0, 500.0)]
    assert Goal.of(Wa({"slo_tokens": 4_000}).values, 800.0).xi_tokens == 2_000.0


def test_an_engine_s_pace_decides() -> None:
    """How many tokens an engine computes in a second decides, alone and in a fleet."""
    values = {"xi_tokens": 1_024, "slo_tokens": 8_000, "tokens_per_s": 12_000}
    policy, slow = Gittins(values), Gittins(values | {"tokens_per_s": 1_200_000})
    setting = run_setting(standard(), PRESETS["llama2-7b-a100"], slo_s=0.5)
    setting = replace(
        setting, capacity_model="engine", max_num_seqs=64, max_num_batched_tokens=4_096
    )
    prompts, windows = at_rate(select(sample("to-c"), np.arange(1_500)), 20), Windows(1e6, 1)
    stated = Workload(prompts, setting, windows)
    runs = [make_run(stated, ReplayRequest(each, 12_000)) for each in (policy, slow)]
    assert runs[0].outcome != runs[1].outcome
    of = FleetSweep(stated, 12_000, Slo(0.5, 0.95))
    found = of._tables(Fleet(RoundRobin(), policy, 100), 12_000)
    for other, alike in ((slow, True), (policy, False)):
        expected = stated.tables(policy).chosen(other, 12_000)
        assert np.array_equal(found.since, expected.since) == alike
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 4_096}
    fleet = FleetSweep(stated, 4_000, Slo(0.5, 0.95), engine=EngineSettings(4_000, **limits))
    done = fleet.replay(Fleet(RoundRobin(), policy, 3))
    for replica in range(3):  # each has a guard of its own
        own = np.flatnonzero(done.replica == replica)
        part = Workload(select(prompts, own), setting, windows)
        alone = serve_replay(part, ReplayRequest(policy, 4_000)).served
        assert alone.queued_ttft_s is not None
        np.testing.assert_allclose(done.ttft_s[own], alone.queued_ttft_s, rtol=1e-6)


def test_conversations_go_on_where_they_ended() -> None:
    """The whole of a request continues it; what leaves it half-way begins anew."""
    of = chain([2, 4, 3, 6, 4], [0.0, 1.0, 2.0, 3.0, 4.0])
    assert first_turns(of, last_touch_segments(of)).tolist() == [0, 0, 2, 0, 4]


def test_tables_are_those_of_the_candidate_in_force() -> None:
    """Its own, of the latest refit, or equal worths of all classes."""
    of = told("regime-change")
    own = class_tables(of)
    judge, policy = guarded_shadows(of, own), Gittins({"xi_tokens": 0.0})
    tables = judge.tables().chosen(policy, 500)
    assert tables.categories == LEVELS * ROWS
    since, taken = judge.taken(policy, 500)
    requests = np.arange(len(of.leaf))
    in_force = taken[np.searchsorted(since, requests, side="right") - 1]
    assert {LRU, OWN} <= set(in_force.tolist())
    for request in requests[::20].tolist():
        found = tables.at(int(np.searchsorted(tables.since, request, side="right")) - 1)
        refit = int(np.searchsorted(own.since, request, side="right")) - 1
        worth = [np.zeros_like(found), np.ones_like(found), own.at(refit)]
        assert np.array_equal(found, worth[in_force[request]])


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

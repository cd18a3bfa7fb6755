"""The plugin's guard decides as the simulator's, and no error of its shadows reaches the engine."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvscope.core.hits import standard
from kvscope.learning import guard as guarding
from kvscope.learning.evidence import Goal, GuardEvidence, decided, note_request
from kvscope.learning.guard import OnlineGuard
from kvscope.learning.lanes import Scores
from kvscope.learning.offline.learners import plugin_tables
from kvscope.learning.recent_blocks import RecentBlocks
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import LRU, OWN, ROWS, WINDOW_BINS, bin_requests
from kvscope.learning.returns.offline import ReturnsOffline, class_tables, guarded_shadows
from kvscope.learning.returns.online import ReturnsLearner
from kvscope.learning.shadow_cache import ShadowCache
from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.policies.lru import Lru, ThresholdLru
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa
from kvscope.replay.derived_traces import select
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.replay.traffic import Traffic, traffic
from kvscope.vllm_sim import EngineReplay, EngineSettings, StepCost, replay_engine
from tests.golden.samples import SAMPLES, sample
from tests.learning.test_guard import sound
from tests.long import long
from tests.vllm_plugin.alone import Alone
from tests.vllm_plugin.fakes import FakeRequest, asked_in

EVERY = 1024.0  # no sample has more requests than are remembered then
NO_TIME = StepCost(base_s=1e-15)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[float]]:
    """Return a list that the tokens of each request that guards note are added to."""
    costs = list[Sequence[float]]()

    def noting(
        known: GuardEvidence, goal: Goal, passed_s: float, blocks: object, tokens: Sequence[float]
    ) -> None:
        costs.append(tokens)
        note_request(known, goal, passed_s, blocks, tokens)

    monkeypatch.setattr(guarding, "note_request", noting)
    return costs


def watched(
    of: Traffic,
    policy: LanePolicy,
    capacity: int,
    candidates: tuple[Tables, ...],
    monkeypatch: pytest.MonkeyPatch,
    every: int = 1,
) -> tuple[NDArray[np.float64], list[int], GuardEvidence]:
    """Return the tokens that an engine's guard counts (R x C), what is in force, what it knows.

    With the classes and tables of the simulator's candidates, and `every`-th blocks alone.
    """
    kinds = []
    for one in candidates[1:]:
        assert one.cuts is not None
        cuts = map(tuple, one.cuts.tolist())
        kinds.append(list(zip(one.category(of).tolist(), cuts, strict=True)))
    tables = [[Scores(one.at(at)) for at in range(len(one.since))] for one in candidates]
    familiar = RecentBlocks(WINDOW_BINS * bin_requests(EVERY), most_keys=1 << 30)
    made = OnlineGuard(
        policy,
        of.block_size,
        capacity,
        tuple(each[0] for each in tables),
    )
    familiar.every = made.every = every
    made._begin(0)
    costs, taken = noted(monkeypatch), list[int]()
    for number, (one, arrival_s) in enumerate(asked_in(of)):
        rows = [np.searchsorted(one.since, number, side="right") - 1 for one in candidates]
        made.use(tuple(each[row] for each, row in zip(tables, rows, strict=True)))
        taken.append(made.now)
        full = one.num_prompt_tokens // of.block_size
        seen = familiar.arrive(one.block_hashes[:full], arrival_s)
        kind = [None, *(each[number] for each in kinds)]
        made.arrive(
            seen, kind, one.num_prompt_tokens, arrival_s, familiar.every, familiar.forgotten
        )
        blocks, segments = familiar.end(one.block_hashes[full:], number)
        made.end(number, one.num_tokens - one.num_prompt_tokens, blocks, segments)
    for shadow in made.shadows.each:
        sound(shadow)
    return np.array(costs, dtype=np.float64), taken, made.evidence


@pytest.mark.parametrize(
    ("name", "share", "xi"),
    [
        ("to-c", 0.01, 2048),
        ("to-b", 0.1, 0),
        ("regime-change", 0.1, 0),
        *(long(name, share, xi) for name in SAMPLES for share in (0.01, 0.1) for xi in (0, 2048)),
    ],
)
def test_shadows_compute_what_the_simulators_do(
    name: str, share: float, xi: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request by request, each candidate; so the same one is in force, from the same request."""
    of = traffic(sample(name), standard())
    values = {"xi_tokens": xi, "slo_tokens": 6000, "tokens_per_s": 3000}
    policy, capacity = Gittins(values), int(share * len(of.block_parent))
    judge = guarded_shadows(of, class_tables(of, EVERY))
    expected = judge.computed(policy, capacity)
    costs, taken, known = watched(of, policy, capacity, judge.candidates, monkeypatch)
    assert np.array_equal(costs, expected.tokens)
    for found, sums in zip(known, judge.evidence(policy, capacity), strict=True):
        np.testing.assert_allclose(found, sums, rtol=1e-9, atol=1e-9)
    since, candidate = judge.taken(policy, capacity)
    row = np.searchsorted(since, np.arange(len(of.leaf)), side="right") - 1
    assert taken == candidate[row].tolist()
    assert expected.tokens.any()


@pytest.mark.parametrize(
    ("name", "off", "xi"),
    [("to-c", 0.01, 2048), ("to-b", 0.03, 0), long("to-c", 0.01, 0), long("to-b", 0.03, 2048)],
)
def test_every_fourth_block_tells_as_much(
    name: str, off: float, xi: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a sample of the blocks candidates compute what they do by all, relative to LRU.

    Of the short paths of `to-b` few blocks are followed, hence it is less exact there.
    """
    of = traffic(sample(name), standard())
    policy, capacity = Gittins({"xi_tokens": xi}), len(of.block_parent) // 50
    judge = guarded_shadows(of, class_tables(of, EVERY))

    def beyond(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.maximum(tokens - xi, 0.0).sum(axis=0))

    expected = beyond(judge.computed(policy, capacity).tokens)
    costs, *_ = watched(of, policy, capacity, judge.candidates, monkeypatch, every=4)
    computed = beyond(costs)
    assert computed / computed[LRU] == pytest.approx(expected / expected[LRU], rel=off)
    assert computed.tolist() != expected.tolist()


def alone(policy: LanePolicy, capacity: int, tables: Tables = NO_TABLES) -> EngineReplay:
    """Serve the sample `regime-change` on the simulated engine, one request at a time."""
    size = EngineSettings.one_at_a_time(capacity)
    return replay_engine(sample("regime-change"), policy, size, NO_TIME, tables=tables)


@cache
def first_half(xi_tokens: float, capacity: int) -> FittedReturns:
    """Return a fit of `gittins` to that sample before its habits change, and evidence."""
    prompts = sample("regime-change")
    half = select(prompts, np.flatnonzero(prompts.arrival_s < 3_600.0))
    policy = Gittins({"xi_tokens": xi_tokens})
    return ReturnsOffline().fit(traffic(half, standard()), policy, capacity)


def unwatched(of: Traffic, fitted: FittedReturns) -> Tables:
    """Return the tables of a replay that goes by one fit for good, without a guard."""
    classes = class_tables(of, EVERY).classes
    return Tables.of(np.zeros(1, dtype=np.int64), fitted.values[None], classes)


@pytest.mark.parametrize(
    ("xi", "capacity", "refits"),
    [
        (0, 853, None),
        (0, 853, True),
        (2048, 600, False),
        long(0, 853, False),
        long(2048, 600, None),
        long(2048, 600, True),
    ],
)
def test_every_block_leaves_as_the_simulator_says(
    xi: int, capacity: int, refits: bool | None
) -> None:
    """By one fit, by fits on the way, or from nothing: the guard's choices are the same."""
    of, policy = traffic(sample("regime-change"), standard()), Gittins({"xi_tokens": xi})
    fit, fitted = first_half(xi, capacity), None
    assert fit.evidence is not None
    assert decided(fit.evidence, LRU) == OWN  # in force from the first request on
    if refits is not None:
        fitted = FittedReturns(fit.index, 1_000, refits=refits, evidence=fit.evidence)
    served = Alone(policy, of.block_size, capacity, fitted).serve(of)
    expected = alone(policy, capacity, plugin_tables(of, policy, fitted))
    assert not served.steering.broken
    assert served.hits == expected.hit_blocks.tolist()
    assert served.steering.free.evictions == expected.evictions
    bare = unwatched(of, fit)
    assert served.hits != alone(policy, capacity, bare).hit_blocks.tolist()


GUARDED = (
    (TLru({"xi_tokens": 2048, "guard": 1}), 853),
    long(TLru({"xi_tokens": 2048, "guard": 1}, leaves="any"), 853),
    long(TLru({"xi_tokens": 2048, "guard": 1, "ttl_s": 300}), 853),
    (ThresholdLru({"threshold_tokens": 1500, "guard": 1}), 600),
    (Wa({"guard": 1}), 600),
    long(Wa({"guard": 1, "refit_s": 60}), 600),
)


@pytest.mark.parametrize(("policy", "capacity"), GUARDED)
def test_a_policy_with_a_guard_evicts_as_the_simulator_says(
    policy: LanePolicy, capacity: int
) -> None:
    """Its own order where the guard takes it, else LRU: the same choices, hits and evictions."""
    of = traffic(sample("regime-change"), standard())
    tables = plugin_tables(of, policy, None)
    served = Alone(policy, of.block_size, capacity).serve(of, types=of.category.tolist())
    expected = alone(policy, capacity, tables)
    assert not served.steering.broken
    assert served.hits == expected.hit_blocks.tolist()
    assert served.steering.free.evictions == expected.evictions
    assert served.hits != alone(Lru(), capacity).hit_blocks.tolist()
    bare = type(policy)(policy.values | {"guard": 0.0}, policy.evicts)
    assert served.hits != alone(bare, capacity, tables).hit_blocks.tolist()


@pytest.mark.parametrize(("xi", "capacity"), [(0, 853), long(2048, 853)])
def test_the_guard_falls_back_where_habits_change(
    xi: int, capacity: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A table of the habits before: with the guard less has to be computed than without one."""
    of, policy = traffic(sample("regime-change"), standard()), Gittins({"xi_tokens": xi})
    fitted = dataclasses.replace(first_half(xi, capacity), evidence=None)
    with caplog.at_level(logging.INFO):
        served = Alone(policy, of.block_size, capacity, fitted).serve(of)
    lines = [record.getMessage() for record in caplog.records]
    assert "switches from LRU to return times: in the shadow caches, return times has" in lines[0]
    assert any("switches from return times to" in one for one in lines)
    late = of.arrival_s >= 3_600.0

    def beyond(hit_blocks: list[int]) -> float:
        hit_tokens = np.array(hit_blocks, dtype=np.int64) * of.block_size
        return float(np.maximum(of.input_tokens - hit_tokens - xi, 0)[late].sum())

    bare = alone(policy, capacity, unwatched(of, fitted)).hit_blocks.tolist()
    lru = beyond(alone(Lru(), capacity).hit_blocks.tolist())
    assert beyond(served.hits) < 1.02 * lru
    assert beyond(served.hits) < 0.99 * beyond(bare)


def learner(of: Traffic, capacity: int, **values: float) -> ReturnsLearner:
    """Return a learner with its guard."""
    made = ReturnsLearner(Gittins({"xi_tokens": 2048} | values), of.block_size, None)
    made.guard(capacity)
    return made


def side_by_side(
    made: ReturnsLearner, of: Traffic, most: int, each: Callable[[], object], lost: float = 0.05
) -> None:
    """Serve a trace, so many requests at a time, which end in any order; some are given up."""
    draw, running = random.Random(1), list[tuple[FakeRequest, object]]()
    for one, arrival_s in asked_in(of):
        _, asked = made.arrive(one, arrival_s)
        running.append((one, asked))
        while len(running) > most or (running and draw.random() < 0.3):
            done, known = running.pop(draw.randrange(len(running)))
            if draw.random() < lost:
                made.forget(known)  # type: ignore[arg-type]
            else:
                made.end(done, known)  # type: ignore[arg-type]
        each()
    for done, known in running:
        made.end(done, known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "most"), [("to-c", 8), ("agent", 200), long("to-c", 200), long("agent", 8)]
)
def test_many_at_a_time(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends when, or not at all: sizes stay sums of runs, and few requests wait."""
    monkeypatch.setattr(guarding, "MOST_WAITING", 100)
    of = traffic(sample(name), standard())
    made = learner(of, len(of.block_parent) // 20)
    guard = made.online_guard
    assert guard is not None
    seen: list[int] = []

    def look() -> None:
        seen.append(len(guard._queue))
        assert len(guard._queue) == len(guard._waiting)
        assert all(one.blocks <= one.capacity for one in guard.shadows.each)

    side_by_side(made, of, most, look)
    assert max(seen) <= 100
    for shadow in guard.shadows.each:
        sound(shadow)
        assert shadow.blocks > 0.9 * shadow.capacity


def test_one_at_a_time_nobody_waits_and_side_by_side_is_near_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What requests compute hangs little on when they end."""
    of = traffic(sample("to-c"), standard())
    totals = []
    for most in (0, 16):
        with monkeypatch.context() as patch:
            costs = noted(patch)
            side_by_side(learner(of, 5000), of, most, lambda: None, lost=0.0)
        totals.append(np.sum(costs, axis=0))
    assert totals[1] == pytest.approx(totals[0], rel=0.05)


def test_blocks_that_are_not_followed_are_not_counted() -> None:
    """When every second block alone is followed the shadows begin anew, half as large."""
    of = traffic(sample("to-c"), standard())
    made = learner(of, 4000)
    made.recent._most_keys = 20_000
    guard = made.online_guard
    assert guard is not None
    sizes = set()

    def look() -> None:
        watching = guard
        assert watching.every == made.recent.every
        sizes.add(watching.shadows.each[0].capacity * watching.every)

    side_by_side(made, of, 4, look)
    assert guard.every >= 4
    assert sizes == {4000}
    for shadow in guard.shadows.each:
        sound(shadow)
        assert 4000 / guard.every == shadow.capacity
        assert shadow.blocks > 0.9 * shadow.capacity


def test_evidence_of_other_blocks_is_void() -> None:
    """What is known of all blocks says nothing of every second one; what is in force stays."""
    made, watching = small(200)
    watching.now, watching.evidence.gain[OWN] = OWN, 5.0
    match = made.recent.arrive(list(range(20)), 0.0)
    watching.arrive(match, (), 320, 0.0, 2, 0)
    assert (watching.now, watching.every, watching.evidence.gain) == (OWN, 2, [0.0] * 3)


def test_a_request_without_an_end_leaves_what_was_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by the next one as far as it was there before; nothing is counted for it."""
    nothing = np.zeros((ROWS, AGES))
    made = ReturnsLearner(Gittins({"xi_tokens": 0}), 16, FittedReturns(nothing, 1))
    made.guard(100)
    guard = made.online_guard
    assert guard is not None
    keys, costs = list(range(20)), noted(monkeypatch)
    for number, (blocks, gone) in enumerate([(10, False), (20, True), (20, False)]):
        one = FakeRequest(str(number), 16 * blocks, 1, keys[:blocks])
        _, asked = made.arrive(one, float(number))
        if gone:
            made.forget(asked)
        else:
            made.end(one, asked)
    assert costs == [[160] * 3, [160] * 3]
    assert [shadow.blocks for shadow in guard.shadows.each] == [20] * 3


def test_a_shadow_that_fails_leaves_lru(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of the log, and the engine goes on."""
    prompts = select(sample("regime-change"), np.arange(3_500))
    of = traffic(prompts, standard())
    join = ShadowCache.join

    def fails(self: ShadowCache, number: int, *more: Any) -> None:
        if number == 900:
            raise FloatingPointError("of all things")
        join(self, number, *more)

    monkeypatch.setattr(ShadowCache, "join", fails)
    with caplog.at_level(logging.ERROR):
        served = Alone(Gittins({"xi_tokens": 0}), of.block_size, 853).serve(of)
    assert served.steering.broken
    assert len(caplog.records) == 1
    assert "vLLM evicts by LRU again" in caplog.text
    late = alone(Lru(), 853).hit_blocks.tolist()
    assert served.hits[3000:] == late[3000 : len(served.hits)]


def test_what_is_in_force_is_the_table() -> None:
    """Its own; of LRU nothing is worth anything, of need alone all the same."""
    made = learner(traffic(sample("agent"), standard()), 100)
    guard = made.online_guard
    assert guard is not None
    made.candidate = OWN
    assert made._in_force().shape == (LEVELS * ROWS, AGES)
    assert np.ptp(made._in_force()) > 0
    for candidate, worth in ((LRU, 0.0), (1, 1.0)):
        made.candidate = candidate
        assert np.all(made._in_force() == worth)
    assert "with a guard that reverts to LRU" in made.in_words


def hashed(number: int, blocks: int, *, prompt_tokens: int | None = None) -> FakeRequest:
    """Return a request that begins with the first blocks (of 16 tokens) of one long text."""
    tokens = 16 * blocks + 1
    prompt = tokens - 1 if prompt_tokens is None else prompt_tokens
    return FakeRequest(str(number), prompt, tokens - prompt, list(range(blocks)))


def small(capacity: int) -> tuple[ReturnsLearner, OnlineGuard]:
    """Return a learner that goes by a table of zeros in a cache of this size, and a guard."""
    nothing = np.zeros((ROWS, AGES))
    made = ReturnsLearner(Gittins({"xi_tokens": 0}), 16, FittedReturns(nothing, 1))
    made.guard(capacity)
    assert made.online_guard is not None
    return made, made.online_guard


def test_a_slow_request_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for longer than from refit to refit; those that waited are served a few at a time."""
    made, watching = small(100)
    served = list[int]()
    serve = watching.shadows.serve
    monkeypatch.setattr(
        watching.shadows, "serve", lambda visit: (served.append(visit.number), serve(visit))[1]
    )
    made.arrive(hashed(0, 30), 0.0)
    for number in range(1, 400):
        before = len(served)
        _, asked = made.arrive(one := hashed(number, 20), float(number))
        assert len(served) - before <= guarding.AT_ONCE
        made.end(one, asked)
        assert len(served) - before <= 2 * guarding.AT_ONCE
        assert bool(served) == (number > guarding.PATIENCE_S)
    assert served == list(range(400))


def test_what_is_streamed_in_later_is_touched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that grew while it was served: the next turn finds all of it."""
    made, watching = small(200)
    costs = noted(monkeypatch)
    _, asked = made.arrive(one := hashed(0, 10), 0.0)
    made.end(hashed(0, 101, prompt_tokens=16 * 90), asked)
    assert [shadow.blocks for shadow in watching.shadows.each] == [101] * 3
    _, asked = made.arrive(one := hashed(1, 101), 1.0)
    made.end(one, asked)
    assert costs == [[160] * 3, [16] * 3]  # one token at least is computed


def test_a_cache_that_is_emptied_empties_the_shadows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was served before is found by nobody; what is being served then is not counted."""
    made, watching = small(200)
    costs = noted(monkeypatch)
    _, first = made.arrive(one := hashed(0, 50), 0.0)
    made.end(one, first)
    _, during = made.arrive(two := hashed(1, 50), 1.0)
    made.cleared()
    made.end(two, during)
    assert [shadow.blocks for shadow in watching.shadows.each] == [0] * 3
    _, last = made.arrive(three := hashed(2, 50), 2.0)
    made.end(three, last)
    assert costs == [[800] * 3] * 2


def test_an_engine_that_empties_its_cache_tells_the_shadows() -> None:
    """What the block pool says reaches them."""
    steering = Alone(Gittins({"xi_tokens": 0}), 16, 100).steering
    made = steering.learner
    assert isinstance(made, ReturnsLearner)
    assert made.online_guard is not None
    before = made.online_guard.shadows
    steering.cleared()
    assert made.online_guard.shadows is not before

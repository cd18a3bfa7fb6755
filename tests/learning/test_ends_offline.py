"""What `tlru-learned` is told: chances from the past alone, a threshold from shadows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvscope.learning.ends.boosting import boosted, chances
from kvscope.learning.ends.offline import (
    FEWEST_REQUESTS,
    THRESHOLDS,
    EndPredictor,
    EndsOffline,
    taken_to_end,
)
from kvscope.policies.base import ENDS
from kvscope.policies.registry import by_name
from kvscope.policies.tlru_learned import TLruLearned
from kvscope.replay.replay import Tables, replay
from kvscope.replay.traffic import Traffic
from tests.learning.test_refit_tables import first, told
from tests.policies.traffics import traffics

QUICK = settings(deadline=None, max_examples=60)
XI = st.integers(0, 16)


def ended(ends: NDArray[np.bool_]) -> Tables:
    """Tables by which these requests' conversations end."""
    return taken_to_end(ends)


@QUICK
@given(traffics(), st.integers(0, 30), XI)
def test_that_nobody_ends_is_tlru(of: Traffic, capacity: int, xi: int) -> None:
    """Without a prediction there is nothing but T-LRU."""
    values = {"xi_tokens": float(xi), "next_prompt_tokens": 3.0}
    done = replay(
        of, TLruLearned(values), capacity, tables=ended(np.zeros(len(of.leaf), dtype=np.bool_))
    )
    plain = replay(of, by_name("tlru")(values), capacity)
    assert done.hit_blocks.tolist() == plain.hit_blocks.tolist()
    assert np.array_equal(done.cached, plain.cached)


@QUICK
@given(traffics(), st.integers(0, 30), XI)
def test_the_truth_is_tlru_end(of: Traffic, capacity: int, xi: int) -> None:
    """A prediction that is always right makes the policy that is told."""
    values = {"xi_tokens": float(xi), "next_prompt_tokens": 3.0}
    truth = ended(of.next_prompt_tokens == ENDS)
    done = replay(of, TLruLearned(values), capacity, tables=truth)
    hindsight = replay(of, by_name("tlru-end")(values), capacity)
    assert done.hit_blocks.tolist() == hindsight.hit_blocks.tolist()
    assert np.array_equal(done.cached, hindsight.cached)


def test_a_refit_learns_from_whom_it_can_know() -> None:
    """Requests of the window before it whose horizon is over, to the bit."""
    of, horizon_s, refit_s = told("regime-change"), 200.0, 120.0
    ends = EndPredictor(of, refit_s)
    found = ends.predicted(horizon_s)
    learned = 0
    for row, fit in enumerate(found.fits):
        now_s = of.arrival_s[found.since[row]] // refit_s * refit_s
        old = (of.arrival_s < now_s - horizon_s) & (of.arrival_s >= now_s - 36 * refit_s)
        if fit is None:
            assert old.sum() < FEWEST_REQUESTS
            continue
        if fit is found.fits[row - 1]:
            continue
        assert fit.requests == old.sum()
        trees = boosted(ends.turns.known[old], ends.turns.next_s[old] <= horizon_s)
        assert fit.trees == trees
        until = found.since[row + 1] if row + 1 < len(found.since) else len(of.leaf)
        some = slice(found.since[row], until)
        assert np.array_equal(found.chance[some], chances(trees, ends.turns.known[some]))
        learned += 1
    assert learned > 20
    assert np.isnan(found.chance[0])


@pytest.mark.parametrize("name", ["to-c", "regime-change"])
def test_the_future_changes_no_chance(name: str) -> None:
    """Requests get the same when none follow them, and when others do."""
    of, half = told(name), 1_000
    whole = EndPredictor(of, 300.0).predicted(300.0).chance
    assert np.isfinite(whole[:half]).any()
    before = first(of, half)
    assert np.array_equal(
        EndPredictor(before, 300.0).predicted(300.0).chance, whole[:half], equal_nan=True
    )
    other = of._replace(leaf=of.leaf.copy(), length=of.length.copy())
    other.leaf[half:], other.length[half:] = of.leaf[0], of.length[0]
    changed = EndPredictor(other, 300.0).predicted(300.0).chance
    assert np.array_equal(changed[:half], whole[:half], equal_nan=True)
    assert not np.array_equal(changed[half:], whole[half:], equal_nan=True)


@pytest.mark.parametrize("name", ["to-c", "regime-change"])
def test_the_future_changes_no_hit(name: str) -> None:
    """Nor what a cache of any size finds, thresholds and all."""
    of, capacity = told(name), 500
    policy, half = TLruLearned({"xi_tokens": 2048.0}), len(of.leaf) // 2
    whole = replay(of, policy, capacity, tables=EndsOffline().tables(of)).hit_blocks
    assert whole.any()
    before = first(of, half)
    alone = replay(before, policy, capacity, tables=EndsOffline().tables(before)).hit_blocks
    assert alone.tolist() == whole[:half].tolist()


def test_thresholds_are_chosen_by_what_the_past_computed() -> None:
    """Only after one did better, by the margin; classes are those of the threshold in force."""
    of = told("to-c")
    ends, policy = EndPredictor(of), TLruLearned({"xi_tokens": 8192.0})
    judge, chance = ends.shadows(600.0), ends.predicted(600.0).chance
    costs = judge.costs(policy, 4_278)
    taken = judge.taken(costs)
    assert taken[0] == 0
    assert taken.max() > 0
    found = ends.tables().chosen(policy, 4_278)
    assert found.classes is not None
    for row, threshold in enumerate(np.array(THRESHOLDS)[taken]):
        ends_now = found.at(row)[found.classes, 0] == 0.0  # also those that came before
        assert np.array_equal(ends_now, chance < threshold)
    level = np.full_like(costs, 1000.0)
    level[3] = 975.0  # better than T-LRU, by less than the margin
    assert judge.taken(level).tolist() == [0] * costs.shape[1]
    level[3] = 960.0
    assert judge.taken(level).tolist() == [0, *[3] * (costs.shape[1] - 1)]


@pytest.mark.parametrize(("xi_tokens", "capacity"), [(0.0, 25_950), (8192.0, 9_726)])
def test_it_gains_where_the_bit_can_be_told(xi_tokens: float, capacity: int) -> None:
    """On the sample to-c it goes a good part of the way to the policy that is told."""
    of, values = told("to-c"), {"xi_tokens": xi_tokens}
    judged = slice(len(of.leaf) * 2 // 5, None)

    nobody = ended(np.zeros(len(of.leaf), dtype=np.bool_))

    def excess(name: str) -> int:
        policy = by_name(name)(values)
        tables = EndsOffline().tables(of) if name == "tlru-learned" else nobody
        hits = replay(of, policy, capacity, tables=tables).hit_blocks.astype(np.int64)
        left = of.input_tokens - hits * of.block_size
        return int(np.maximum(left - xi_tokens, 0)[judged].sum())

    plain, learned, hindsight = map(excess, ("tlru", "tlru-learned", "tlru-end"))
    assert plain - learned > 0.5 * (plain - hindsight) > 0


def test_a_choice_that_stays_is_the_threshold_alone() -> None:
    """By classes between thresholds as by the bit: the same cache."""
    of, policy = told("to-c"), TLruLearned({"xi_tokens": 4096.0})
    judge, chance = EndPredictor(of).shadows(600.0), EndPredictor(of).predicted(600.0).chance
    for number, threshold in enumerate(THRESHOLDS):
        stays = np.full(len(judge.costs(policy, 0)[0]), number)
        done = replay(of, policy, 9_726, tables=judge.tables_by(stays))
        alone = replay(of, policy, 9_726, tables=ended(chance < threshold))
        assert done.hit_blocks.tolist() == alone.hit_blocks.tolist()
        assert np.array_equal(done.cached, alone.cached)


def test_little_traffic_is_never_learned_from() -> None:
    """Fewer requests than a fit needs: T-LRU, and no error; nor for none at all."""
    of = told("to-c")
    for requests in (0, 1, FEWEST_REQUESTS):
        few = first(of, requests)
        tables = EndsOffline().tables(few).chosen(TLruLearned(), 100)
        assert tables.classes is not None
        assert np.all(tables.values[tables.rows[:, tables.classes]] == 1.0)

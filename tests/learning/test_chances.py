"""The chance of a next turn: learned as it should be, and the same wherever it is evaluated."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvscope.learning.ends.boosting import BINS, RATE, boosted, chances
from kvscope.learning.ends.chances import FEATURES, Trees, chance

Floats = NDArray[np.float64]


def drawn(requests: int, seed: int = 0) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Features, the probability that they mean, and who returned by it."""
    draw = np.random.default_rng(seed)
    known = draw.lognormal(3.0, 1.0, size=(requests, len(FEATURES)))
    known[:, 4] = draw.integers(0, 4, requests)
    likely = (known[:, 0] < 20.0) & (known[:, 4] >= 2)  # which no feature tells alone
    p = np.where(likely, 0.8, 0.1)
    return known, p, draw.random(requests) < p


def test_what_depends_on_two_features_is_learned() -> None:
    """From 4,000 requests, for others: within a few points of the probability that made them."""
    known, _, returned = drawn(4_000)
    trees = boosted(known, returned)
    others, p, _ = drawn(4_000, seed=1)
    off = np.abs(chances(trees, others) - p)
    assert off.mean() < 0.06
    assert np.quantile(off, 0.9) < 0.15


def test_chances_are_shares() -> None:
    """Among the requests that were learned from, as many return as are said to."""
    known, _, returned = drawn(4_000)
    found = chances(boosted(known, returned), known)
    for low, high in ((0.0, 0.3), (0.3, 0.6), (0.6, 1.0)):
        some = (found >= low) & (found < high)
        if some.sum() > 100:
            assert returned[some].mean() == pytest.approx(found[some].mean(), abs=0.05)
    assert found.mean() == pytest.approx(returned.mean(), abs=0.01)


def test_the_same_requests_give_the_same_trees() -> None:
    """To the bit; and features that are alike do not disturb each other."""
    known, _, returned = drawn(500)
    assert boosted(known, returned) == boosted(known.copy(), returned.copy())
    twice = np.concatenate((known, known), axis=1)
    assert boosted(twice, returned) == boosted(known, returned)


@pytest.mark.parametrize("outcome", [True, False])
def test_where_all_do_alike_there_is_nothing_to_ask(outcome: bool) -> None:
    """No tree helps: the chance is that of one more success and one more failure."""
    known, _, returned = drawn(200)
    trees = boosted(known, np.full_like(returned, outcome))
    assert chance(trees, known[0].tolist()) == pytest.approx(201 / 202 if outcome else 1 / 202)


def test_without_requests_it_is_even() -> None:
    """Nothing is known: one half."""
    trees = boosted(np.zeros((1, len(FEATURES))), np.array([True]))
    assert trees.features == ()
    assert chance(trees, [0.0] * len(FEATURES)) == pytest.approx(2 / 3)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_first_cut_is_the_best_there_is(seed: int) -> None:
    """Against every cut at a quantile, tried on the loss itself: the second-order gain."""
    draw = np.random.default_rng(seed)
    known = draw.integers(0, 9, size=(60, len(FEATURES))).astype(np.float64)
    returned = draw.random(60) < 0.1 + 0.8 * (known[:, 3] > 4)
    trees = boosted(known, returned, rounds=1)
    share = (returned.sum() + 1) / 62
    slope, curve = share - returned, np.full(60, share * (1 - share))

    def gain(some: NDArray[np.bool_]) -> float:
        return float(slope[some].sum() ** 2 / (curve[some].sum() + 1.0))

    def worth(feature: int, edge: float) -> float:
        low = known[:, feature] < edge
        small = min(curve[low].sum(), curve[~low].sum())
        return gain(low) + gain(~low) if small >= 2.0 else 0.0

    tried = [worth(f, edge) for f in range(len(FEATURES)) for edge in np.unique(known[:, f])[1:]]
    if trees.features:
        assert worth(trees.features[0][0], trees.edges[0][0]) == pytest.approx(max(tried))
        above = known[:, trees.features[0][0]] >= trees.edges[0][0]
        later = known[:, trees.features[0][2]] >= trees.edges[0][2]
        some = above & later
        if some.any():
            step = -RATE * slope[some].sum() / (curve[some].sum() + 1.0)
            assert trees.values[0][3] == pytest.approx(step)
    else:
        assert max(tried) <= gain(np.ones(60, dtype=np.bool_)) * (1 + 1e-6) + 1e-9


_NUMBERS = st.floats(-10, 10).map(lambda one: round(one, 1))  # so that edges are met exactly
_TREE = st.tuples(
    st.tuples(*[st.integers(0, len(FEATURES) - 1)] * 3),
    st.tuples(*[st.one_of(_NUMBERS, st.just(float("inf")))] * 3),
    st.tuples(*[st.floats(-30, 30)] * 4),
)


@given(
    st.floats(-9, 9),
    st.lists(_TREE, max_size=6),
    st.lists(st.lists(_NUMBERS, min_size=8, max_size=8), min_size=1, max_size=5),
)
def test_numpy_and_plain_python_agree(
    start: float, drawn_trees: list[tuple[object, object, object]], known: list[list[float]]
) -> None:
    """Any trees, any features, values at the edges too."""
    parts = [tuple(tree[part] for tree in drawn_trees) for part in range(3)]
    trees = Trees(start, *parts)  # type: ignore[arg-type]
    found = chances(trees, np.array(known))
    assert found.tolist() == pytest.approx([chance(trees, one) for one in known], rel=1e-12)


def test_learned_trees_too() -> None:
    """All that `boosted` makes is evaluated alike."""
    known, _, returned = drawn(800)
    trees = boosted(known, returned)
    assert len(trees.features) == len(trees.values) == 50
    assert all(len(one) == 4 for one in trees.values)
    assert BINS == 16
    plain = [chance(trees, one) for one in known.tolist()]
    assert chances(trees, known).tolist() == pytest.approx(plain, rel=1e-12)


def test_evaluation_needs_no_library() -> None:
    """An engine imports the table's evaluation without NumPy, which it need not have."""
    asked = "import sys, kvscope.learning.ends.chances; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

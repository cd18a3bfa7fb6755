"""The index that `gittins` reads: right where it is known, and drawn to coarser classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvscope.learning.returns.formulas import (
    PARTS,
    ROWS,
    STEPS,
    RequestFeatures,
    ReturnCounts,
    ages_of,
    began_s,
    by_class,
    classes_of,
    fit_memory,
    fit_rows,
    return_table,
    set_gittins_index,
)
from kvscope.policies.gittins import AGES, LEVELS

AGE = np.arange(AGES)
PACE = STEPS[1]
CLASSES_OF_PACE, OUTPUTS = math.prod(PACE), PACE[-1]
Floats = NDArray[np.float64]


def waits(seconds: dict[int, Floats], end_s: dict[int, float]) -> ReturnCounts:
    """Return counts of one request a wait, one block a request; waits are cut off at `end_s`."""
    returned, waiting, spent = np.zeros((3, CLASSES_OF_PACE, AGES))
    for one, lasted in seconds.items():
        cut = np.minimum(lasted, end_s[one])
        for into, some in ((returned, lasted <= end_s[one]), (waiting, lasted > end_s[one])):
            np.add.at(into[one], ages_of(cut[some]), 1.0)
        np.add.at(spent[one], ages_of(cut), cut - began_s(ages_of(cut)))
    return ReturnCounts(returned, waiting, spent, float(sum(map(len, seconds.values()))))


def gittins_index(hazard: Floats) -> Floats:
    """Return the index at each age of one class with this hazard (AGES)."""
    index = np.empty(AGES)
    set_gittins_index(hazard, fit_memory(PACE), index)
    return index


def test_ages_are_thirds_of_octaves() -> None:
    """From an eighth of a second on; each age begins where `began_s` says."""
    assert ages_of(np.array([0.0, 0.12, 0.125, 0.25, 1.0, 1e9])).tolist() == [0, 0, 1, 4, 10, 53]
    inner = began_s(AGE) * (1 + 1e-9)
    assert ages_of(inner).tolist() == AGE.tolist()


@pytest.mark.parametrize("rate", [0.5, 0.01])
def test_a_constant_hazard_is_its_own_index(rate: float) -> None:
    """Without memory no horizon is better than another."""
    assert gittins_index(np.full(AGES, rate)) == pytest.approx(np.full(AGES, rate))


def test_a_falling_hazard_is_its_own_index() -> None:
    """The next moment is the best to come; where it rises the best is still ahead."""
    falling = 1.0 / (1.0 + began_s(AGE))
    assert gittins_index(falling) == pytest.approx(falling)
    rising = gittins_index(1e-3 * (1.0 + AGE))
    assert np.all(rising >= 1e-3 * (1.0 + AGE) - 1e-15)
    assert np.all(np.diff(rising) > 0)


@given(st.lists(st.floats(1e-4, 2.0), min_size=6, max_size=6), st.integers(0, AGES - 1))
def test_the_index_is_the_best_rate_of_returns(drawn: list[float], age: int) -> None:
    """Against sums over small steps, horizon by horizon, for a hazard of six stretches."""
    hazard = np.repeat(drawn, AGES // 6)
    edges = np.append(began_s(AGE), 2 * began_s(AGE)[-1])
    best = 0.0
    alive, spent = 1.0, 0.0
    for at in range(age, AGES):
        width_s = edges[at + 1] - edges[at]
        step_s = min(width_s, 0.02 / hazard[at])
        steps = min(round(width_s / step_s), 2_000)  # nobody is left after so many
        step_s = width_s / steps if steps < 2_000 else step_s
        within = alive * np.exp(-hazard[at] * step_s * (np.arange(steps) + 0.5))
        spent += float(within.sum() * step_s)
        alive *= float(np.exp(-hazard[at] * step_s * steps))
        best = max(best, (1.0 - alive) / spent)
    assert gittins_index(hazard)[age] == pytest.approx(best, rel=1e-3)


def test_hazards_are_recovered_from_censored_waits() -> None:
    """200,000 exponential waits of 20 s, most cut off at 10 s: 0.05 a second up to there."""
    draw = np.random.default_rng(1)
    last = CLASSES_OF_PACE - 1
    memory, index = fit_memory(PACE), np.empty((CLASSES_OF_PACE, AGES))
    rows = np.empty(CLASSES_OF_PACE, dtype=np.int32)
    counts = waits({last: draw.exponential(20.0, 200_000)}, {last: 10.0})
    fit_rows(counts, memory, index, 0, rows)
    hazard = memory.hazard[memory.level[-1]]
    seen = (began_s(AGE) >= 0.5) & (began_s(AGE) < 8.0)
    assert hazard[seen] == pytest.approx(np.full(seen.sum(), 0.05), rel=0.05)


def test_a_class_without_waits_is_like_its_coarser_one() -> None:
    """Outputs of another length: near the pair's; another time since: near that of its size.

    Classes without waits have one row of the coarser class together.
    """
    draw = np.random.default_rng(2)
    pair = 5
    one = pair * OUTPUTS
    counts = waits({one: draw.exponential(3.0, 5_000)}, {one: 100.0})
    index, rows = np.empty((CLASSES_OF_PACE, AGES)), np.empty(CLASSES_OF_PACE, dtype=np.int32)
    used = fit_rows(counts, fit_memory(PACE), index, 0, rows)
    at = (began_s(AGE) >= 0.5) & (began_s(AGE) < 8.0)
    assert index[rows[one + 1], at] == pytest.approx(index[rows[one], at], rel=0.02)
    sibling = (pair - 1) * OUTPUTS
    assert sibling // (PACE[1] * OUTPUTS) == one // (PACE[1] * OUTPUTS)
    assert index[rows[sibling], at] == pytest.approx(index[rows[one], at], rel=0.05)
    assert rows[one + 1] == rows[one + 2] != rows[one]
    assert used == len(set(rows.tolist())) == 1 + len(PACE)  # its own, and one of each coarser


def test_what_returns_sooner_is_worth_more() -> None:
    """Three classes: soon, late and never; the index keeps that order at every age seen."""
    draw = np.random.default_rng(3)
    soon, late, never = 3, 18, 33
    seconds = {
        soon: draw.exponential(5.0, 500),
        late: draw.exponential(80.0, 500),
        never: np.full(500, np.inf),
    }
    index = return_table(waits(seconds, dict.fromkeys(seconds, 100.0)), PACE)
    assert index.shape == (LEVELS * CLASSES_OF_PACE, AGES)
    assert np.array_equal(index[::LEVELS], index[LEVELS - 1 :: LEVELS])
    seen = began_s(AGE) < 10.0
    place = LEVELS * np.argsort(by_class(np.arange(CLASSES_OF_PACE)))
    assert np.all(index[place[soon], seen] > index[place[late], seen])
    assert np.all(index[place[late], seen] > index[place[never], seen])


def test_before_anything_is_seen_the_index_falls_with_age() -> None:
    """All classes are alike, so blocks leave by LRU."""
    index = return_table(waits({}, {}), PACE)
    assert np.all(index == index[0])
    assert np.all(np.diff(index[0]) < 0)


def test_classes_go_from_coarse_to_fine() -> None:
    """By new tokens, then turns; by new tokens, then output; all within the table."""
    of = RequestFeatures(
        new_tokens=np.array([0, 511, 512, 2048, 8192, 10**6]),
        turns=np.array([0, 1, 0, 2, 3, 99]),
        output_tokens=np.array([0, 255, 256, 511, 512, 10**6]),
    )
    by_turns, by_output = classes_of(of)
    assert by_turns.tolist() == [0, 1, 3, 7, 11, 11]
    assert by_output.tolist() == [0, 0, 3 + 1, 6 + 1, 9 + 2, 9 + 2]
    assert ROWS == (12 + 12) * PARTS

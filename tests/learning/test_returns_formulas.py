"""The table of gittins: its formulas, its fit, its file."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from decimal import Decimal

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvscope.core.errors import InputError
from kvscope.core.hits import standard
from kvscope.learning.evidence import GuardEvidence
from kvscope.learning.offline.learners import plugin_tables
from kvscope.learning.returns.file import FittedReturns, read_returns
from kvscope.learning.returns.formulas import (
    OWN,
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
from kvscope.learning.returns.offline import (
    ReturnsOffline,
    class_tables,
    fit_at_end,
    refits_of,
)
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.replay.derived_traces import select
from kvscope.replay.traffic import traffic
from tests.golden.samples import sample

AGE = np.arange(AGES)
TURNS = STEPS[-1]
Floats = NDArray[np.float64]


def waits(seconds: dict[int, Floats], end_s: dict[int, float]) -> ReturnCounts:
    """Return counts of one request a wait, one block a request; waits are cut off at `end_s`."""
    returned, waiting, spent = np.zeros((3, ROWS, AGES))
    for one, lasted in seconds.items():
        cut = np.minimum(lasted, end_s[one])
        for into, some in ((returned, lasted <= end_s[one]), (waiting, lasted > end_s[one])):
            np.add.at(into[one], ages_of(cut[some]), 1.0)
        np.add.at(spent[one], ages_of(cut), cut - began_s(ages_of(cut)))
    return ReturnCounts(returned, waiting, spent, float(sum(map(len, seconds.values()))))


def gittins_index(hazard: Floats) -> Floats:
    """Return the index at each age of one class with this hazard (AGES)."""
    index = np.empty(AGES)
    set_gittins_index(hazard, fit_memory(), index)
    return index


def test_ages_are_thirds_of_octaves() -> None:
    """From an eighth of a second on; each age begins where `began_s` says."""
    assert ages_of(np.array([0.0, 0.12, 0.125, 0.25, 1.0, 1e9])).tolist() == [0, 0, 1, 4, 10, 53]
    inner = began_s(AGE) * (1 + 1e-9)
    assert ages_of(inner).tolist() == AGE.tolist()


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
    last = ROWS - 1
    memory, index = fit_memory(), np.empty((ROWS, AGES))
    rows = np.empty(ROWS, dtype=np.int32)
    counts = waits({last: draw.exponential(20.0, 200_000)}, {last: 10.0})
    fit_rows(counts, memory, index, 0, rows)
    hazard = memory.hazard[memory.level[-1]]
    seen = (began_s(AGE) >= 0.5) & (began_s(AGE) < 8.0)
    assert hazard[seen] == pytest.approx(np.full(seen.sum(), 0.05), rel=0.05)


def test_a_class_without_waits_is_like_its_coarser_one() -> None:
    """Another turn: near the pair's; another time since: near that of its size.

    Classes without waits have one row of the coarser class together.
    """
    draw = np.random.default_rng(2)
    pair = 5
    one = pair * TURNS
    counts = waits({one: draw.exponential(3.0, 5_000)}, {one: 100.0})
    index, rows = np.empty((ROWS, AGES)), np.empty(ROWS, dtype=np.int32)
    used = fit_rows(counts, fit_memory(), index, 0, rows)
    at = (began_s(AGE) >= 0.5) & (began_s(AGE) < 8.0)
    assert index[rows[one + 1], at] == pytest.approx(index[rows[one], at], rel=0.02)
    sibling = (pair - 1) * TURNS
    assert sibling // (STEPS[1] * TURNS) == one // (STEPS[1] * TURNS)
    assert index[rows[sibling], at] == pytest.approx(index[rows[one], at], rel=0.05)
    assert rows[one + 1] == rows[one + 2] != rows[one]
    assert used == len(set(rows.tolist())) == 1 + len(STEPS)  # its own, and one of each coarser


def test_what_returns_sooner_is_worth_more() -> None:
    """Three classes: soon, late and never; the index keeps that order at every age seen."""
    draw = np.random.default_rng(3)
    soon, late, never = 3, 18, 33
    seconds = {
        soon: draw.exponential(5.0, 500),
        late: draw.exponential(80.0, 500),
        never: np.full(500, np.inf),
    }
    index = return_table(waits(seconds, dict.fromkeys(seconds, 100.0)))
    assert index.shape == (LEVELS * ROWS, AGES)
    assert np.array_equal(index[::LEVELS], index[LEVELS - 1 :: LEVELS])
    seen = began_s(AGE) < 10.0
    place = LEVELS * np.argsort(by_class(np.arange(ROWS)))
    assert np.all(index[place[soon], seen] > index[place[late], seen])
    assert np.all(index[place[late], seen] > index[place[never], seen])


def test_before_anything_is_seen_the_index_falls_with_age() -> None:
    """All classes are alike, so blocks leave by LRU."""
    index = return_table(waits({}, {}))
    assert np.all(index == index[0])
    assert np.all(np.diff(index[0]) < 0)


def test_classes_go_from_coarse_to_fine() -> None:
    """By new tokens, then turns; all within the table."""
    of = RequestFeatures(
        new_tokens=np.array([0, 511, 512, 2048, 8192, 10**6]),
        turns=np.array([0, 1, 0, 2, 3, 99]),
    )
    assert classes_of(of).tolist() == [0, 1, 3, 7, 11, 11]
    assert ROWS == 12 * PARTS


EVERY = 256.0


def test_a_fit_is_the_refit_at_its_time() -> None:
    """Cut off at a refit, the first part of a trace gives the very table of that refit."""
    prompts = sample("to-c")
    of = traffic(prompts, standard())
    whole = class_tables(of, EVERY)
    row = len(whole.since) // 2
    first = int(whole.since[row])
    part = traffic(select(prompts, np.arange(first)), standard())
    found = fit_at_end(part, EVERY, float(of.arrival_s[first]))
    np.testing.assert_allclose(found.values, whole.at(row), rtol=1e-9)
    assert found.requests == min(first, 9 * EVERY)


def test_when_nobody_looks_the_time_of_day_does_not_count() -> None:
    """The same trace a while later gives the same fit."""
    of = traffic(sample("agent"), standard())
    later = of._replace(arrival_s=of.arrival_s + 12_345.0)
    here, there = (fit_at_end(one, EVERY) for one in (of, later))
    np.testing.assert_allclose(here.index, there.index, rtol=1e-6)


def test_the_capacity_says_what_a_guard_knows() -> None:
    """For each cache what its own shadows tell; without one nothing."""
    of = traffic(sample("regime-change"), standard())
    policy = Gittins({"xi_tokens": 0, "refit_requests": EVERY})
    small, large = (ReturnsOffline().fit(of, policy, capacity) for capacity in (100, 800))
    assert small.evidence is not None
    assert large.evidence is not None
    assert small.evidence.gain[OWN] != large.evidence.gain[OWN] != 0.0
    assert np.array_equal(small.index, large.index)
    assert ReturnsOffline().fit(of, policy).evidence is None


def test_a_guard_begins_with_the_file() -> None:
    """With refits its fit is replaced in time; the evidence says what is in force at first."""
    of, policy = traffic(sample("to-c"), standard()), Gittins({"refit_requests": EVERY})
    index = np.random.default_rng(3).random((ROWS, AGES))
    own = class_tables(of, EVERY)
    alone = plugin_tables(of, policy, FittedReturns(index, 600))
    assert alone.categories == LEVELS * len(index)
    assert np.all(alone.values[alone.rows] == np.repeat(index, LEVELS, axis=0))
    more = plugin_tables(of, policy, FittedReturns(index, 600, refits=True))
    for found in (alone, more):
        assert found.classes is not None
        assert found.classes.tolist() == own.classes.tolist()
    mine, early = more.values[more.rows], more.since < 600
    assert np.all(mine[early] == alone.at(0))
    assert np.array_equal(mine[~early], own.values[own.rows[~early]])
    known = GuardEvidence.none(OWN + 1)
    known.gain[OWN], known.square[OWN], known.largest[OWN] = 1e6, 1e9, 1e6
    for evidence, in_force in ((None, np.zeros_like(mine[0])), (known, mine[0])):
        file = FittedReturns(index, 600, refits=True, evidence=evidence)
        chosen = plugin_tables(of, policy, file).chosen(policy, 1000)
        assert np.array_equal(chosen.at(0), in_force)


def test_an_empty_trace_has_the_prior() -> None:
    """All classes alike."""
    of = traffic(select(sample("to-c"), np.arange(0)), standard())
    found: FittedReturns = fit_at_end(of, EVERY)
    assert found.requests == 0
    assert np.all(found.index == found.index[0])


def test_refits_come_early_then_every_so_many_requests() -> None:
    """At a quarter and at half of the usual distance first; the first row knows nothing."""
    refits = refits_of(2_000, 512.0)
    assert refits.since.tolist() == [0, 128, 256, 512, 1_024, 1_536]
    assert refits.number.tolist() == [0, 1, 2, 4, 8, 12]
    assert refits.bin[[127, 128, 1_999]].tolist() == [0, 1, 15]
    assert refits_of(0, 512.0).since.tolist() == [0]


def fitted() -> FittedReturns:
    """Return a fit and evidence of made-up numbers."""
    rng = np.random.default_rng(1)
    evidence = GuardEvidence(*rng.random((len(GuardEvidence._fields), OWN + 1)))
    evidence.backlog[:] = 0.0
    evidence.square[:] += evidence.largest
    return FittedReturns(rng.random((ROWS, AGES)), 1234, evidence=evidence)


def written(text: str) -> FittedReturns | None:
    """Return the fit in a TOML text."""
    return read_returns(tomllib.loads(text, parse_float=Decimal), "policy.toml")


def test_what_is_read_is_what_was_written() -> None:
    """Every number to its last bit; equal rows of the policy's table a class."""
    one = fitted()
    found = written(tomli_w.dumps(one.document()))
    assert found is not None
    assert np.array_equal(found.index, one.index)
    assert (found.requests, found.refits) == (1234, False)
    assert found.evidence is not None
    assert one.evidence is not None
    for read, wrote in zip(found.evidence, one.evidence, strict=True):
        assert read.tolist() == wrote.tolist()
    assert found.values.shape == (LEVELS * ROWS, AGES)
    assert np.array_equal(found.values[::LEVELS], found.values[LEVELS - 1 :: LEVELS])
    bare = written(tomli_w.dumps(dataclasses.replace(one, evidence=None).document()))
    assert bare is not None
    assert bare.evidence is None


def test_a_file_without_a_fit() -> None:
    """Has none."""
    assert written("schema = 1") is None


def index(row: int, at: int, value: object) -> dict[str, object]:
    """Return an index with one number replaced; None leaves it out."""
    rows = fitted().index.tolist()
    rows[row][at : at + 1] = [] if value is None else [value]
    return {"index": rows}


def knows(**change: list[float]) -> dict[str, object]:
    """Return evidence with some sums replaced."""
    table = fitted().document()["returns"]
    assert isinstance(table, dict)
    return {"evidence": table["evidence"] | change}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"by": ["turns"]}, r"^policy.toml: returns.by: \['turns'\] are no classes .*; fit again"),
        ({"edges": [[1.0]]}, r"returns.edges: other classes .*; fit again"),
        ({"gaps_s": [1.0]}, r"returns.gaps_s: other parts .*; fit again"),
        ({"refits": 3}, r"returns.refits: 3 is not true or false"),
        ({"asked": 3}, r"returns.asked: unknown key"),
        ({"requests": None}, r"returns.requests: missing"),
        ({"index": [[0.5] * AGES]}, r"returns.index: not 60 rows"),
        (index(0, 0, None), r"returns.index\[0\]: not 54 numbers"),
        (index(0, 0, -0.5), r"returns.index\[0\]\[0\]: -0.5 is not a number >= 0"),
        (index(1, 2, math.inf), r"returns.index\[1\]\[2\]: inf is not a finite number"),
        (index(0, 0, True), r"returns.index\[0\]\[0\]: true is not a number"),
        ({"evidence": {"gain": [0.0] * 3}}, r"returns.evidence.square: missing"),
        (knows(gain=[0.0, 1e300, 0.0]), r"evidence.square: not of the gains and their largest"),
        (knows(largest=[0.0, 9.0, 0.0]), r"evidence.square: not of the gains and their largest"),
        (knows(gain=[0.0]), r"returns.evidence.gain: .* is not an array of length >= 3"),
        (
            knows(square=[0.0, -1.0, 0.0]),
            r"evidence.square\[1\]: -1.* is not a number >= 0",
        ),
        (
            knows(late=[0.0, math.inf, 0.0]),
            r"evidence.late\[1\]: inf is not a finite number",
        ),
    ],
)
def test_mistakes_are_told(change: dict[str, object], says: str) -> None:
    """In one line, with the place."""
    table = fitted().document()["returns"]
    assert isinstance(table, dict)
    changed = {key: value for key, value in (table | change).items() if value is not None}
    with pytest.raises(InputError, match=says) as told:
        written(tomli_w.dumps({"returns": changed}))
    assert "\n" not in str(told.value)

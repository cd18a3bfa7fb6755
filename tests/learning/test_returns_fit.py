"""One fit to the end of a trace is the refit that a replay makes there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvscope.core.hits import standard
from kvscope.learning.offline.learners import plugin_tables
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import STEPS
from kvscope.learning.returns.offline import (
    ReturnsOffline,
    class_set_tables,
    fit_at_end,
    refits_of,
)
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.replay.derived_traces import select
from kvscope.replay.traffic import traffic
from tests.golden.samples import sample

EVERY = 256.0


@pytest.mark.parametrize("class_set", range(len(STEPS)))
def test_a_fit_is_the_refit_at_its_time(class_set: int) -> None:
    """Cut off at a refit, the first part of a trace gives the very table of that refit."""
    prompts = sample("to-c")
    of = traffic(prompts, standard())
    whole = class_set_tables(of, EVERY)[class_set]
    row = len(whole.since) // 2
    first = int(whole.since[row])
    part = traffic(select(prompts, np.arange(first)), standard())
    found = fit_at_end(part, EVERY, class_set, float(of.arrival_s[first]))
    np.testing.assert_allclose(found.values, whole.at(row), rtol=1e-9)
    assert found.requests == min(first, 9 * EVERY)


def test_when_nobody_looks_the_time_of_day_does_not_count() -> None:
    """The same trace a while later gives the same fit."""
    of = traffic(sample("agent"), standard())
    later = of._replace(arrival_s=of.arrival_s + 12_345.0)
    here, there = (fit_at_end(one, EVERY, 0) for one in (of, later))
    np.testing.assert_allclose(here.index, there.index, rtol=1e-6)


def test_the_capacity_says_which_classes() -> None:
    """What the policy goes by at the end: maybe none, where all indices are alike."""
    of = traffic(sample("regime-change"), standard())
    policy = Gittins({"xi_tokens": 0, "refit_requests": EVERY})
    found = [ReturnsOffline().fit(of, policy, capacity) for capacity in (100, 800, 3000)]
    assert all(one.index.shape[1] == AGES for one in found)
    kinds = {(one.class_set, float(np.ptp(one.index)) > 0) for one in found}
    assert kinds <= {(0, True), (1, True), (0, False)}


def test_a_guard_begins_with_the_file_and_looks_at_what_else_can_be_learned() -> None:
    """With refits the other class set too, below the file's; without them nothing but the file."""
    of, policy = traffic(sample("to-c"), standard()), Gittins({"refit_requests": EVERY})
    index = np.random.default_rng(3).random((math.prod(STEPS[1]), AGES))
    sets = class_set_tables(of, EVERY)
    alone = plugin_tables(of, policy, FittedReturns(1, index, 600))
    assert alone.categories == LEVELS * len(index)
    assert np.all(alone.values[alone.rows] == np.repeat(index, LEVELS, axis=0))
    more = plugin_tables(of, policy, FittedReturns(1, index, 600, refits=True))
    for found in (alone, more):
        assert found.classes is not None
        assert found.classes.tolist() == sets[1].classes.tolist()
    mine, other = np.split(more.values[more.rows], [LEVELS * len(index)], axis=1)
    assert np.array_equal(other, sets[0].values[sets[0].rows])
    early = more.since < 600
    assert np.all(mine[early] == alone.at(0))
    assert np.array_equal(mine[~early], sets[1].values[sets[1].rows[~early]])
    chosen = more.chosen(policy, 1000)
    assert chosen.classes is not None
    assert chosen.classes.max() < math.prod(STEPS[0]) + math.prod(STEPS[1])


def test_an_empty_trace_has_the_prior() -> None:
    """All classes alike."""
    of = traffic(select(sample("to-c"), np.arange(0)), standard())
    found: FittedReturns = fit_at_end(of, EVERY, 0)
    assert found.requests == 0
    assert np.all(found.index == found.index[0])


def test_refits_come_early_then_every_so_many_requests() -> None:
    """At a quarter and at half of the usual distance first; the first row knows nothing."""
    refits = refits_of(2_000, 512.0)
    assert refits.since.tolist() == [0, 128, 256, 512, 1_024, 1_536]
    assert refits.number.tolist() == [0, 1, 2, 4, 8, 12]
    assert refits.bin[[127, 128, 1_999]].tolist() == [0, 1, 15]
    assert refits_of(0, 512.0).since.tolist() == [0]

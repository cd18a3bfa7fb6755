"""What an engine sees of prompts and returns equals what a trace shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.arrays import Float64s
from kvscope.core.hits import standard
from kvscope.learning import recent_blocks
from kvscope.learning.offline.features import chained, prefix_features
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import ROWS
from kvscope.learning.returns.offline import class_tables
from kvscope.learning.returns.online import ReturnsLearner
from kvscope.policies.gittins import AGES, Gittins
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import Traffic, traffic
from tests.golden.samples import SAMPLES, sample
from tests.long import long
from tests.oracles.replay import paths
from tests.oracles.turns import turns_before, walk
from tests.policies.traffics import first, traffics
from tests.vllm_plugin.fakes import FakeRequest, asked_in

EVERY = 64.0


class Served:
    """What an engine with the plugin makes of a trace, one request after the other."""

    def __init__(self, of: Traffic, most_keys: int = 1 << 30) -> None:
        by = FittedReturns(np.zeros((ROWS, AGES)), 0, refits=True)
        self.learner = ReturnsLearner(Gittins({"refit_requests": EVERY}), of.block_size, by)
        self.learner.recent._most_keys = most_keys
        self.classes: list[int] = []
        self.cuts: list[Sequence[int]] = []
        self.since, self.tables = [0], list[Float64s]()
        self.most = 0
        for number, (one, arrival_s) in enumerate(asked_in(of)):
            changed, seen = self.learner.arrive(one, arrival_s)
            if changed:
                self.since.append(number)
            if changed or not self.tables:
                self.tables.append(self.learner.table)
            self.learner.end(one, seen)
            self.classes.append(self.learner.category(one, seen))
            self.cuts.append(self.learner.cuts(seen))
            self.most = max(self.most, self.learner.recent.keys)


@pytest.mark.parametrize("name", ["to-c", "regime-change", *map(long, SAMPLES)])
def test_classes_and_tables_are_the_simulators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Request by request or from the whole trace: the same, in the least memory that does."""
    monkeypatch.setattr(recent_blocks, "_AT_A_TIME", 1)
    of = traffic(sample(name), standard())
    expected = class_tables(of, EVERY)
    found = Served(of)
    assert expected.classes is not None
    assert expected.cuts is not None
    assert found.classes == expected.classes.tolist()
    assert np.array_equal(found.cuts, expected.cuts)
    assert found.since == expected.since.tolist()
    for told_now, table in zip(found.tables[1:], expected.values[expected.rows[1:]], strict=True):
        np.testing.assert_allclose(told_now, table, rtol=1e-9, atol=1e-15)


def test_a_sample_of_the_blocks_does_in_little_memory() -> None:
    """An eighth of the blocks at most: hardly a class is another, and the index stays near."""
    of = traffic(sample("to-c"), standard())
    expected = class_tables(of, EVERY)
    exact = Served(of)
    some = Served(of, exact.most // 8)
    assert some.most <= exact.most // 8 + int(of.length.max())
    assert np.mean(np.array(some.classes) != expected.classes) < 0.05
    near = some.tables[-1] / exact.tables[-1]
    assert np.median(np.abs(np.log(near))) < 0.25


def test_what_was_not_touched_for_a_window_is_forgotten() -> None:
    """However many requests come, it remembers two windows' blocks at the most."""
    learner = ReturnsLearner(Gittins({"refit_requests": 4}), 16, None)
    sizes = []
    for number in range(400):
        one = FakeRequest(str(number), 160, 16, [(number, place) for place in range(11)])
        _, seen = learner.arrive(one, float(number))
        learner.end(one, seen)
        sizes.append(learner.recent.keys)
        assert seen.match.known_blocks == 0
    assert max(sizes) <= 11 * 2 * 36
    assert any(after < before for before, after in pairwise(sizes))


def test_a_table_of_a_file_stays_unless_it_says_otherwise() -> None:
    """`refits` is for the time after as many requests as the file's."""
    of = traffic(sample("to-c"), standard())
    index = np.full((ROWS, AGES), 0.5)
    for refits, requests in ((False, 0), (True, 501)):
        by = FittedReturns(index, requests, refits=refits)
        learner = ReturnsLearner(Gittins({"refit_requests": EVERY}), of.block_size, by)
        for number, arrival_s in enumerate(of.arrival_s[:500].tolist()):
            one = FakeRequest(str(number), 600, 20, [(number, place) for place in range(40)])
            assert not learner.arrive(one, arrival_s)[0]
        assert np.array_equal(learner.table, by.values)
    assert "fitted once to 501 requests, and after" in learner.in_words
    assert "without a guard" in learner.in_words


def test_returns_to_a_request_that_is_being_served_count_at_once() -> None:
    """Its class is known when it comes; the prompt of one that is given up was touched too."""
    learner = ReturnsLearner(Gittins({"refit_requests": EVERY}), 16, None)
    first, again, gone = (FakeRequest(name, 160, 16, list(range(11))) for name in "abc")
    estimator = learner._estimator
    assert estimator is not None

    def returned() -> float:
        return float(sum(of[0].sum() for of in estimator._bins.values()))

    _, one = learner.arrive(first, 1.0)
    _, two = learner.arrive(again, 5.0)
    assert returned() == 10
    learner.end(first, one)
    assert returned() == 10
    _, three = learner.arrive(gone, 6.0)
    assert returned() == 20
    learner.end(again, two)
    learner.forget(three)
    assert returned() == 20


MEMORIES = st.sampled_from((0, 1, 3, 10**9))


@st.composite
def answered(draw: st.DrawFn) -> Traffic:
    """Random traffic whose paths go on into outputs, or do not."""
    of = draw(traffics(most=16))
    outputs = st.lists(st.integers(0, 3), min_size=len(of.leaf), max_size=len(of.leaf))
    beyond = np.array(draw(outputs), dtype=np.int32) * of.block_size
    return of._replace(input_tokens=np.maximum(of.input_tokens - beyond, 1))


@settings(deadline=None, max_examples=150)
@given(answered(), MEMORIES)
def test_they_are_those_of_a_walk(of: Traffic, memory: int) -> None:
    """Blocks known, how long the deepest waited, and the turn before, where no head is shared."""
    found = prefix_features(of, last_touch_segments(of), memory)
    walked = walk(of, memory)
    assert found.known().tolist() == [one.known for one in walked]
    assert found.of_deepest(found.wait_s, 0.0).tolist() == [one.waited_s for one in walked]
    before = found.before(found.whole)
    assert before.tolist() == [-1 if one.before is None else one.before for one in walked]
    turns, began = chained(before)
    for at in range(len(walked)):
        earlier = turns_before(walked, at)
        assert (turns[at], began[at]) == (len(earlier), [at, *earlier][-1])


def known_after(of: Traffic, requests: int) -> Traffic:
    """Return the first requests' traffic, with outputs as far as those requests carry them."""
    every, before = paths(of), first(of, requests)
    length, leaf = before.length.copy(), before.leaf.copy()
    for at in range(requests):
        touched = set(chain.from_iterable(every[at + 1 : requests]))
        prompt = int(of.input_tokens[at]) // of.block_size
        depths = [depth + 1 for depth, block in enumerate(every[at]) if block in touched]
        length[at] = max([min(prompt, len(every[at])), *depths])
        leaf[at] = every[at][length[at] - 1] if length[at] else 0
    return before._replace(length=length, leaf=leaf)


@settings(deadline=None, max_examples=150)
@given(answered(), MEMORIES, st.data())
def test_outputs_count_only_once_they_are_carried_on(
    of: Traffic, memory: int, data: st.DataObject
) -> None:
    """No feature depends on a block of an output that only later requests carry."""
    requests = data.draw(st.integers(0, len(of.leaf)))
    whole, alone = (
        prefix_features(part, last_touch_segments(part), memory)
        for part in (first(of, requests), known_after(of, requests))
    )
    assert alone.known().tolist() == whole.known().tolist()
    assert (
        alone.of_deepest(alone.wait_s, 0.0).tolist() == whole.of_deepest(whole.wait_s, 0.0).tolist()
    )
    assert alone.before(alone.whole).tolist() == whole.before(whole.whole).tolist()


def test_nobody_goes_on_with_nothing() -> None:
    """No requests, and none that share anything."""
    none = np.zeros(0, dtype=np.int64)
    assert [len(one) for one in chained(none)] == [0, 0]
    turns, began = chained(np.full(3, -1))
    assert (turns.tolist(), began.tolist()) == ([0, 0, 0], [0, 1, 2])

"""What the plugin knows of requests when they end is what the simulator knows of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvscope.core.hits import standard
from kvscope.learning.conversations import read_hints
from kvscope.learning.ends.chances import FEATURES, NOTHING, SHARED_HEAD, chance
from kvscope.learning.ends.offline import turn_features
from kvscope.learning.ends.online import EndsLearner, TurnTracker
from kvscope.learning.offline.learners import plugin_tables
from kvscope.policies.tlru_learned import ENDS_SOON, TLruLearned
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import Traffic, traffic
from tests.golden.samples import SAMPLES, sample
from tests.learning.drawn_trees import drawn_ends
from tests.vllm_plugin.fakes import FakeRequest, asked_in

FITTED = drawn_ends(7)


class Served:
    """What an engine with the plugin makes of a trace, one request after the other."""

    def __init__(self, of: Traffic, window_s: float, most_keys: int = 1 << 30) -> None:
        self.learner = EndsLearner(TLruLearned(), of.block_size, replace(FITTED, window_s=window_s))
        familiar = self.learner._turns.recent
        familiar._most_keys = most_keys
        known, self.classes, self.most = [], list[int](), 0
        for one, arrival_s in asked_in(of):
            changed, asked = self.learner.arrive(one, read_hints(one), arrival_s)
            assert not changed
            known.append(self.learner.features(one, asked))
            self.classes.append(self.learner.category(one, asked))
            self.learner.end(one, asked)
            self.most = max(self.most, familiar.keys)
        self.known = np.array(known)


@pytest.mark.parametrize("window_s", [10_800.0, 600.0])
@pytest.mark.parametrize("name", SAMPLES)
def test_features_and_classes_are_the_simulators(name: str, window_s: float) -> None:
    """Every feature of every request to its last bit, and whether its conversation ends."""
    of = traffic(sample(name), standard())
    expected = turn_features(of, last_touch_segments(of), window_s).known
    found = Served(of, window_s)
    for at, feature in enumerate(FEATURES):
        assert found.known[:, at].tolist() == expected[:, at].tolist(), feature
    tables = plugin_tables(of, TLruLearned(), replace(FITTED, window_s=window_s))
    assert tables.classes is not None
    assert found.classes == tables.classes.tolist()
    assert 0 < np.mean(found.classes) < 1


def test_a_sample_of_the_blocks_does_in_little_memory() -> None:
    """An eighth of the blocks at most: hardly a request is of another class."""
    of = traffic(sample("to-c"), standard())
    exact = Served(of, 10_800.0)
    some = Served(of, 10_800.0, exact.most // 8)
    assert some.most <= exact.most // 8 + int(of.length.max())
    assert np.mean(np.array(some.classes) != np.array(exact.classes)) < 0.05


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many heads and partings there are, the latest are remembered."""
    monkeypatch.setattr("kvscope.learning.conversations.MOST_REMEMBERED", 50)
    turns = TurnTracker(60.0, most_requests=64)
    for number in range(1000):
        head = number // 2
        turns.end([(number, "said")], turns.arrive([head, (number, 1)], float(number)).number)
        assert len(turns._heads) <= 50
        assert len(turns._ways) <= 50
    assert turns.recent.keys <= 2 * 2 * 60 * 2
    assert len(turns._ways) == 50


def test_a_head_that_many_share_is_no_turn() -> None:
    """After four ways of going on, the fifth begins anew; so does whoever comes too late."""
    turns = TurnTracker(1000.0)
    found = []
    for number in range(SHARED_HEAD + 2):
        turns.arrive(["head"], float(10 * number))
        found.append(turns.arrive(["head", number], float(10 * number + 1)))
    assert [one.turns for one in found[:2]] == [1, 1]
    assert [one.turns for one in found[SHARED_HEAD:]] == [0, 0]
    assert found[-1].since_s == found[-1].mean_gap_s == NOTHING
    assert found[-1].head_requests == 2 * SHARED_HEAD + 3
    late = turns.arrive(["head", 1, 2], 5000.0)
    assert (late.known_blocks, late.turns, late.head_requests) == (0, 0, 0)


def test_the_threshold_decides() -> None:
    """Below it a conversation ends; with none nobody's does."""
    one = FakeRequest("a", 160, 16, list(range(11)))
    learner = EndsLearner(TLruLearned(), 16, FITTED)
    _, asked = learner.arrive(one, read_hints(one), 1.0)
    foreseen = chance(FITTED.trees, learner.features(one, asked))
    for threshold, ends in ((foreseen, False), (np.nextafter(foreseen, 1.0), True), (0.0, False)):
        judged = EndsLearner(TLruLearned(), 16, replace(FITTED, threshold=float(threshold)))
        _, asked = judged.arrive(one, read_hints(one), 1.0)
        assert (judged.category(one, asked) == ENDS_SOON) == ends
    assert "fitted once to 1234 requests, not refitted" in learner.in_words
    assert "without the simulator's guard" in learner.in_words

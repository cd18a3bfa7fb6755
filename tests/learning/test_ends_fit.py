"""One fit to the end of a trace is what a refit would learn there, and a replay can go by it."""

from __future__ import annotations

import numpy as np

from kvscope.learning.ends.chances import chance
from kvscope.learning.ends.file import NO_TREES
from kvscope.learning.ends.offline import (
    CAUTIOUS,
    THRESHOLDS,
    EndPredictor,
    EndsOffline,
    turn_features,
)
from kvscope.learning.offline.learners import plugin_tables
from kvscope.policies.tlru import TLru
from kvscope.policies.tlru_learned import TLruLearned
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import replay
from tests.learning.drawn_trees import drawn_ends
from tests.learning.test_refit_tables import first, told

VALUES = {"xi_tokens": 1024.0, "refit_s": 120.0, "horizon_s": 200.0}


def test_a_fit_is_the_refit_at_its_time() -> None:
    """Cut off at a refit, the first part of a trace gives the very trees of that refit."""
    of = told("to-c")
    whole = EndPredictor(of, VALUES["refit_s"]).predicted(VALUES["horizon_s"])
    learned = [at for at in range(1, len(whole.fits)) if whole.fits[at] is not whole.fits[at - 1]]
    row = learned[len(learned) // 2]
    now_s = float(of.arrival_s[whole.since[row]] // VALUES["refit_s"] * VALUES["refit_s"])
    part = EndPredictor(first(of, int(whole.since[row])), VALUES["refit_s"])
    found = part.fitted_at(now_s, VALUES["horizon_s"])
    assert found is not None
    assert found == whole.fits[row]


def test_the_capacity_chooses_the_threshold() -> None:
    """That of the shadows at the end; without one that which costs little where it is wrong."""
    of = told("to-c")
    policy = TLruLearned(VALUES)
    plain = EndsOffline().fit(of, policy)
    assert (plain.threshold, plain.horizon_s, plain.window_s) == (CAUTIOUS, 200.0, 36 * 120.0)
    judge = EndPredictor(of, VALUES["refit_s"]).shadows(VALUES["horizon_s"])
    found = {}
    for capacity in (0, 300, 1000, 4_000_000):
        fitted = EndsOffline().fit(of, policy, capacity)
        last = int(judge.taken(judge.costs(policy, capacity))[-1])
        assert fitted.threshold == THRESHOLDS[last]
        assert fitted.trees == plain.trees
        found[capacity] = fitted.threshold
    assert found[0] == found[4_000_000] == 0.0
    assert max(found.values()) > 0.0


def test_of_few_requests_nothing_is_learned() -> None:
    """No trees, and nobody is taken to end."""
    few = EndsOffline().fit(first(told("to-c"), 40), TLruLearned(VALUES))
    assert (few.trees, few.threshold, few.requests) == (NO_TREES, 0.0, 0)


def test_a_replay_by_one_fit_takes_each_request_by_its_chance() -> None:
    """One request by its trees' sum; with no threshold the replay is that of T-LRU."""
    of, policy = told("to-c"), TLruLearned(VALUES)
    fitted = drawn_ends(3)
    tables = plugin_tables(of, policy, fitted)
    known = turn_features(of, last_touch_segments(of), fitted.window_s).known
    expected = [int(chance(fitted.trees, one) >= fitted.threshold) for one in known.tolist()]
    assert tables.classes is not None
    assert tables.classes.tolist() == expected
    nobody = EndsOffline().fit(first(of, 40), policy)
    plain = replay(of, TLru({"xi_tokens": 1024.0}), 20_000)
    none = replay(of, policy, 20_000, tables=plugin_tables(of, policy, nobody))
    some = replay(of, policy, 20_000, tables=tables)
    assert none.hit_blocks.tolist() == plain.hit_blocks.tolist()
    assert some.hit_blocks.tolist() != plain.hit_blocks.tolist()
    assert np.isin(tables.classes, (0, 1)).all()

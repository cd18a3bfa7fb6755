"""Whom a request goes on with: against a walk block by block, and by what is known by then."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.learning.offline.prefix_features import chained, prefix_features
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import Traffic
from tests.oracles.turns import turns_before, walk
from tests.policies.traffics import traffics

MEMORIES_S = st.sampled_from((0.0, 1.0, 3.0, 1e9))


@st.composite
def answered(draw: st.DrawFn) -> Traffic:
    """Random traffic whose paths go on into outputs, or do not."""
    of = draw(traffics(most=16))
    outputs = st.lists(st.integers(0, 3), min_size=len(of.leaf), max_size=len(of.leaf))
    beyond = np.array(draw(outputs), dtype=np.int32) * of.block_size
    return of._replace(input_tokens=np.maximum(of.input_tokens - beyond, 1))


@settings(deadline=None, max_examples=150)
@given(answered(), MEMORIES_S)
def test_they_are_those_of_a_walk(of: Traffic, memory_s: float) -> None:
    """Blocks known, how long the deepest waited, and the turn before, where no head is shared."""
    found = prefix_features(of, last_touch_segments(of), memory_s)
    walked, _ = walk(of, memory_s, math.inf)
    assert found.known().tolist() == [one.known for one in walked]
    assert found.of_deepest(found.wait_s, 0.0).tolist() == [one.waited_s for one in walked]
    before = found.before(found.whole)
    assert before.tolist() == [-1 if one.before is None else one.before for one in walked]
    turns, began = chained(before)
    for at in range(len(walked)):
        earlier = turns_before(walked, at)
        assert (turns[at], began[at]) == (len(earlier), [at, *earlier][-1])


def test_nobody_goes_on_with_nothing() -> None:
    """No requests, and none that share anything."""
    none = np.zeros(0, dtype=np.int64)
    assert [len(one) for one in chained(none)] == [0, 0]
    turns, began = chained(np.full(3, -1))
    assert (turns.tolist(), began.tolist()) == ([0, 0, 0], [0, 1, 2])

"""Whom a request goes on with: against a walk block by block, and by what is known by then."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.learning.offline.features import chained, prefix_features
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import Traffic
from tests.learning.test_refit_tables import first
from tests.oracles.replay import paths
from tests.oracles.turns import turns_before, walk
from tests.policies.traffics import traffics

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

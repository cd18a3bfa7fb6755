"""A shadow of the plugin keeps what the simulator's replay keeps, request by request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvscope.learning.lanes import Scores
from kvscope.learning.shadow_cache import Kind, ShadowCache, ShadowCaches, ShadowRequest
from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.threshold_lru import ThresholdLru
from kvscope.policies.tlru import TLru
from kvscope.policies.ttl import Ttl
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables, replay
from kvscope.replay.traffic import Traffic
from tests.policies.traffics import CATEGORIES, long_traffic, traffics

POLICIES: dict[str, LanePolicy] = {
    "gittins": Gittins({"xi_tokens": 5}),
    "gittins hits": Gittins({"xi_tokens": 0}),
    "gittins ttl": Gittins({"xi_tokens": 5, "ttl_s": 3.0}),
    "lru": Lru(),
    "tlru": TLru({"xi_tokens": 5, "next_prompt_tokens": 2}),
    "threshold-lru": ThresholdLru({"threshold_tokens": 9}),
    "ttl": Ttl({"ttl_s": 2.0}),
}
PARTS = 3
UNCUT: Kind = (0, ())


def visits(of: Traffic, kinds: list[list[Kind]]) -> Iterator[ShadowRequest]:
    """Yield the requests of a trace, with the segments of their paths."""
    moved = last_touch_segments(of)
    start = moved.start
    for number, arrival_s in enumerate(of.arrival_s.tolist()):
        taken = range(moved.starts[number], moved.starts[number + 1])
        segments = [(int(start[k]), int(moved.end[k]), int(moved.previous[k])) for k in taken]
        blocks = int(of.length[number] + of.anonymous[number])
        history = int(of.history_tokens[number])
        kind = [each[number] for each in kinds]
        yield ShadowRequest(number, arrival_s, segments, blocks, history, kind)


def sound(shadow: ShadowCache) -> None:
    """Sizes are those of the runs, and no more; knots count the runs that hang from them."""
    runs, sizes, hanging = shadow._runs, 0, dict[int, int]()
    for at in range(runs.slots):
        if shadow.end[at] > runs.first[at]:
            sizes += shadow.end[at] - runs.first[at]
            knot = runs.parent[at]
            if knot is not None:
                hanging[id(knot)] = hanging.get(id(knot), 0) + 1
    assert shadow.blocks == sizes <= shadow.capacity
    known = {id(knot): knot.children[shadow._which] for each in runs.branches for knot in each}
    assert {one: count for one, count in known.items() if count} == hanging


def compared(of: Traffic, policy: LanePolicy, capacity: int, seed: int) -> NDArray[np.int32]:
    """Two shadows with classes and tables of their own beside two replays; the hits of one."""
    rng = np.random.default_rng(seed)
    classes = [rng.integers(CATEGORIES - 1, size=len(of.leaf)) for _ in range(2)]
    longest = int((of.length + of.anonymous).max()) + 2
    cuts = np.sort(rng.integers(longest, size=(2, len(of.leaf), PARTS - 1)), axis=-1)
    kinds = [
        list(zip(of_shadow.tolist(), map(tuple, places.tolist()), strict=True))
        for of_shadow, places in zip(classes, cuts, strict=True)
    ]
    values = rng.lognormal(-4.0, 2.0, (2, LEVELS * CATEGORIES * PARTS, AGES))
    shadows = ShadowCaches(2, policy, of.block_size, capacity)
    shadows.use([Scores(each) for each in values])
    found = [shadows.serve(one) for one in visits(of, kinds)]
    for which, shadow in enumerate(shadows.each):
        sound(shadow)
        since, columns = np.zeros(1, dtype=np.int64), (classes[which], cuts[which])
        tables = Tables.of(since, values[which][None], *(x.astype(np.int32) for x in columns))
        expected = replay(of, policy, capacity, tables=tables).hit_blocks
        assert np.minimum([each[which] for each in found], of.look).tolist() == expected.tolist()
    return expected


@settings(deadline=None, max_examples=120)
@given(traffics(), st.integers(1, 30), st.sampled_from(sorted(POLICIES)), st.integers(0, 99))
def test_small_tries(of: Traffic, capacity: int, name: str, seed: int) -> None:
    """Branches, repeats, ties, classes and tables of any kind."""
    compared(of, POLICIES[name], capacity, seed)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("capacity", [25, 150])
def test_at_length(capacity: int, name: str) -> None:
    """Thousands of requests over a deep trie, with many that hang from each other."""
    assert compared(long_traffic(3000, 7), POLICIES[name], capacity, 5).any()


def test_runs_are_forgotten_in_little_memory() -> None:
    """Of the latest 64 requests alone: what others had touched last is gone."""
    of = long_traffic(3000, 7)
    shadows = ShadowCaches(2, Gittins({"xi_tokens": 0}), of.block_size, 5000, slots=64)
    shadows.use([Scores(np.ones((2, AGES)))] * 2)
    nothing = [[UNCUT] * len(of.leaf)] * 2
    some = 0
    for one in visits(of, nothing):
        some += sum(shadows.serve(one))
        if one.number % 100 == 0:
            for shadow in shadows.each:
                sound(shadow)
    lanes = [len(heap) for shadow in shadows.each for heap in shadow._heaps]
    assert some > 0
    assert max(lanes) <= 2 * 64 + 64


@settings(deadline=None, max_examples=80)
@given(traffics(), st.integers(1, 30), st.randoms(use_true_random=False), st.integers(0, 99))
def test_what_does_not_fit_does_no_harm(
    of: Traffic, capacity: int, draw: object, seed: int
) -> None:
    """Stretches at wrong places, of wrong givers, of requests that leave nothing: sizes stay."""
    assert hasattr(draw, "randrange")
    rng = np.random.default_rng(seed)
    shadows = ShadowCaches(2, Gittins({"xi_tokens": 5}), of.block_size, capacity, slots=8)
    shadows.use([Scores(each) for each in rng.lognormal(-4.0, 2.0, (2, LEVELS, AGES))])
    for one in visits(of, [[UNCUT] * len(of.leaf)] * 2):
        wrong = []
        for start, end, _ in one.segments:
            begin = max(start + draw.randrange(-1, 2), 0)
            wrong.append((begin, max(end + draw.randrange(-1, 3), begin), draw.randrange(9)))
        shadows.serve(one._replace(segments=wrong, served=draw.randrange(4) > 0))
        for shadow in shadows.each:
            sizes = [
                max(end - first, 0)
                for end, first in zip(shadow.end, shadows._runs.first, strict=True)
            ]
            assert shadow.blocks == sum(sizes) <= capacity

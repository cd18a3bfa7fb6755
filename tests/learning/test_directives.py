"""Directives of requests, honoured block by block as a slow replay reads them token by token."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.directives import Directives, Retain, StatedDirectives
from kvscope.learning.directives.offline import stated_tables
from kvscope.policies.base import Policy
from kvscope.policies.trtllm_priority import TrtllmPriority
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic
from tests.oracles.replay import left_behind
from tests.policies import drawn
from tests.policies.traffics import traffics

INFINITE = float("inf")
Key = Callable[[int, int, float], tuple[float, ...]]
"""Of a block: the last request, its depth there, the time since. Lowest leaves."""

RETAINS = st.builds(
    Retain,
    start=st.integers(0, 4),
    to=st.sampled_from((None, 1, 2, 5)),
    priority=st.sampled_from((0, 20, 35, 36, 100)),
    ttl_s=st.sampled_from((None, 0.0, 1.0, 3.0)),
)
DIRECTIVES = st.builds(
    Directives,
    retain=st.lists(RETAINS, max_size=3).map(tuple),
    ends=st.sampled_from((False, False, True)),
    pause=st.booleans(),
    refresh=st.booleans(),
)


def stated_at(directives: Directives, token: int) -> tuple[float, float]:
    """Return the priority and TTL of a token: of the last range that covers it."""
    priority, ttl_s = 35.0, 0.0
    for each in directives.retain:
        if each.start <= token < (INFINITE if each.to is None else each.to):
            priority, ttl_s = each.priority, INFINITE if each.ttl_s is None else each.ttl_s
    return priority, ttl_s


def by_priority(stated: Sequence[Directives], size: int) -> Key:
    """Return the key of TensorRT-LLM: level, then the time since the block joined its queue."""

    def key(request: int, depth: int, idle_s: float) -> tuple[float, ...]:
        priority, ttl_s = stated_at(stated[request], depth * size)
        if priority > 35 and idle_s > ttl_s:
            return 35.0, ttl_s - idle_s
        return priority, -idle_s

    return key


def slow_replay(traffic: Traffic, key: Key, capacity: int) -> tuple[list[int], int]:
    """Return the hits of each request and the evictions; only leaves leave."""
    cached: dict[Hashable, tuple[int, int, Hashable]] = {}
    hits, evictions = [], 0
    for at, blocks in enumerate(left_behind(traffic)):
        now_s, leading = float(traffic.arrival_s[at]), 0
        while leading < len(blocks) and blocks[leading] in cached:
            leading += 1
        hits.append(min(leading, int(traffic.look[at])))
        for depth, block in enumerate(blocks):
            cached[block] = at, depth, blocks[depth - 1] if depth else None
        while len(cached) > capacity:
            parents = {parent for _, _, parent in cached.values()}

            def order(block: Hashable, now_s: float = now_s) -> tuple[float, ...]:
                owner, depth, _ = cached[block]
                idle_s = float(now_s - traffic.arrival_s[owner])
                return *key(owner, depth, idle_s), owner, -depth

            del cached[min((block for block in cached if block not in parents), key=order)]
            evictions += 1
    return hits, evictions


@st.composite
def directed(draw: st.DrawFn) -> tuple[Traffic, StatedDirectives, list[Directives]]:
    """Draw traffic in which each request states one of three directives, or nothing."""
    traffic = draw(traffics())
    distinct = draw(st.lists(DIRECTIVES, min_size=1, max_size=3))
    requests = len(traffic.leaf)
    number = draw(
        st.lists(st.integers(-1, len(distinct) - 1), min_size=requests, max_size=requests)
    )
    stated = StatedDirectives(np.array(number, dtype=np.int32), tuple(distinct))
    return traffic, stated, [distinct[each] if each >= 0 else Directives() for each in number]


def compiled(
    traffic: Traffic, stated: StatedDirectives, policy: Policy, capacity: int
) -> tuple[list[int], int]:
    """Return the same from the kernel."""
    done = replay(traffic, policy, capacity, tables=stated_tables(traffic, stated))
    return done.hit_blocks.tolist(), done.evictions


@settings(deadline=None, max_examples=80)
@given(st.data(), directed())
def test_priorities_are_tensorrt_llms(
    data: st.DataObject, of: tuple[Traffic, StatedDirectives, list[Directives]]
) -> None:
    """Levels, expiry to the default level's end, ranges of tokens, leaves only."""
    traffic, stated, each = of
    capacity = data.draw(drawn.capacities(traffic))
    expected = slow_replay(traffic, by_priority(each, traffic.block_size), capacity)
    assert compiled(traffic, stated, TrtllmPriority(), capacity) == expected

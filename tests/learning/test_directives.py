"""Directives of requests, honoured block by block as a slow replay reads them token by token."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.directives import Directives, Retain, StatedDirectives
from kvscope.learning.directives import offline
from kvscope.learning.directives.offline import stated_tables
from kvscope.policies.base import Policy
from kvscope.policies.soft_ttl import SoftTtl
from kvscope.policies.trtllm_priority import TrtllmPriority
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic
from tests.learning.test_returns_offline import chain
from tests.oracles import leases
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


def by_ttl(traffic: Traffic, stated: Sequence[Directives], pause_ttl_s: float) -> Key:
    """Return the key of `soft-ttl`: how long the TTL that counts has been over.

    A block's TTL is that of its last request, or, if that does not refresh, what was left of the
    one before.
    """
    ttls_s: list[list[float]] = []
    ends_s: dict[Hashable, float] = {}
    for at, blocks in enumerate(left_behind(traffic)):
        now_s, ttls = float(traffic.arrival_s[at]), list[float]()
        for depth, block in enumerate(blocks):
            ttl_s = ttl_of(stated[at], depth * traffic.block_size, pause_ttl_s)
            if not stated[at].refresh and block in ends_s:
                ttl_s = max(ends_s[block] - now_s, 0.0)
            else:
                ends_s[block] = now_s + ttl_s
            ttls.append(ttl_s)
        ttls_s.append(ttls)

    def key(request: int, depth: int, idle_s: float) -> tuple[float, ...]:
        ttl_s = ttls_s[request][depth]
        return (INFINITE if ttl_s and idle_s <= ttl_s else ttl_s - idle_s,)

    return key


def ttl_of(directives: Directives, token: int, pause_ttl_s: float) -> float:
    """Return the TTL that a request states for a token, by a range or a pause."""
    if directives.ends:
        return 0.0
    if directives.pause and all(not stated_at(directives, each)[1] for each in range(token + 10)):
        return pause_ttl_s
    return stated_at(directives, token)[1]


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
    done = replay(traffic, policy, capacity, tables=stated_tables(traffic, stated, type(policy)))
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


@settings(deadline=None, max_examples=300)
@given(st.data(), directed(), st.sampled_from((1.0, 4.0)), st.sampled_from((0.0, 0.5, 1.0)))
def test_times_to_live_and_pins(
    data: st.DataObject,
    of: tuple[Traffic, StatedDirectives, list[Directives]],
    pause_ttl_s: float,
    share: float,
) -> None:
    """A TTL protects, a pause pins; an end, or no room for a pin, does not. Some do not refresh."""
    traffic, stated, each = of
    capacity = data.draw(drawn.capacities(traffic))
    policy = SoftTtl({"pause_ttl_s": pause_ttl_s, "pin_share": share})
    longest = [longest_ttl(directives, pause_ttl_s) for directives in each]
    granted = leases.hold(traffic, longest, int(share * capacity)).granted
    honoured = [
        directives if held else Directives(refresh=directives.refresh)
        for directives, held in zip(each, granted, strict=True)
    ]
    expected = slow_replay(traffic, by_ttl(traffic, honoured, pause_ttl_s), capacity)
    assert compiled(traffic, stated, policy, capacity) == expected


def longest_ttl(directives: Directives, pause_ttl_s: float) -> float:
    """Return the longest TTL of any token of a prompt."""
    if directives.ends:
        return 0.0
    longest = max(stated_at(directives, token)[1] for token in range(10))
    return pause_ttl_s if directives.pause and not longest else longest


@pytest.mark.parametrize(("refresh", "hit_blocks"), [(False, 4), (True, 0)])
def test_a_request_that_does_not_refresh_leaves_a_ttl_as_it_was(
    refresh: bool, hit_blocks: int
) -> None:
    """It states nothing itself: the pin of the request before it holds, or is given up."""
    one_chain = chain([4, 4, 4, 4], [0.0, 1.0, 2.0, 3.0])
    of = one_chain._replace(
        block_parent=np.array([0, 0, 1, 2, 3, 0, 5, 6, 7], dtype=np.int32),
        leaf=np.array([4, 4, 8, 4], dtype=np.int32),
    )
    distinct = (Directives(retain=(Retain(ttl_s=60.0),)), Directives(refresh=refresh))
    stated = StatedDirectives(np.array([0, 1, -1, -1], dtype=np.int32), distinct)
    hits, _ = compiled(of, stated, SoftTtl({"pin_share": 1.0}), 4)
    assert hits == [0, 4, 0, hit_blocks]


def test_many_requests_that_do_not_refresh_share_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their TTLs are cut to two digits, then to one, where there would be too many of them."""
    arrival_s = (np.arange(40) * 1.7).tolist()
    of = chain([4] * 40, arrival_s)
    distinct = (Directives(retain=(Retain(ttl_s=1000.0),)), Directives(refresh=False))
    stated = StatedDirectives(np.minimum(np.arange(40), 1).astype(np.int32), distinct)
    left_s = 1000.0 - np.array(arrival_s[1:])
    for most, digits in ((1024, None), (38, 2), (5, 1)):
        monkeypatch.setattr(offline, "_MOST_KEPT", most)
        tables = stated_tables(of, stated, SoftTtl).chosen(SoftTtl({"pin_share": 1.0}), 100)
        assert tables.classes is not None
        assert tables.cuts is not None
        row = tables.classes[1:] * (tables.cuts.shape[1] + 1)
        ttls_s = tables.at(0)[row, 0]
        least = left_s * (1.0 if digits is None else 1.0 - 10.0 ** (1 - digits))
        assert np.all((least - 1e-9 <= ttls_s) & (ttls_s <= left_s + 1e-9))
        assert len(np.unique(ttls_s)) <= most

"""Replay of the policies that keep blocks in a few queues by recency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, once
from kvscope.policies.base import ADAPT_EVERY, RECENT, LanePolicy
from kvscope.replay.kernels.loop import EvictionOrder, Now, observe_nothing, replay_loop, turn_of
from kvscope.replay.structures.bitset import add, discard, empty_sets, least, words_for
from kvscope.replay.structures.recent import note_recent, nothing_recent, sort_recent
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    CachedRuns,
    empty_runs,
    may_shrink,
    release,
    shrink,
)
from kvscope.replay.traffic import Traffic


class Lanes(NamedTuple):
    """The state of a lane policy: `queues` has a set a lane (bitset.py) of R requests.

    `places` (R x 2) has where the lane of each run's deepest block begins, and that lane; `recent`
    the tokens that recent requests computed (recent.py).
    """

    runs: CachedRuns
    queues: NDArray[np.uint64]
    places: Int32s
    recent: Int64s


def empty_lanes(traffic: Traffic, lanes: int, leaf: bool) -> Lanes:
    """Return an empty cache with so many lanes."""
    requests = len(traffic.leaf)
    return Lanes(
        empty_runs(traffic, leaf),
        empty_sets(lanes, requests),
        np.zeros((requests, 2), dtype=np.int32),
        nothing_recent(),
    )


def lanes_kernel(policy: type[LanePolicy], leaf: bool) -> Callable[..., Any]:
    """Return the kernel that replays a lane policy; `leaf` as in `Policy.leaves`.

    Policies that differ in parameters alone share one.
    """
    return _kernel_of(lanes_order(policy, leaf))


# The tier kernel (tiers.py) with one tier takes 1.2 to 1.4 times as long as this one.
_kernel_of = once(replay_loop)


def lanes_order(policy: type[LanePolicy], leaf: bool) -> EvictionOrder:
    """Return the eviction order of a lane policy; `leaf` as in `Policy.leaves`.

    Policies that differ in parameters alone share one.
    """
    return _order_of(
        policy.admits,
        policy.place,
        policy.score,
        policy.adapts,
        policy.adapt,
        policy.adaptive,
        leaf,
    )


@once
def _order_of(
    admits: Callable[..., bool],
    place: Callable[..., tuple[int, int]],
    score: Callable[..., float],
    adapts: Callable[..., bool],
    adapt: Callable[..., None],
    adaptive: bool,
    leaf: bool,
) -> EvictionOrder:
    """Return the order of these functions.

    A lane is a set of the requests whose runs end in it. A run changes lane when it shrinks past
    the depth where its blocks do, and leaves all lanes while a child run continues from its end.
    """
    for function in (admits, place, score, adapts, adapt):
        callable_in_kernels(function)

    @callable_in_kernels
    def lane_of(state: Lanes, request: int) -> int:
        return int(state.places[request, 1])

    @callable_in_kernels
    def enter(state: Lanes, traffic: Traffic, request: int, now: Now) -> None:
        """Note the lane that a run ends in, and where it begins."""
        cuts, end = traffic.cuts, state.runs.of[request, END]
        part = cuts.shape[1]
        while part > 0 and end <= cuts[request, part - 1]:
            part -= 1
        cut = cuts[request, part - 1] if part > 0 else 0
        begin, lane = place(turn_of(traffic, request, part), end, now.block_size, now.p)
        state.places[request, 0], state.places[request, 1] = max(begin, cut), lane

    @callable_in_kernels
    def join(state: Lanes, traffic: Traffic, request: int, now: Now) -> None:
        add(state.queues, words_for(len(state.places)), lane_of(state, request), request)

    @callable_in_kernels
    def lowest(state: Lanes, traffic: Traffic, now: Now) -> int:
        """Return the request whose run evicts the next block, -1 if there is none."""
        of, queues, words = state.runs.of, state.queues, words_for(len(state.places))
        victim, least_worth = -1, np.inf
        for lane in range(len(queues)):
            head = least(queues, words, lane)
            while head >= 0 and of[head, FIRST] >= of[head, END]:  # its blocks were taken over
                discard(queues, words, lane, head)
                head = least(queues, words, lane)
            if head < 0:
                continue
            worth = 0.0
            if len(queues) > 1:
                worth = score(lane, now.now_s - traffic.arrival_s[head], now.p, now.table)
            if victim < 0 or worth < least_worth or (worth == least_worth and head < victim):
                victim, least_worth = head, worth
        return victim

    @callable_in_kernels
    def evict_from(state: Lanes, traffic: Traffic, request: int, now: Now, most: int) -> int:
        """Evict up to `most` of a run's blocks, as far as they are in its deepest block's lane."""
        runs, queues, words = state.runs, state.queues, words_for(len(state.places))
        lane, begin = lane_of(state, request), state.places[request, 0]
        first = runs.of[request, FIRST]
        count = shrink(runs, request, most, max(first, begin), leaf, leaf)
        if first < runs.of[request, END] <= begin:
            enter(state, traffic, request, now)
        if runs.of[request, END] == first:
            discard(queues, words, lane, request)
            freed = release(runs, request) if leaf else -1
            if freed >= 0:
                add(queues, words, lane_of(state, freed), freed)
        elif not may_shrink(runs, request, leaf):
            discard(queues, words, lane, request)
        elif lane_of(state, request) != lane:
            discard(queues, words, lane, request)
            add(queues, words, lane_of(state, request), request)
        return count

    @callable_in_kernels
    def evict(state: Lanes, traffic: Traffic, request: int, now: Now, most: int) -> int:
        victim = lowest(state, traffic, now)
        return evict_from(state, traffic, victim, now, most) if victim >= 0 else 0

    @callable_in_kernels
    def expire(state: Lanes, traffic: Traffic, request: int, now: Now) -> int:
        blocks = max(state.runs.of[request, END] - state.runs.of[request, FIRST], 0)
        left = blocks
        while left > 0:
            left -= evict_from(state, traffic, request, now, left)
        return int(blocks)

    @callable_in_kernels
    def observe(state: Lanes, number: int, uncached_tokens: int, now: Now) -> None:
        if adapts(now.p):
            note_recent(state.recent, number, uncached_tokens)
            if (number + 1) % ADAPT_EVERY == 0:
                adapt(state.recent[RECENT : sort_recent(state.recent, number + 1)], now.p)

    return EvictionOrder(
        admits,
        enter=enter,
        join=join,
        evict=evict,
        expire=expire,
        observe=observe if adaptive else observe_nothing,
        leaf=leaf,
        climb=leaf,
    )

"""Replay of the policies that keep blocks in a few queues by recency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, lowest_bit, once
from kvscope.policies.base import ADAPT_EVERY, EARLY, RECENT, Floats, LanePolicy
from kvscope.replay.kernels.loop import (
    EvictionOrder,
    Now,
    do_nothing,
    observe_nothing,
    replay_loop,
    turn_of,
)
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

_ONE, _WORD = np.uint64(1), np.uint64(63)


class Lanes(NamedTuple):
    """The state of a lane policy: `queues` has a set a lane (bitset.py) of R requests.

    `busy` has a bit a lane, set where its queue may have members. `scored` (lanes x 3) is what is
    known of lanes whose worth changes in steps: the request that was weighed, its worth, and the
    time until which that holds.
    `places` (R x 2) has where the lane of each run's deepest block begins, and that lane; `recent`
    the tokens that recent requests computed (recent.py).
    """

    runs: CachedRuns
    queues: NDArray[np.uint64]
    busy: NDArray[np.uint64]
    scored: Floats
    places: Int32s
    recent: Int64s


def empty_lanes(traffic: Traffic, lanes: int, leaf: bool) -> Lanes:
    """Return an empty cache with so many lanes."""
    requests = len(traffic.leaf)
    return Lanes(
        empty_runs(traffic, leaf),
        empty_sets(lanes, requests),
        np.zeros(words_for(lanes), dtype=np.uint64),
        np.full((lanes, 3), -1.0),
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
        policy.next_step_s,
        policy.adaptive,
        policy.stepwise,
        leaf,
    )


@once
def _order_of(
    admits: Callable[..., bool],
    place: Callable[..., tuple[int, int]],
    score: Callable[..., float],
    adapts: Callable[..., bool],
    adapt: Callable[..., None],
    next_step_s: Callable[..., float],
    adaptive: bool,
    stepwise: bool,
    leaf: bool,
) -> EvictionOrder:
    """Return the order of these functions.

    A lane is a set of the requests whose runs end in it. A run changes lane when it shrinks past
    the depth where its blocks do, and leaves all lanes while a child run continues from its end.
    """
    for function in (admits, place, score, adapts, adapt, next_step_s):
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
    def queue(state: Lanes, request: int) -> None:
        """Add a request to the lane that its run ends in."""
        lane = lane_of(state, request)
        add(state.queues, words_for(len(state.places)), lane, request)
        state.busy[lane >> 6] |= _ONE << (np.uint64(lane) & _WORD)

    @callable_in_kernels
    def join(state: Lanes, traffic: Traffic, request: int, now: Now) -> None:
        queue(state, request)

    @callable_in_kernels
    def worth_of(state: Lanes, traffic: Traffic, lane: int, head: int, now: Now) -> float:
        """Return what a lane's oldest block is worth; one alone need not be weighed."""
        if len(state.queues) == 1:
            return 0.0
        scored = state.scored
        if not stepwise or scored[lane, 0] != head or now.now_s >= scored[lane, 2]:
            idle_s = now.now_s - traffic.arrival_s[head]
            scored[lane, 0], scored[lane, 1] = head, score(lane, idle_s, now.p, now.table)
            if stepwise:
                scored[lane, 2] = traffic.arrival_s[head] + next_step_s(idle_s) * EARLY
        return float(scored[lane, 1])

    @callable_in_kernels
    def retable(state: Lanes, traffic: Traffic, request: int, now: Now) -> None:
        for lane in range(len(state.scored)):
            state.scored[lane, 0] = -1.0

    @callable_in_kernels
    def lowest(state: Lanes, traffic: Traffic, now: Now) -> int:
        """Return the request whose run evicts the next block, -1 if there is none."""
        of, queues, words = state.runs.of, state.queues, words_for(len(state.places))
        victim, least_worth = -1, np.inf
        for word in range(len(state.busy)):
            busy = state.busy[word]
            while busy != 0:
                bit = lowest_bit(busy)
                busy ^= _ONE << np.uint64(bit)
                lane = (word << 6) + bit
                head = least(queues, words, lane)
                while head >= 0 and of[head, FIRST] >= of[head, END]:  # its blocks were taken over
                    discard(queues, words, lane, head)
                    head = least(queues, words, lane)
                if head < 0:
                    state.busy[word] ^= _ONE << np.uint64(bit)
                    continue
                worth = worth_of(state, traffic, lane, head, now)
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
                queue(state, freed)
        elif not may_shrink(runs, request, leaf):
            discard(queues, words, lane, request)
        elif lane_of(state, request) != lane:
            discard(queues, words, lane, request)
            queue(state, request)
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
        retable=retable if stepwise else do_nothing,
        observe=observe if adaptive else observe_nothing,
        leaf=leaf,
        climb=leaf,
    )

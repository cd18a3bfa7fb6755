"""Replay of the policies that keep blocks in a few queues by the request that hits them next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels, once
from kvscope.policies.base import NEVER, NextUsePolicy
from kvscope.replay.kernels.loop import EvictionOrder, Now, replay_loop, turn_of
from kvscope.replay.last_touch import NextTouches, next_touch
from kvscope.replay.structures.bitset import add, discard, empty_sets, least, words_for
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    NAMED,
    CachedRuns,
    empty_runs,
    may_shrink,
    release,
    shrink,
)
from kvscope.replay.traffic import Traffic

_DEPTH, _DEEP, _SHALLOW, _NEXT, _SINCE = range(5)


class NextUses(NamedTuple):
    """The state of a next-use policy over R requests.

    `places` (R x 5) has what `place` says of each request, then which request hits its deepest
    block next, and from which depth on that is so. `queues` has a set a lane (bitset.py) of 2 R
    members: r for the run of request r, whose deepest block is not hit again; 2 R - 1 - q for the
    one whose deepest block request q hits, which is `run_for[q]`. So the least member leaves first.
    """

    runs: CachedRuns
    future: NextTouches
    places: Int32s
    queues: NDArray[np.uint64]
    run_for: Int32s


def empty_next_uses(traffic: Traffic, lanes: int, future: NextTouches) -> NextUses:
    """Return an empty cache with so many lanes."""
    requests = len(traffic.leaf)
    return NextUses(
        empty_runs(traffic, leaf=True),
        future,
        np.zeros((requests, 5), dtype=np.int32),
        empty_sets(lanes, 2 * requests),
        np.zeros(requests, dtype=np.int32),
    )


@once
def next_uses_kernel(policy: type[NextUsePolicy]) -> Callable[..., Any]:
    """Return the kernel that replays a next-use policy.

    A queue holds the runs that may shrink, by their deepest block. No two of them wait for the same
    request: both would lie on its path, and the shallower could not shrink before the deeper.
    Source: Belady, IBM Systems Journal 1966; that the blocks of one next use are one segment of its
    path, and so need no heap, is kvscope's own.
    """
    place = callable_in_kernels(policy.place)

    @callable_in_kernels
    def lane_of(state: NextUses, request: int) -> int:
        places = state.places
        deep = state.runs.of[request, END] > places[request, _DEPTH]
        return int(places[request, _DEEP] if deep else places[request, _SHALLOW])

    @callable_in_kernels
    def member(state: NextUses, request: int) -> int:
        awaited = state.places[request, _NEXT]
        return request if awaited == NEVER else 2 * len(state.places) - 1 - awaited

    @callable_in_kernels
    def enter(state: NextUses, traffic: Traffic, request: int, now: Now) -> None:
        depth, deep, shallow = place(turn_of(traffic, request), now.block_size, now.p)
        places = state.places
        places[request, _DEPTH], places[request, _DEEP] = depth, deep
        places[request, _SHALLOW] = shallow

    @callable_in_kernels
    def queue(state: NextUses, request: int) -> None:
        """Queue a run that may shrink."""
        deepest, named = state.runs.of[request, END] - 1, state.runs.of[request, NAMED]
        awaited, since = NEVER, named
        if deepest < named:
            awaited, since = next_touch(state.future, request, deepest)
        state.places[request, _NEXT], state.places[request, _SINCE] = awaited, since
        if awaited != NEVER:
            state.run_for[awaited] = request
        words = words_for(2 * len(state.places))
        add(state.queues, words, lane_of(state, request), member(state, request))

    @callable_in_kernels
    def join(state: NextUses, traffic: Traffic, request: int, now: Now) -> None:
        queue(state, request)

    @callable_in_kernels
    def lowest(state: NextUses) -> int:
        """Return the request whose run evicts the next block, -1 if there is none."""
        of, queues, requests = state.runs.of, state.queues, len(state.places)
        words = words_for(2 * requests)
        for lane in range(len(queues)):
            head = least(queues, words, lane)
            while head >= 0:
                request = head if head < requests else int(state.run_for[2 * requests - 1 - head])
                if of[request, FIRST] < of[request, END]:
                    return request
                discard(queues, words, lane, head)  # its blocks were taken over
                head = least(queues, words, lane)
        return -1

    @callable_in_kernels
    def evict_from(state: NextUses, request: int, most: int) -> int:
        """Evict up to `most` of a queued run's blocks, as far as its deepest block's rank goes."""
        runs, places = state.runs, state.places
        first, depth = runs.of[request, FIRST], places[request, _DEPTH]
        words = words_for(2 * len(places))
        discard(state.queues, words, lane_of(state, request), member(state, request))
        stop = max(first, places[request, _SINCE])
        if runs.of[request, END] > depth:
            stop = max(stop, depth)
        count = shrink(runs, request, most, stop, climb=True, leaf=True)
        joining = request
        if runs.of[request, END] == first:
            joining = release(runs, request)
        elif not may_shrink(runs, request, leaf=True):
            joining = -1
        if joining >= 0:
            queue(state, joining)
        return count

    @callable_in_kernels
    def evict(state: NextUses, traffic: Traffic, request: int, now: Now, most: int) -> int:
        victim = lowest(state)
        return evict_from(state, victim, most) if victim >= 0 else 0

    @callable_in_kernels
    def expire(state: NextUses, traffic: Traffic, request: int, now: Now) -> int:
        blocks = max(state.runs.of[request, END] - state.runs.of[request, FIRST], 0)
        left = blocks
        while left > 0:
            left -= evict_from(state, request, left)
        return int(blocks)

    return replay_loop(
        EvictionOrder(
            policy.admits, enter=enter, join=join, evict=evict, expire=expire, leaf=True, climb=True
        )
    )

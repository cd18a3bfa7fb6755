"""Replay of the policies that keep blocks in a few queues by who will hit them next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel, once
from kvscope.policies.base import NEVER, Floats, NextUsePolicy, Turn
from kvscope.replay.last_touch import NextTouches, Segments, next_touch
from kvscope.replay.structures.bitset import add, discard, empty_sets, least, words_for
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    NAMED,
    Ints,
    empty_knots,
    empty_runs,
    may_shrink,
    release,
    shrink,
    take_over,
)
from kvscope.replay.traffic import Traffic

_DEPTH, _DEEP, _SHALLOW, _NEXT, _SINCE = range(5)


class NextUses(NamedTuple):
    """What a next-use policy and its kernel keep up: `runs.py` says what `runs` and `knots` are.

    `places` (R x 5) has what `place` said of each request, then who will hit its deepest block
    next, and from which depth on that is so. `queues` has a set a lane (bitset.py) of 2 R members:
    r for the run of request r, whose deepest block nobody will hit; 2 R - 1 - q for the one whose
    deepest block request q will hit, which is `holder[q]`. So the least member leaves first.
    """

    runs: Ints
    knots: Ints
    places: Ints
    queues: NDArray[np.uint64]
    holder: Ints


def empty_next_uses(traffic: Traffic, lanes: int) -> NextUses:
    """An empty cache with so many lanes."""
    requests = len(traffic.leaf)
    return NextUses(
        empty_runs(traffic.leaf, traffic.length),
        empty_knots(len(traffic.block_parent), leaf=True),
        np.zeros((requests, 5), dtype=np.int32),
        empty_sets(lanes, 2 * requests),
        np.zeros(requests, dtype=np.int32),
    )


@once
def next_uses_kernel(policy: type[NextUsePolicy]) -> Callable[..., Any]:
    """The kernel that replays a next-use policy.

    A queue holds the runs that may shrink, by their deepest block. No two of them wait for the same
    request: both would lie on its path, and the shallower could not shrink before the deeper.
    Source: Belady, IBM Systems Journal 1966; that the blocks of one next use are one stretch of its
    path, and so need no heap, is kvscope's own.
    """
    place = callable_in_kernels(policy.place)

    @callable_in_kernels
    def lane_of(runs: Ints, places: Ints, request: int) -> int:
        deep = runs[request, END] > places[request, _DEPTH]
        return int(places[request, _DEEP] if deep else places[request, _SHALLOW])

    @callable_in_kernels
    def member(places: Ints, request: int) -> int:
        awaited = places[request, _NEXT]
        return request if awaited == NEVER else 2 * len(places) - 1 - awaited

    @callable_in_kernels
    def join(
        runs: Ints,
        places: Ints,
        queues: NDArray[np.uint64],
        words: int,
        holder: Ints,
        future: NextTouches,
        request: int,
    ) -> None:
        """Queue a run that may shrink."""
        deepest, named = runs[request, END] - 1, runs[request, NAMED]
        awaited, since = NEVER, named
        if deepest < named:
            awaited, since = next_touch(future, request, deepest)
        places[request, _NEXT], places[request, _SINCE] = awaited, since
        if awaited != NEVER:
            holder[awaited] = request
        add(queues, words, lane_of(runs, places, request), member(places, request))

    @callable_in_kernels
    def lowest(
        runs: Ints, places: Ints, queues: NDArray[np.uint64], words: int, holder: Ints
    ) -> int:
        """The request whose run gives the next block, -1 if there is none."""
        for lane in range(len(queues)):
            head = least(queues, words, lane)
            while head >= 0:
                run = head if head < len(places) else int(holder[2 * len(places) - 1 - head])
                if runs[run, FIRST] < runs[run, END]:
                    return run
                discard(queues, words, lane, head)  # its blocks were taken over
                head = least(queues, words, lane)
        return -1

    @callable_in_kernels
    def give_up(
        runs: Ints,
        knots: Ints,
        parents: Ints,
        places: Ints,
        queues: NDArray[np.uint64],
        words: int,
        holder: Ints,
        future: NextTouches,
        request: int,
        most: int,
    ) -> int:
        """Evict up to `most` of a queued run's blocks, as far as its deepest block's rank goes."""
        first, depth = runs[request, FIRST], places[request, _DEPTH]
        discard(queues, words, lane_of(runs, places, request), member(places, request))
        stop = max(first, places[request, _SINCE])
        if runs[request, END] > depth:
            stop = max(stop, depth)
        gone = shrink(runs, knots, parents, request, most, stop, climb=True, leaf=True)
        joining = request
        if runs[request, END] == first:
            joining = release(runs, knots, request)
        elif not may_shrink(runs, knots, request, leaf=True):
            joining = -1
        if joining >= 0:
            join(runs, places, queues, words, holder, future, joining)
        return gone

    @kernel
    def replay(
        traffic: Traffic,
        moved: Segments,
        future: NextTouches,
        state: NextUses,
        capacity: int,
        p: Floats,
        ttl_s: float,
        mandatory: bool,
        hits: NDArray[np.int32],
    ) -> int:
        parents, length, arrival_s = traffic.block_parent, traffic.length, traffic.arrival_s
        anonymous, look, category = traffic.anonymous, traffic.look, traffic.category
        starts, giver, stops, block = moved.starts, moved.previous, moved.end, moved.block
        history, following = traffic.history_tokens, traffic.next_prompt_tokens
        runs, knots, places = state.runs, state.knots, state.places
        queues, holder = state.queues, state.holder
        requests, block_size = len(length), traffic.block_size
        words = words_for(2 * requests)
        size, evictions, expired = 0, 0, 0
        for request in range(requests):
            now = arrival_s[request]
            while expired < request and arrival_s[expired] < now - ttl_s:
                left = runs[expired, END] - runs[expired, FIRST]
                while left > 0:
                    gone = give_up(
                        runs, knots, parents, places, queues, words, holder, future,
                        expired, left,
                    )  # fmt: skip
                    left -= gone
                    size -= gone
                    evictions += gone
                expired += 1

            found, cached = take_over(runs, knots, request, starts, giver, stops, block, leaf=True)
            hits[request] = min(found, look[request])
            turn = Turn(request, now, history[request], category[request], following[request])
            end = length[request] + anonymous[request]
            runs[request, END] = end
            size += end - cached
            depth, deep, shallow = place(turn, block_size, p)
            places[request, _DEPTH], places[request, _DEEP] = depth, deep
            places[request, _SHALLOW] = shallow
            for step in range(0 if mandatory else 1, 2):  # others first, then its own blocks too
                if step == 1 and end > 0 and may_shrink(runs, knots, request, leaf=True):
                    join(runs, places, queues, words, holder, future, request)
                while size > capacity:
                    victim = lowest(runs, places, queues, words, holder)
                    if victim < 0:
                        break
                    gone = give_up(
                        runs, knots, parents, places, queues, words, holder, future,
                        victim, size - capacity,
                    )  # fmt: skip
                    size -= gone
                    evictions += gone
        return evictions

    return replay

"""Replay of the policies that keep blocks in a few queues by recency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel, once
from kvscope.core.prefix import ancestor
from kvscope.policies.base import ADAPT_EVERY, RECENT, Floats, LanePolicy, Turn
from kvscope.replay.last_touch import Segments
from kvscope.replay.structures.bitset import add, discard, empty_sets, least, words_for
from kvscope.replay.structures.recent import note_recent, nothing_recent, sort_recent
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    TIP,
    Ints,
    empty_knots,
    empty_runs,
    may_shrink,
    release,
    shrink,
    take_over,
)
from kvscope.replay.traffic import Traffic


class Lanes(NamedTuple):
    """What a lane policy and its kernel keep up: `runs.py` says what `runs` and `knots` are.

    `queues` has a set a lane (bitset.py), `places` (R x 3) what `place` said of each request.
    """

    runs: Ints
    knots: Ints
    queues: NDArray[np.uint64]
    places: Ints
    recent: NDArray[np.int64]


def empty_lanes(traffic: Traffic, lanes: int, leaf: bool) -> Lanes:
    """An empty cache with so many lanes."""
    requests = len(traffic.leaf)
    return Lanes(
        empty_runs(traffic.leaf, traffic.length),
        empty_knots(len(traffic.block_parent), leaf),
        empty_sets(lanes, requests),
        np.zeros((requests, 3), dtype=np.int32),
        nothing_recent(),
    )


def lanes_kernel(policy: type[LanePolicy], leaf: bool) -> Callable[..., Any]:
    """The kernel that replays a lane policy; `leaf` as in `Policy.leaves`.

    Policies that differ in parameters alone share one.
    """
    return _kernel_of(
        policy.admits,
        policy.place,
        policy.score,
        policy.adapts,
        policy.adapt,
        policy.adaptive,
        leaf,
    )


@once
def _kernel_of(
    admits: Callable[..., bool],
    place: Callable[..., tuple[int, int, int]],
    score: Callable[..., float],
    adapts: Callable[..., bool],
    adapt: Callable[..., None],
    adaptive: bool,
    leaf: bool,
) -> Callable[..., Any]:
    """The kernel of these functions.

    A lane is a set of the requests whose runs end in it. A run changes lane when it shrinks past
    the depth where its blocks do, and leaves all lanes while a child hangs from its end.
    """
    for function in (admits, place, score, adapts, adapt):
        callable_in_kernels(function)

    @callable_in_kernels
    def lane_of(runs: Ints, places: Ints, request: int) -> int:
        depth, deep, shallow = places[request, 0], places[request, 1], places[request, 2]
        return int(deep if runs[request, END] > depth else shallow)

    @callable_in_kernels
    def lowest(
        queues: NDArray[np.uint64],
        words: int,
        lanes: int,
        runs: Ints,
        arrival_s: NDArray[np.float64],
        now: float,
        p: Floats,
        table: Floats,
    ) -> int:
        """The request whose run gives the next block, -1 if there is none."""
        victim, least_worth = -1, np.inf
        for lane in range(lanes):
            head = least(queues, words, lane)
            while head >= 0 and runs[head, FIRST] >= runs[head, END]:  # its blocks were taken over
                discard(queues, words, lane, head)
                head = least(queues, words, lane)
            if head < 0:
                continue
            worth = score(lane, now - arrival_s[head], p, table) if lanes > 1 else 0.0
            if victim < 0 or worth < least_worth or (worth == least_worth and head < victim):
                victim, least_worth = head, worth
        return victim

    @callable_in_kernels
    def give_up(
        runs: Ints,
        knots: Ints,
        parents: Ints,
        queues: NDArray[np.uint64],
        words: int,
        places: Ints,
        request: int,
        most: int,
    ) -> int:
        """Evict up to `most` of a run's blocks, as far as they are in its deepest block's lane."""
        lane, depth = lane_of(runs, places, request), places[request, 0]
        first = runs[request, FIRST]
        stop = max(first, depth) if runs[request, END] > depth else first
        gone = shrink(runs, knots, parents, request, most, stop, leaf, leaf)
        if runs[request, END] == first:
            discard(queues, words, lane, request)
            freed = release(runs, knots, request) if leaf else -1
            if freed >= 0:
                add(queues, words, lane_of(runs, places, freed), freed)
        elif not may_shrink(runs, knots, request, leaf):
            discard(queues, words, lane, request)
        elif lane_of(runs, places, request) != lane:
            discard(queues, words, lane, request)
            add(queues, words, lane_of(runs, places, request), request)
        return gone

    @kernel
    def replay(
        traffic: Traffic,
        moved: Segments,
        state: Lanes,
        capacity: int,
        p: Floats,
        tables: NDArray[np.float64],
        since: NDArray[np.int64],
        ttl_s: float,
        mandatory: bool,
        hits: NDArray[np.int32],
    ) -> int:
        parents, length, arrival_s = traffic.block_parent, traffic.length, traffic.arrival_s
        anonymous, look, inputs = traffic.anonymous, traffic.look, traffic.input_tokens
        starts, giver, stops, block = moved.starts, moved.previous, moved.end, moved.block
        history, category = traffic.history_tokens, traffic.category
        following, block_size = traffic.next_prompt_tokens, traffic.block_size
        requests = len(length)
        runs, knots, queues = state.runs, state.knots, state.queues
        places, recent = state.places, state.recent
        words, lanes = words_for(requests), len(queues)
        table = tables[0]
        size, evictions, expired, period = 0, 0, 0, 0
        observing = adaptive and adapts(p)
        for request in range(requests):
            now = arrival_s[request]
            while period + 1 < len(since) and since[period + 1] <= request:
                period += 1
                table = tables[period]
            while expired < request and arrival_s[expired] < now - ttl_s:
                left = runs[expired, END] - runs[expired, FIRST]
                while left > 0:
                    gone = give_up(runs, knots, parents, queues, words, places, expired, left)
                    left -= gone
                    size -= gone
                    evictions += gone
                expired += 1

            found, cached = take_over(runs, knots, request, starts, giver, stops, block, leaf)
            hits[request] = min(found, look[request])
            turn = Turn(request, now, history[request], category[request], following[request])
            end = length[request] + anonymous[request]
            if not admits(turn, p):
                if leaf:
                    unused = length[request] - found
                    runs[request, TIP] = ancestor(parents, runs[request, TIP], unused)
                end = found
            runs[request, END] = end
            size += end - cached
            depth, deep, shallow = place(turn, block_size, p)
            places[request, 0], places[request, 1], places[request, 2] = depth, deep, shallow
            for step in range(0 if mandatory else 1, 2):  # others first, then its own blocks too
                if step == 1 and end > 0 and may_shrink(runs, knots, request, leaf):
                    add(queues, words, lane_of(runs, places, request), request)
                while size > capacity:
                    victim = lowest(queues, words, lanes, runs, arrival_s, now, p, table)
                    if victim < 0:
                        break
                    most = size - capacity
                    gone = give_up(runs, knots, parents, queues, words, places, victim, most)
                    size -= gone
                    evictions += gone
            if adaptive and observing:
                uncached = max(inputs[request] - hits[request] * block_size, 0)
                note_recent(recent, request, uncached)
                if (request + 1) % ADAPT_EVERY == 0:
                    adapt(recent[RECENT : sort_recent(recent, request + 1)], p)
        return evictions

    return replay

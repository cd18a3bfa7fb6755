"""Replay of the policies that keep blocks in a few queues by recency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.jit import callable_in_kernels, kernel, once
from kvscope.policies.base import Floats, LanePolicy, Turn
from kvscope.prefix import ancestor
from kvscope.simulate.bitset import add, discard, empty_sets, least, words_for
from kvscope.simulate.handovers import Handovers
from kvscope.simulate.runs import (
    END,
    FIRST,
    TIP,
    Ints,
    empty_runs,
    may_shrink,
    release,
    shrink,
    take_over,
)
from kvscope.simulate.traffic import Traffic

RECENT = 1024  # requests that an adaptive policy looks back on
ADAPT_EVERY = 256


@once
def lanes_kernel(policy: type[LanePolicy], leaf: bool) -> Callable[..., Any]:
    """The kernel that replays a lane policy; `leaf` as in `Policy.leaves`.

    A lane is a set of the requests whose runs end in it. A run changes lane when it shrinks past
    the depth where its blocks do, and leaves all lanes while a child hangs from its end.
    """
    admits = callable_in_kernels(policy.admits)
    place = callable_in_kernels(policy.place)
    score = callable_in_kernels(policy.score)
    adapt = callable_in_kernels(policy.adapt)
    adaptive = policy.adaptive

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
        moved: Handovers,
        capacity: int,
        lanes: int,
        p: Floats,
        tables: NDArray[np.float64],
        since: NDArray[np.int64],
        ttl_s: float,
        mandatory: bool,
    ) -> tuple[NDArray[np.int32], int, NDArray[np.int32]]:
        parents, length, arrival_s = traffic.block_parent, traffic.length, traffic.arrival_s
        anonymous, look, inputs = traffic.anonymous, traffic.look, traffic.input_tokens
        starts, giver, stops, block = moved.starts, moved.giver, moved.end, moved.block
        history, category = traffic.history_tokens, traffic.category
        following, block_size = traffic.next_prompt_tokens, traffic.block_size
        requests = len(length)
        runs = empty_runs(traffic.leaf, length)
        knots = np.zeros((2, len(parents) if leaf else 1), dtype=np.int32)
        queues, words = empty_sets(lanes, requests), words_for(requests)
        places = np.zeros((requests, 3), dtype=np.int32)
        hits = np.zeros(requests, dtype=np.int32)
        recent = np.zeros(RECENT if adaptive else 1, dtype=np.int64)
        table = tables[0]
        size, evictions, expired, period = 0, 0, 0, 0
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
            if adaptive:
                recent[request % RECENT] = max(inputs[request] - hits[request] * block_size, 0)
                if (request + 1) % ADAPT_EVERY == 0:
                    adapt(np.sort(recent[: min(request + 1, RECENT)]), p)
        return hits, evictions, runs[:, END].copy()

    return replay

"""Replay of a hierarchy of caches in which evicted blocks move down and hit ones up again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.policies.base import Floats, LanePolicy, Turn
from kvscope.replay.last_touch import Segments
from kvscope.replay.structures.bitset import add, discard, least, words_for
from kvscope.replay.structures.runs import Ints
from kvscope.replay.structures.tier_runs import Counts, lane_of, may_shrink, move_down, take_up
from kvscope.replay.traffic import Traffic


@cache
def places_kernel(policy: type[LanePolicy]) -> Callable[..., Any]:
    """The kernel that fills in where each request's blocks belong (R x 3, `LanePolicy.place`)."""
    place = callable_in_kernels(policy.place)

    @kernel
    def places(traffic: Traffic, p: Floats, found: Ints) -> None:
        arrival_s, history, category = (
            traffic.arrival_s,
            traffic.history_tokens,
            traffic.category,
        )
        following, block_size = traffic.next_prompt_tokens, traffic.block_size
        for request in range(len(history)):
            turn = Turn(
                request, arrival_s[request], history[request], category[request], following[request]
            )
            depth, deep, shallow = place(turn, block_size, p)
            found[request, 0], found[request, 1], found[request, 2] = depth, deep, shallow

    return places


@callable_in_kernels
def _lowest_lane(
    queues: NDArray[np.uint64],
    words: int,
    first_lane: Counts,
    worth: Floats,
    ends: Ints,
    tier: int,
) -> tuple[int, int]:
    """The lane of a tier that gives the next block and the request at its head; -1 for none."""
    chosen, victim = -1, -1
    for lane in range(first_lane[tier], first_lane[tier + 1]):
        head = least(queues, words, lane)
        while head >= 0 and ends[head, tier] == ends[head, tier + 1]:  # its blocks were taken up
            discard(queues, words, lane, head)
            head = least(queues, words, lane)
        if head < 0:
            continue
        if (
            chosen < 0
            or worth[lane] < worth[chosen]
            or (worth[lane] == worth[chosen] and head < victim)
        ):
            chosen, victim = lane, head
    return chosen, victim


@callable_in_kernels
def _settle(
    capacity: Counts,
    first_lane: Counts,
    worth: Floats,
    queues: NDArray[np.uint64],
    words: int,
    places: Ints,
    ends: Ints,
    tips: Ints,
    hanging: Ints,
    waiting: Ints,
    parents: Ints,
    named: Ints,
    expired: Counts,
    size: Counts,
    left: Counts,
    demoted: Counts,
    leaf: bool,
) -> None:
    """Move blocks down, from the first tier on, until no tier holds more than it can."""
    for tier in range(len(size)):
        while size[tier] > capacity[tier]:
            lane, victim = _lowest_lane(queues, words, first_lane, worth, ends, tier)
            if lane < 0:
                break
            first, stop = ends[victim, tier], places[tier, victim, 0]
            stop = max(first, stop) if ends[victim, tier + 1] > stop else first
            move_down(
                queues, words, places, ends, tips, hanging, waiting, parents, named, expired,
                size, left, demoted, victim, tier, size[tier] - capacity[tier], stop, leaf,
            )  # fmt: skip
            if ends[victim, tier + 1] == first or not may_shrink(
                ends, tips, hanging, waiting, named, victim, tier, leaf
            ):
                discard(queues, words, lane, victim)
            elif lane_of(ends, places, victim, tier) != lane:
                discard(queues, words, lane, victim)
                add(queues, words, lane_of(ends, places, victim, tier), victim)


@kernel
def exclusive_kernel(
    traffic: Traffic,
    moved: Segments,
    capacity: Counts,
    ttl_s: Floats,
    places: Ints,
    first_lane: Counts,
    worth: Floats,
    queues: NDArray[np.uint64],
    leaf: bool,
    ends: Ints,
    tips: Ints,
    hanging: Ints,
    waiting: Ints,
    hits: Ints,
    counts: NDArray[np.int64],
) -> None:
    """Replay T tiers: fill in each request's `hits` (R x T), `ends` and `counts`.

    `counts` has a row for each of: the requests that have expired in a tier, its blocks, those that
    left it, those that moved down. `ends`, `tips`, `hanging` and `waiting` as in `tier_runs`.
    Lanes are numbered through all tiers: those of tier t from `first_lane[t]` on. `places` (T x R
    x 3) says which ones a request's blocks belong to, as `LanePolicy.place` does, and `worth` what
    each lane's blocks are worth. `queues` has an empty set a lane. `leaf` as in `tier_runs`.
    """
    parents, length, arrival_s = traffic.block_parent, traffic.length, traffic.arrival_s
    anonymous, look, leaves = traffic.anonymous, traffic.look, traffic.leaf
    starts, giver, stops, block = moved.starts, moved.previous, moved.end, moved.block
    requests, tiers = len(length), len(capacity)
    words = words_for(requests)
    expired, size, left, demoted = counts[0], counts[1], counts[2], counts[3]
    for request in range(requests):
        for tier in range(tiers - 1, -1, -1):  # the last first, so that nothing only passes through
            before = arrival_s[request] - ttl_s[tier]
            while expired[tier] < request and arrival_s[expired[tier]] < before:
                old = expired[tier]
                first = ends[old, tier]
                if ends[old, tier + 1] > first:
                    move_down(
                        queues, words, places, ends, tips, hanging, waiting, parents, length,
                        expired, size, left, demoted, old, tier, ends[old, tier + 1] - first,
                        first, leaf,
                    )  # fmt: skip
                expired[tier] += 1
        _settle(
            capacity, first_lane, worth, queues, words, places, ends, tips, hanging, waiting,
            parents, length, expired, size, left, demoted, leaf,
        )  # fmt: skip
        take_up(
            ends, hanging, size, hits, request, look[request], starts, giver, stops, block,
            leaf,
        )  # fmt: skip
        end = length[request] + anonymous[request]
        ends[request, 1:] = end
        if leaf:
            tips[request, :] = leaves[request]
        size[0] += end
        if end > 0 and may_shrink(ends, tips, hanging, waiting, length, request, 0, leaf):
            add(queues, words, lane_of(ends, places, request, 0), request)
        _settle(
            capacity, first_lane, worth, queues, words, places, ends, tips, hanging, waiting,
            parents, length, expired, size, left, demoted, leaf,
        )  # fmt: skip

"""Replay of a hierarchy of caches in which evicted blocks move down and hit ones up again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import by_reference, callable_in_kernels, kernel, once
from kvscope.policies.base import LanePolicy
from kvscope.replay.kernels.loop import turn_of
from kvscope.replay.last_touch import Segments
from kvscope.replay.structures.bitset import discard, least, words_for
from kvscope.replay.structures.tier_runs import (
    Tiers,
    join_lane,
    lane_of,
    may_shrink,
    move_down,
    take_up,
)
from kvscope.replay.traffic import Traffic


@once
def places_kernel(policy: type[LanePolicy]) -> Callable[..., Any]:
    """Return the kernel that fills in `Tiers.places` of each request (R x 3)."""
    place = callable_in_kernels(policy.place)

    @kernel
    def fill_places(traffic: Traffic, p: Float64s, places: Int32s) -> None:
        for request in range(len(traffic.leaf)):
            turn, end = turn_of(traffic, request), traffic.length[request]
            depth, deep = place(turn, end + traffic.anonymous[request], traffic.block_size, p)
            _, shallow = place(turn, depth, traffic.block_size, p)
            places[request, 0], places[request, 1], places[request, 2] = depth, deep, shallow

    return fill_places


@callable_in_kernels
def _lowest_lane(state: Tiers, tier: int) -> tuple[int, int]:
    """Return the lane of a tier that evicts next and the request at its head; -1 for none."""
    ends, queues, worth, words = state.ends, state.queues, state.worth, words_for(len(state.ends))
    chosen, victim = -1, -1
    for lane in range(state.first_lane[tier], state.first_lane[tier + 1]):
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
def _settle(state: Tiers, capacity: Int64s, leaf: bool) -> None:
    """Move blocks down, from the first tier on, until no tier holds more than it can."""
    ends, words = state.ends, words_for(len(state.ends))
    for tier in range(len(capacity)):
        while state.size[tier] > capacity[tier]:
            lane, victim = _lowest_lane(state, tier)
            if lane < 0:
                break
            first, stop = ends[victim, tier], state.places[tier, victim, 0]
            stop = max(first, stop) if ends[victim, tier + 1] > stop else first
            move_down(state, victim, tier, state.size[tier] - capacity[tier], stop, leaf)
            if ends[victim, tier + 1] == first or not may_shrink(state, victim, tier, leaf):
                discard(state.queues, words, lane, victim)
            elif lane_of(state, victim, tier) != lane:
                discard(state.queues, words, lane, victim)
                join_lane(state, victim, tier)


@kernel
def exclusive_kernel(
    traffic: Traffic,
    segments: Segments,
    capacity: Int64s,
    ttl_s: Float64s,
    state: Tiers,
    leaf: bool,
    hits: Int32s,
) -> None:
    """Replay T empty tiers: fill in `state` and each request's `hits` (R x T)."""
    traffic, segments, state = by_reference(traffic), by_reference(segments), by_reference(state)
    arrival_s, ends, expired = traffic.arrival_s, state.ends, state.expired
    for request in range(len(traffic.leaf)):
        # The last tier first, so that nothing only passes through.
        for tier in range(len(capacity) - 1, -1, -1):
            before = arrival_s[request] - ttl_s[tier]
            while expired[tier] < request and arrival_s[expired[tier]] < before:
                old = expired[tier]
                first = ends[old, tier]
                if ends[old, tier + 1] > first:
                    move_down(state, old, tier, ends[old, tier + 1] - first, first, leaf)
                expired[tier] += 1
        _settle(state, capacity, leaf)
        take_up(state, segments, hits, request, traffic.look[request], leaf)
        end = traffic.length[request] + traffic.anonymous[request]
        for tier in range(len(capacity)):  # to assign slices takes longer, or to join the loops
            ends[request, tier + 1] = end
        if leaf:
            for tier in range(len(capacity)):
                state.tips[request, tier] = traffic.leaf[request]
        state.size[0] += end
        if end > 0 and may_shrink(state, request, 0, leaf):
            join_lane(state, request, 0)
        _settle(state, capacity, leaf)

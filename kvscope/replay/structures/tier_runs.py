"""What a hierarchy of caches holds: for each request one interval of depths a tier.

As in `runs`, the cached blocks that a request was the last to touch are one run of its path. Tier t
takes what falls off the deep end of tier t - 1, and that lies right above what tier t has of the
run: so each tier holds an interval, and the intervals join.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import callable_in_kernels
from kvscope.replay.last_touch import Segments
from kvscope.replay.structures.bitset import add, empty_sets, words_for
from kvscope.replay.traffic import Traffic


class Tiers(NamedTuple):
    """T tiers of R requests over a trie of N blocks.

    `ends` (R x T + 1): tier t holds the depths from column t to column t + 1. `named` (R) is where
    anonymous blocks begin. Lanes are numbered through all tiers, those of tier t from
    `first_lane[t]` on: `places` (T x R x 3) says which ones a request's blocks belong to, the one
    from a depth on and the one before it (no policy of tiers has more), `worth` what each lane's
    blocks are worth, and `queues` has a set a lane. By tier: `size` is its blocks, `evicted` those
    that left it, `demoted` those of them that moved down, `expired` the first request that is not
    past the tier's time.

    The others are kept up only where nothing but leaves may leave, which here means that the tiers
    from the first to any other together hold no block without its parent. `tips` (R x T) has the
    block that each interval ends in; of an empty one that may still be given something, the block
    that would be its end then. `child_runs` (N + 1 x T) counts the runs of other requests that
    continue right below a block with their first block in tier t. Those blocks are never in a
    higher tier than it, so only those in its own keep it there; `waiting` is the request whose
    interval ends in it and cannot shrink before they are gone.
    """

    ends: Int32s
    tips: Int32s
    child_runs: Int32s
    waiting: Int32s
    parents: Int32s
    named: Int32s
    places: Int32s
    first_lane: Int64s
    worth: Float64s
    queues: NDArray[np.uint64]
    size: Int64s
    evicted: Int64s
    demoted: Int64s
    expired: Int64s


def empty_tiers(
    traffic: Traffic, places: Int32s, first_lane: Int64s, worth: Float64s, leaf: bool
) -> Tiers:
    """Return empty tiers; `places`, `first_lane` and `worth` as in `Tiers`."""
    tiers, requests = len(places), len(traffic.leaf)
    blocks = len(traffic.block_parent) if leaf else 1
    counts = np.zeros((4, tiers), dtype=np.int64)
    return Tiers(
        ends=np.zeros((requests, tiers + 1), dtype=np.int32),
        tips=np.zeros((requests if leaf else 1, tiers), dtype=np.int32),
        child_runs=np.zeros((blocks, tiers), dtype=np.int32),
        waiting=np.zeros(blocks, dtype=np.int32),
        parents=traffic.block_parent,
        named=traffic.length,
        places=places,
        first_lane=first_lane,
        worth=worth,
        queues=empty_sets(int(first_lane[-1]), requests),
        size=counts[0],
        evicted=counts[1],
        demoted=counts[2],
        expired=counts[3],
    )


@callable_in_kernels
def top_tier(state: Tiers, request: int) -> int:
    """Return the highest tier that holds something of a request's run, which is not empty."""
    tier = 0
    while state.ends[request, tier + 1] == state.ends[request, 0]:
        tier += 1
    return tier


@callable_in_kernels
def take_up(
    state: Tiers, segments: Segments, hits: Int32s, request: int, look: int, leaf: bool
) -> None:
    """Take the cached blocks of a request's path out of all tiers, and count them as its hits.

    Hits are the leading ones, as far as it looks.
    """
    ends, size = state.ends, state.size
    tiers = len(size)
    leading, start, above = 0, 0, 0
    for k in range(segments.starts[request], segments.starts[request + 1]):
        before, until = segments.previous[k], segments.end[k]
        last = ends[before, tiers]
        if leaf and start > 0 and last > start:
            state.child_runs[above, top_tier(state, before)] -= 1
        leads = leading == start
        for tier in range(tiers):
            low, high = ends[before, tier], min(ends[before, tier + 1], until)
            if high > low:
                size[tier] -= high - low
                if leads:
                    hits[request, tier] += max(min(high, look) - low, 0)
                    leading = high
            ends[before, tier] = max(low, until)
        ends[before, tiers] = max(last, until)
        if leaf and last > until:
            state.child_runs[segments.block[k], top_tier(state, before)] += 1
        start, above = until, segments.block[k]


@callable_in_kernels
def may_shrink(state: Tiers, request: int, tier: int, leaf: bool) -> bool:
    """Return whether an interval that is not empty may shrink; if not, let it wait at its tip."""
    if not leaf or state.ends[request, tier + 1] > state.named[request]:
        return True
    tip = state.tips[request, tier]
    if state.child_runs[tip, tier] == 0:
        return True
    state.waiting[tip] = request
    return False


@callable_in_kernels
def lane_of(state: Tiers, request: int, tier: int) -> int:
    """Return the lane that the end of an interval belongs to."""
    places = state.places
    depth, deep, shallow = (
        places[tier, request, 0],
        places[tier, request, 1],
        places[tier, request, 2],
    )
    return int(deep if state.ends[request, tier + 1] > depth else shallow)


@callable_in_kernels
def join_lane(state: Tiers, request: int, tier: int) -> None:
    """Add an interval to the lane that its end belongs to."""
    words = words_for(len(state.ends))
    add(state.queues, words, lane_of(state, request, tier), request)


@callable_in_kernels
def move_down(state: Tiers, request: int, tier: int, most: int, stop: int, leaf: bool) -> None:
    """Move the deepest blocks of an interval, at most `most` and down to depth `stop`, down.

    They go to the next tier in which they are not past their time, if there is one. The lane that
    the interval itself is in is left as it is.
    """
    ends, tips, child_runs = state.ends, state.tips, state.child_runs
    tiers = len(state.size)
    old = ends[request, tier + 1]
    end = max(stop, old - most)
    tip = 0
    if leaf:
        lowest, end, tip = end, max(end, min(old, state.named[request])), tips[request, tier]
        while end > lowest and child_runs[tip, tier] == 0:
            tip = state.parents[tip]
            end -= 1
    count = old - end
    to = tier + 1
    while to < tiers and request < state.expired[to]:
        to += 1
    for passed in range(tier, to):
        ends[request, passed + 1] = end
        if leaf:
            tips[request, passed] = tip
    state.size[tier] -= count
    state.evicted[tier] += count
    if to < tiers:
        state.size[to] += count
        state.demoted[tier] += count
        joined_empty = ends[request, to + 1] == old
        if joined_empty and may_shrink(state, request, to, leaf):
            join_lane(state, request, to)
    if not leaf or end > ends[request, 0] or end == 0:
        return
    child_runs[tip, tier] -= 1
    if to < tiers:
        child_runs[tip, to] += 1
    freed = state.waiting[tip]
    ends_there = tips[freed, tier] == tip and (
        ends[freed, tier] < ends[freed, tier + 1] <= state.named[freed]
    )
    if child_runs[tip, tier] == 0 and ends_there:
        join_lane(state, freed, tier)

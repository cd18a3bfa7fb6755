"""What a hierarchy of caches holds: for each request one interval of depths a tier.

As in `runs`, the cached blocks that a request was the last to touch are one stretch of its path.
Tier t takes what falls off the deep end of tier t - 1, and that lies right above what tier t has of
the stretch: so each tier holds an interval, and the intervals join.

`ends` (int32) has a row a request: tier t holds the depths from column t to column t + 1. The
others are kept up only where nothing but leaves may leave, which here means that the tiers from
the first to any other together hold no block without its parent. `tips` has the block that each
interval ends in; of an empty one that may still be given something, the block that would be its
end then. `hanging` has a row a block: how many
runs of other requests continue right below it with their first block in tier t. Those blocks are
never in a higher tier than it, so only those in its own keep it there; `waiting` is the request
whose interval ends in it and cannot shrink before they are gone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels
from kvscope.replay.structures.bitset import add
from kvscope.replay.structures.runs import Ints

Counts = NDArray[np.int64]


@callable_in_kernels
def top_tier(ends: Ints, request: int) -> int:
    """The highest tier that holds something of a request's run, which is not empty."""
    tier = 0
    while ends[request, tier + 1] == ends[request, 0]:
        tier += 1
    return tier


@callable_in_kernels
def take_up(
    ends: Ints,
    hanging: Ints,
    size: Counts,
    hits: Ints,
    request: int,
    look: int,
    starts: NDArray[np.int64],
    giver: Ints,
    stop: Ints,
    block: Ints,
    leaf: bool,
) -> None:
    """Take the cached blocks of a request's path out of all tiers, and count them as its hits.

    Hits are the leading ones, as far as it looks. `starts`, `giver`, `stop` and `block` are those
    of `Segments`.
    """
    tiers = len(size)
    leading, start, above = 0, 0, 0
    for k in range(starts[request], starts[request + 1]):
        before, until = giver[k], stop[k]
        last = ends[before, tiers]
        if leaf and start > 0 and last > start:
            hanging[above, top_tier(ends, before)] -= 1
        found = leading == start
        for tier in range(tiers):
            low, high = ends[before, tier], min(ends[before, tier + 1], until)
            if high > low:
                size[tier] -= high - low
                if found:
                    hits[request, tier] += max(min(high, look) - low, 0)
                    leading = high
            ends[before, tier] = max(low, until)
        ends[before, tiers] = max(last, until)
        if leaf and last > until:
            hanging[block[k], top_tier(ends, before)] += 1
        start, above = until, block[k]


@callable_in_kernels
def may_shrink(
    ends: Ints,
    tips: Ints,
    hanging: Ints,
    waiting: Ints,
    named: Ints,
    request: int,
    tier: int,
    leaf: bool,
) -> bool:
    """Whether an interval that is not empty may shrink; one that may not waits at its tip."""
    if not leaf or ends[request, tier + 1] > named[request]:
        return True
    tip = tips[request, tier]
    if hanging[tip, tier] == 0:
        return True
    waiting[tip] = request
    return False


@callable_in_kernels
def lane_of(ends: Ints, places: Ints, request: int, tier: int) -> int:
    """The lane that the end of an interval belongs to."""
    deep = ends[request, tier + 1] > places[tier, request, 0]
    lane: int = places[tier, request, 1 if deep else 2]
    return lane


@callable_in_kernels
def move_down(
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
    request: int,
    tier: int,
    most: int,
    stop: int,
    leaf: bool,
) -> None:
    """Move the deepest blocks of an interval, at most `most` and down to depth `stop`, down.

    They go to the next tier in which they are not past their time, if there is one; `expired` are
    the first requests that are not. The lane that the interval itself is in is left as it is.
    """
    tiers = len(size)
    old = ends[request, tier + 1]
    end = max(stop, old - most)
    tip = 0
    if leaf:
        lowest, end, tip = end, max(end, min(old, named[request])), tips[request, tier]
        while end > lowest and hanging[tip, tier] == 0:
            tip = parents[tip]
            end -= 1
    gone = old - end
    to = tier + 1
    while to < tiers and request < expired[to]:
        to += 1
    for passed in range(tier, to):
        ends[request, passed + 1] = end
        if leaf:
            tips[request, passed] = tip
    size[tier] -= gone
    left[tier] += gone
    if to < tiers:
        size[to] += gone
        demoted[tier] += gone
        joined_empty = ends[request, to + 1] == old
        if joined_empty and may_shrink(ends, tips, hanging, waiting, named, request, to, leaf):
            add(queues, words, lane_of(ends, places, request, to), request)
    if not leaf or end > ends[request, 0] or end == 0:
        return
    hanging[tip, tier] -= 1
    if to < tiers:
        hanging[tip, to] += 1
    freed = waiting[tip]
    ends_there = tips[freed, tier] == tip and (
        ends[freed, tier] < ends[freed, tier + 1] <= named[freed]
    )
    if hanging[tip, tier] == 0 and ends_there:
        add(queues, words, lane_of(ends, places, freed, tier), freed)

"""The contents of a prefix cache: one interval of depths per request, not one node per block.

A request touches a whole path. So the cached blocks that it was the last to touch are one run
[first, end) of its path: later requests take its head, eviction takes its deep end. Everything the
kernels do to the cache is done here, a run at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels
from kvscope.replay.last_touch import Segments
from kvscope.replay.traffic import Traffic

FIRST, END, TIP, NAMED = 0, 1, 2, 3
CHILD_RUNS, WAITING = 0, 1


class CachedRuns(NamedTuple):
    """The cached run of each of R requests over a trie of N blocks.

    `of` has a row for each request: FIRST and END, depths; TIP, the run's deepest named block, or
    the block above the run once all named ones are evicted; NAMED, the depth from which on blocks
    are anonymous: never hit, so no run continues below. `branches` has a column for each block,
    maintained only where leaves alone may be evicted (`leaf`): CHILD_RUNS counts the runs of other
    requests right below the block; WAITING is the request whose run ends at the block and cannot
    shrink before these are gone. TIP is maintained only where `climb` is set.
    """

    of: Int32s
    branches: Int32s
    parents: Int32s
    leaf: bool
    climb: bool


def empty_runs(traffic: Traffic, leaf: bool, climb: bool) -> CachedRuns:
    """Return an empty cache for these requests."""
    of = np.zeros((len(traffic.leaf), 4), dtype=np.int32)
    of[:, TIP] = traffic.leaf
    of[:, NAMED] = traffic.length
    blocks = len(traffic.block_parent) if leaf else 1
    branches = np.zeros((2, blocks), dtype=np.int32)
    return CachedRuns(of, branches, traffic.block_parent, leaf, climb)


@callable_in_kernels
def take_over(runs: CachedRuns, segments: Segments, request: int) -> tuple[int, int]:
    """Move a path's cached blocks to the request's run; return how many lead the path, and all."""
    of, branches, leaf = runs.of, runs.branches, runs.leaf
    leading, cached, start, above = 0, 0, 0, 0
    for k in range(segments.starts[request], segments.starts[request + 1]):
        until, previous = segments.end[k], segments.previous[k]
        end = of[previous, END]
        if end > start:
            if leading == start:
                leading = min(end, until)
            cached += min(end, until) - start
            if leaf:
                if start > 0:
                    branches[CHILD_RUNS, above] -= 1
                if end > until:
                    branches[CHILD_RUNS, segments.block[k]] += 1
        of[previous, FIRST] = until
        start = until
        if leaf:
            above = segments.block[k]
    return leading, cached


@callable_in_kernels
def may_shrink(runs: CachedRuns, request: int) -> bool:
    """Return whether a request's run, which is not empty, may shrink; if not, note that it waits.

    A run may not shrink if other runs continue below its tip and only leaves may be evicted. The
    request is then stored as WAITING at its tip, so that `release` finds it.
    """
    if not runs.leaf or runs.of[request, END] > runs.of[request, NAMED]:
        return True
    tip = runs.of[request, TIP]
    if runs.branches[CHILD_RUNS, tip] == 0:
        return True
    runs.branches[WAITING, tip] = request
    return False


@callable_in_kernels
def shrink(runs: CachedRuns, request: int, most: int, stop: int) -> int:
    """Evict up to `most` blocks of a run, deepest first, down to depth `stop`; return the number.

    Where only leaves may be evicted, eviction stops at a block that has a cached child.
    """
    of, leaf = runs.of, runs.leaf
    end = of[request, END]
    lowest = max(stop, end - most)
    if not runs.climb:
        of[request, END] = lowest
        return int(end - lowest)
    at = max(lowest, min(end, of[request, NAMED]))
    tip = of[request, TIP]
    while at > lowest and not (leaf and runs.branches[CHILD_RUNS, tip] > 0):
        tip = runs.parents[tip]
        at -= 1
    of[request, TIP] = tip
    of[request, END] = at
    return int(end - at)


@callable_in_kernels
def release(runs: CachedRuns, request: int) -> int:
    """Detach a run that is empty; return the request whose run may shrink now, or -1."""
    of = runs.of
    if not runs.leaf or of[request, FIRST] == 0:
        return -1
    above = of[request, TIP]
    runs.branches[CHILD_RUNS, above] -= 1
    if runs.branches[CHILD_RUNS, above] > 0:
        return -1
    waiting = int(runs.branches[WAITING, above])
    first, end, named = of[waiting, FIRST], of[waiting, END], of[waiting, NAMED]
    return waiting if of[waiting, TIP] == above and first < end <= named else -1

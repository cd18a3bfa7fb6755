"""What a prefix cache holds: one interval of depths for each request, instead of a node a block.

A request touches a whole path. So the cached blocks that it was the last to touch are one stretch
[first, end) of its path: later requests take its head, eviction takes its deep end. Everything the
kernels do to the cache is done here, a run at a time.

`runs` (int32) has a row a request: FIRST, END; TIP, which is the run's deepest named block, or once
that is gone the block above the run; NAMED, the depth from which on its blocks are anonymous, so
that nothing can hang from them. `knots` (int32) has a column a block, kept up only where
nothing but leaves may leave: HANGING counts the runs of other requests that continue right below
the block; WAITING is the request whose run ends in it and cannot shrink before those are gone.

Kernels take arrays one by one: arrays inside tuples cost them a count of references at each use,
which together is far more than the work itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel

FIRST, END, TIP, NAMED = 0, 1, 2, 3
HANGING, WAITING = 0, 1

Ints = NDArray[np.int32]


def empty_runs(leaf: Ints, length: Ints) -> Ints:
    """An empty cache, to which requests with paths of this length and last block will come."""
    runs = np.zeros((len(leaf), 4), dtype=np.int32)
    runs[:, TIP] = leaf
    runs[:, NAMED] = length
    return runs


def empty_knots(blocks: int, leaf: bool) -> Ints:
    """`knots` of a trie of so many blocks, the root included."""
    return np.zeros((2, blocks if leaf else 1), dtype=np.int32)


@callable_in_kernels
def take_over(
    runs: Ints,
    knots: Ints,
    request: int,
    starts: NDArray[np.int64],
    giver: Ints,
    stop: Ints,
    block: Ints,
    leaf: bool,
) -> tuple[int, int]:
    """Take the cached blocks of a request's path from their runs: (leading ones, all of them).

    `starts`, `giver`, `stop` and `block` are those of `Segments`.
    """
    leading, cached, start, above = 0, 0, 0, 0
    for k in range(starts[request], starts[request + 1]):
        until = stop[k]
        end = runs[giver[k], END]
        if end > start:
            if leading == start:
                leading = min(end, until)
            cached += min(end, until) - start
            if leaf:
                if start > 0:
                    knots[HANGING, above] -= 1
                if end > until:
                    knots[HANGING, block[k]] += 1
        runs[giver[k], FIRST] = until
        start = until
        if leaf:
            above = block[k]
    return leading, cached


@callable_in_kernels
def may_shrink(runs: Ints, knots: Ints, request: int, leaf: bool) -> bool:
    """Whether a run that is not empty may shrink; one that may not waits for that at its tip."""
    if not leaf or runs[request, END] > runs[request, NAMED]:
        return True
    tip = runs[request, TIP]
    if knots[HANGING, tip] == 0:
        return True
    knots[WAITING, tip] = request
    return False


@callable_in_kernels
def shrink(
    runs: Ints,
    knots: Ints,
    block_parent: Ints,
    request: int,
    most: int,
    stop: int,
    climb: bool,
    leaf: bool,
) -> int:
    """Evict up to `most` blocks of a run, deepest first, down to depth `stop`; how many it were.

    `climb` keeps TIP up; with `leaf` it ends early at a block that has a cached child.
    """
    end = runs[request, END]
    lowest = max(stop, end - most)
    if not climb:
        runs[request, END] = lowest
        return int(end - lowest)
    at = max(lowest, min(end, runs[request, NAMED]))
    tip = runs[request, TIP]
    while at > lowest and not (leaf and knots[HANGING, tip] > 0):
        tip = block_parent[tip]
        at -= 1
    runs[request, TIP] = tip
    runs[request, END] = at
    return int(end - at)


@callable_in_kernels
def release(runs: Ints, knots: Ints, request: int) -> int:
    """Unhook a run that eviction has emptied; the request whose run may shrink for that, or -1."""
    if runs[request, FIRST] == 0:
        return -1
    above = runs[request, TIP]
    knots[HANGING, above] -= 1
    if knots[HANGING, above] > 0:
        return -1
    waiting = int(knots[WAITING, above])
    first, end, named = runs[waiting, FIRST], runs[waiting, END], runs[waiting, NAMED]
    return waiting if runs[waiting, TIP] == above and first < end <= named else -1


def cached_blocks(
    block_parent: Ints, owner: NDArray[np.int32], end: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Which blocks are cached: those whose depth is below their owner's `end`."""
    cached = np.zeros(len(block_parent), dtype=np.bool_)
    _find_cached(block_parent, owner, end, np.empty(len(block_parent), dtype=np.int32), cached)
    return cached


@kernel
def _find_cached(
    block_parent: Ints,
    owner: NDArray[np.int32],
    end: NDArray[np.int32],
    depth: NDArray[np.int32],
    cached: NDArray[np.bool_],
) -> None:
    """Fill `cached`, and `depth`, from -1 for the root on."""
    depth[0] = -1
    for block in range(1, len(block_parent)):
        depth[block] = depth[block_parent[block]] + 1
        cached[block] = owner[block] >= 0 and depth[block] < end[owner[block]]

"""A binary heap of requests by (key, request): two arrays side by side, the lowest pair first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels


@callable_in_kernels
def comes_before(
    key: float, request: int, keys: NDArray[np.float64], queued: NDArray[np.int32], at: int
) -> bool:
    """Whether (key, request) is lower than the heap's entry `at`."""
    return bool(key < keys[at] or (key == keys[at] and request < queued[at]))


@callable_in_kernels
def put(
    keys: NDArray[np.float64], queued: NDArray[np.int32], count: int, key: float, request: int
) -> int:
    """Add an entry to a heap of `count` that has room; the new count."""
    at = count
    while at > 0:
        above = (at - 1) >> 1
        if not comes_before(key, request, keys, queued, above):
            break
        keys[at], queued[at] = keys[above], queued[above]
        at = above
    keys[at], queued[at] = key, request
    return count + 1


@callable_in_kernels
def drop_lowest(keys: NDArray[np.float64], queued: NDArray[np.int32], count: int) -> int:
    """Take the lowest entry out of a heap of `count`; the new count."""
    left = count - 1
    key, request = keys[left], int(queued[left])
    at = 0
    while True:
        below = 2 * at + 1
        if below >= left:
            break
        beside = below + 1
        if beside < left and comes_before(keys[beside], int(queued[beside]), keys, queued, below):
            below = beside
        if comes_before(key, request, keys, queued, below):
            break
        keys[at], queued[at] = keys[below], queued[below]
        at = below
    keys[at], queued[at] = key, request
    return left

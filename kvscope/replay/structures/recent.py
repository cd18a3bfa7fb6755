"""Uncached tokens of the latest requests, for policies that adapt to them."""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Int64s
from kvscope.core.jit import callable_in_kernels
from kvscope.policies.base import RECENT


def nothing_recent() -> Int64s:
    """Return zeros (2 x RECENT): a ring for the latest requests, and as much room to sort them."""
    return np.zeros(2 * RECENT, dtype=np.int64)


@callable_in_kernels
def note_recent(recent: Int64s, request: int, uncached_tokens: int) -> None:
    """Store the uncached tokens of a request in the ring, in place of the oldest entry."""
    recent[request % RECENT] = uncached_tokens


@callable_in_kernels
def sort_recent(recent: Int64s, requests: int) -> int:
    """Sort the ring's entries after `requests` requests into recent[RECENT:end]; return that end.

    A shell sort, which allocates no memory.
    """
    count = min(requests, RECENT)
    for at in range(count):
        recent[RECENT + at] = recent[at]
    gap = 1
    while gap < count:
        gap = 3 * gap + 1
    while gap > 0:
        for at in range(RECENT + gap, RECENT + count):
            value, to = recent[at], at
            while to - gap >= RECENT and recent[to - gap] > value:
                recent[to] = recent[to - gap]
                to -= gap
            recent[to] = value
        gap //= 3
    return RECENT + count

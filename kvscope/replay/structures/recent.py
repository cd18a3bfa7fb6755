"""What the latest requests had to compute, for policies that adapt to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels
from kvscope.policies.base import RECENT

Tokens = NDArray[np.int64]


def nothing_recent() -> Tokens:
    """No requests yet: room for the latest, in turn, and as much to sort them in."""
    return np.zeros(2 * RECENT, dtype=np.int64)


@callable_in_kernels
def note_recent(recent: Tokens, request: int, uncached_tokens: int) -> None:
    """Note the uncached tokens of a request, in place of the one that is no longer recent."""
    recent[request % RECENT] = uncached_tokens


@callable_in_kernels
def sort_recent(recent: Tokens, requests: int) -> int:
    """Sort what was noted of the latest of so many requests to recent[RECENT:end]; that end.

    A shell sort: without memory of its own.
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

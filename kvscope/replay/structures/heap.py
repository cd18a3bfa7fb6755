"""A binary heap of requests by (key, request), the lowest pair first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import callable_in_kernels


class Heap(NamedTuple):
    """The first `size[0]` entries of `keys` and `requests`, side by side."""

    keys: Float64s
    requests: Int32s
    size: Int64s


def empty_heap(room: int) -> Heap:
    """Return an empty heap with room for that many entries."""
    size = np.zeros(1, dtype=np.int64)
    return Heap(np.empty(room, dtype=np.float64), np.empty(room, dtype=np.int32), size)


@callable_in_kernels
def comes_before(heap: Heap, key: float, request: int, at: int) -> bool:
    """Return whether (key, request) is lower than the heap's entry `at`."""
    return bool(key < heap.keys[at] or (key == heap.keys[at] and request < heap.requests[at]))


@callable_in_kernels
def precedes_all(heap: Heap, key: float, request: int) -> bool:
    """Return whether (key, request) is lower than every entry."""
    return heap.size[0] == 0 or comes_before(heap, key, request, 0)


@callable_in_kernels
def put(heap: Heap, key: float, request: int) -> None:
    """Add an entry to a heap that has room."""
    at = heap.size[0]
    heap.size[0] = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if not comes_before(heap, key, request, above):
            break
        heap.keys[at], heap.requests[at] = heap.keys[above], heap.requests[above]
        at = above
    heap.keys[at], heap.requests[at] = key, request


@callable_in_kernels
def drop_lowest(heap: Heap) -> None:
    """Remove the lowest entry."""
    left = heap.size[0] - 1
    heap.size[0] = left
    key, request = heap.keys[left], int(heap.requests[left])
    at = 0
    while True:
        below = 2 * at + 1
        if below >= left:
            break
        sibling = below + 1
        if sibling < left and comes_before(
            heap, heap.keys[sibling], int(heap.requests[sibling]), below
        ):
            below = sibling
        if comes_before(heap, key, request, below):
            break
        heap.keys[at], heap.requests[at] = heap.keys[below], heap.requests[below]
        at = below
    heap.keys[at], heap.requests[at] = key, request

"""LRU stack distances on prefix paths: how large a cache must be for each hit, in one pass.

LRU is a stack algorithm when a request's tail counts as older than its head: the cache of capacity
C holds the C first blocks of one list, ordered by (last request, most recent first; depth). A block
whose place in that list is d hits at every capacity of at least d.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.prefix import write_path
from kvscope.core.trace import PromptPaths
from kvscope.replay.traffic import Walk, by_access, walk


@dataclass(frozen=True, slots=True)
class LruDistances:
    """Where the blocks that a trace reuses stood in LRU's list, as runs.

    Run k: request[k] found block depth[k] at place distance[k], the next one right behind it, and
    so on for blocks[k] blocks. `live` is the length of the whole list at the end: a cache that
    large never evicts.
    """

    request: Int32s
    depth: Int32s
    blocks: Int32s
    distance: Int64s
    live: int


def lru_distances(prompts: PromptPaths, definition: HitDefinition) -> LruDistances:
    """Return the stack distance of every block that is looked up again, in one pass over the trace.

    Costs one query of a Fenwick tree over requests for each run, not for each access: the blocks
    that one request was the last to touch are one stretch of any path.

    Source: Mattson et al., IBM Systems Journal 1970 (stack algorithms); Bennett & Kruskal, IBM J.
    Res. Dev. 1975 (the tree); the runs are kvscope's own.
    """
    return _distances(walk(prompts, definition))


def flat_distances(prompts: PromptPaths, definition: HitDefinition) -> LruDistances:
    """Return the distances in a cache without prefixes: every block an object, head to tail.

    The blocks of a run then stand at one and the same place, since each that is found moves to
    the front and pushes the next one back; so every run has one block.

    Source: Bennett & Kruskal, IBM J. Res. Dev. 1975.
    """
    steps, request, depth = by_access(walk(prompts, definition))
    flat = _distances(steps)
    return replace(flat, request=request[flat.request], depth=depth[flat.request])


def _distances(steps: Walk) -> LruDistances:
    requests, longest = len(steps.leaf), int(steps.length.max(initial=0))
    owned = np.zeros(requests + 1, dtype=np.int64)
    last = np.full(len(steps.block_parent), -1, dtype=np.int32)
    path = np.empty(longest + 1, dtype=np.int32)
    runs = np.empty((3, requests + longest), dtype=np.int32)
    distance = np.empty(runs.shape[1], dtype=np.int64)
    done, count, live = 0, 0, 0
    while True:
        done, count, live = _stack(steps, done, count, live, owned, last, path, runs, distance)
        if done == requests:
            request, depth, blocks = runs[:, :count].copy()
            return LruDistances(request, depth, blocks, distance[:count].copy(), live)
        runs = np.concatenate((runs, np.empty_like(runs)), axis=1)
        distance = np.concatenate((distance, np.empty_like(distance)))


@callable_in_kernels
def _count_to(tree: NDArray[Any], place: int) -> int:
    """Return the sum of a Fenwick tree's places from 0 to `place`."""
    node, total = place + 1, 0
    while node > 0:
        total += tree[node]
        node -= node & -node
    return total


@callable_in_kernels
def _add(tree: NDArray[Any], place: int, amount: int) -> None:
    """Add to one place of a Fenwick tree."""
    node = place + 1
    while node < len(tree):
        tree[node] += amount
        node += node & -node


@kernel
def _stack(
    steps: Walk,
    begin: int,
    count: int,
    live: int,
    owned: Int64s,
    last: Int32s,
    path: Int32s,
    runs: Int32s,
    distance: Int64s,
) -> tuple[int, int, int]:
    """Continue from request `begin` while there is room for runs: (next request, runs, blocks).

    `owned` is a Fenwick tree of how many blocks each request was the last to touch.
    """
    block_parent, leaf, length, look, anonymous = steps
    requests = len(leaf)
    for request in range(begin, requests):
        end = length[request]
        if count + end > runs.shape[1]:
            return request, count, live
        write_path(block_parent, leaf[request], path, 0, end)
        at = 0
        while at < end and last[path[at]] >= 0:
            owner = last[path[at]]
            start = at
            while at < end and last[path[at]] == owner:
                last[path[at]] = request
                at += 1
            if start < look[request]:
                older = _count_to(owned, owner)
                runs[0, count] = request
                runs[1, count] = start
                runs[2, count] = min(at, look[request]) - start
                # In front of it: what later requests own. Its own request's shallower blocks are
                # theirs already, so nothing of `owner` stands before it.
                distance[count] = live - older + 1
                count += 1
            _add(owned, owner, start - at)
            _add(owned, request, at - start)
        fresh = end - at + anonymous[request]
        for i in range(at, end):
            last[path[i]] = request
        live += fresh
        _add(owned, request, fresh)
    return requests, count, live

"""LRU stack distances on prefix paths: how large a cache must be for each hit, in one pass.

LRU is a stack algorithm when a request's tail counts as older than its head: the cache of capacity
C holds the C first blocks of one list, ordered by (last request, most recent first; depth). A block
whose place in that list is d hits at every capacity of at least d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.prefix import write_path
from kvscope.core.trace import PromptPaths
from kvscope.replay.traffic import Walk, walk


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
    steps = walk(prompts, definition)
    requests, longest = len(steps.leaf), int(steps.length.max(initial=0))
    owned = np.zeros(requests + 1, dtype=np.int64)
    last = np.full(len(prompts.block_parent), -1, dtype=np.int32)
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


def flat_distances(prompts: PromptPaths, definition: HitDefinition) -> LruDistances:
    """Return the distances in a cache without prefixes: every block an object, head to tail.

    The blocks of a run then stand at one and the same place, since each that is found moves to
    the front and pushes the next one back; so every run has one block.

    Source: Bennett & Kruskal, IBM J. Res. Dev. 1975.
    """
    steps = walk(prompts, definition)
    accesses = int(steps.length.sum(dtype=np.int64) + steps.anonymous.sum(dtype=np.int64))
    present = np.zeros(accesses + 1, dtype=np.int32)
    last = np.full(len(prompts.block_parent), -1, dtype=np.int64)
    path = np.empty(int(steps.length.max(initial=0)) + 1, dtype=np.int32)
    places = np.empty((2, accesses), dtype=np.int32)
    distance = np.empty(accesses, dtype=np.int64)
    count, live = _flat_stack(steps, present, last, path, places, distance)
    request, depth = places[:, :count].copy()
    ones = np.ones(count, dtype=np.int32)
    return LruDistances(request, depth, ones, distance[:count].copy(), live)


@kernel
def _flat_stack(
    steps: Walk, present: Int32s, last: Int64s, path: Int32s, places: Int32s, distance: Int64s
) -> tuple[int, int]:
    """Fill `places` and `distance`; return their number and that of distinct blocks.

    `present` is a Fenwick tree of the accesses that were some block's last.
    """
    block_parent, leaf, length, look, anonymous = steps
    count, live, now = 0, 0, 0
    for request in range(len(leaf)):
        end = length[request]
        write_path(block_parent, leaf[request], path, 0, end)
        for at in range(end + anonymous[request]):
            before = last[path[at]] if at < end else -1
            if before >= 0:
                if at < look[request]:
                    older = _count_to(present, before)
                    places[0, count] = request
                    places[1, count] = at
                    distance[count] = live - older + 1
                    count += 1
                _add(present, before, -1)
            else:
                live += 1
            if at < end:
                last[path[at]] = now
            _add(present, now, 1)
            now += 1
    return count, live

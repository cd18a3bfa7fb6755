"""LRU stack distances on prefix paths: how large a cache must be for each hit, in one pass.

LRU is a stack algorithm when a request's tail counts as older than its head: the cache of capacity
C holds the C first blocks of one list, ordered by (last request, most recent first; depth). A block
whose place in that list is d hits at every capacity of at least d.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.trace import PromptPaths
from kvscope.ingest.reuse import ReusedRuns, touches
from kvscope.replay.traffic import Walk, by_access, walk


class LruDistances(Struct, frozen=True):
    """Where the blocks that a trace reuses stood in LRU's list, as runs.

    Run k: request[k] found block depth[k] of its path at place distance[k] (from 1), and the
    blocks[k] - 1 blocks after it at the next places. `live` is the length of the whole list at the
    end: a cache that large never evicts.
    """

    request: Int32s
    depth: Int32s
    blocks: Int32s
    distance: Int64s
    live: int


def lru_distances(prompts: PromptPaths, definition: HitDefinition) -> LruDistances:
    """Return the stack distance of every block that is looked up again, in one pass over the trace.

    This costs a query of a Fenwick tree over requests for each run, not for each access.

    Source: Mattson et al., IBM Systems Journal 1970 (stack algorithms); Bennett & Kruskal, IBM J.
    Res. Dev. 1975 (the tree); the runs are kvscope's own.
    """
    return _distances(walk(prompts, definition))


def flat_distances(prompts: PromptPaths, definition: HitDefinition) -> LruDistances:
    """Return the distances in a cache without prefixes: every block an object, head to tail.

    The blocks of a run would all have the same distance, since each block found moves to the front
    and pushes the next one back; so every run has one block.

    Source: Bennett & Kruskal, IBM J. Res. Dev. 1975.
    """
    steps, request, depth = by_access(walk(prompts, definition))
    flat = _distances(steps)
    return replace(flat, request=request[flat.request], depth=depth[flat.request])


def _distances(steps: Walk) -> LruDistances:
    runs = touches(steps.block_parent, steps.leaf, steps.length)
    return distances(runs, steps.length + steps.anonymous, steps.look)


def distances(runs: ReusedRuns, cached: Int32s, look: Int32s) -> LruDistances:
    """Return the stack distances of all blocks looked up, given the reused runs of a whole trace.

    Each of R requests leaves `cached` blocks, and looks up the first `look` of them.
    """
    return LruStack(len(cached)).distances(0, runs, cached, look)


class LruStack:
    """LRU's list over R requests, kept as the number of blocks that each request touched last.

    A trace may be processed in sections of consecutive requests. Earlier requests whose blocks a
    section does not touch are merged, so its cost depends on its runs, not on R. Source: Niu et
    al., IPDPS 2012 (Parda: distances of a section, corrected by what is before it); to merge
    requests instead of accesses is kvscope's own.
    """

    def __init__(self, requests: int) -> None:
        self.live = 0
        self._owned = np.zeros(requests + 1, dtype=np.int32)

    def distances(self, begin: int, runs: ReusedRuns, cached: Int32s, look: Int32s) -> LruDistances:
        """Return the distances in the next section: requests from `begin` on, with all their runs.

        `live` becomes the length of the list after the section.
        """
        end, request = begin + len(cached), runs.request - np.int32(begin)
        again = np.bincount(request, runs.blocks, len(cached)).astype(np.int64)
        fresh = cached.astype(np.int64) - again
        place, owners = runs.previous, np.zeros(0, dtype=np.int32)
        tree = np.zeros(len(cached) + 1, dtype=np.int64)
        if begin:  # a place for each owner before the stretch, one for all after the last of them
            earlier = runs.previous < begin
            owners, number = np.unique(runs.previous[earlier], return_inverse=True)
            between = np.concatenate([[0], owners.astype(np.int64) + 1])
            sums = np.add.reduceat(self._owned[: begin + 1], between, dtype=np.int64)
            tree = _fenwick(np.concatenate([sums, tree[1:]]))
            place = runs.previous - np.int32(begin - len(sums))
            place[earlier] = number
            self._owned[owners] -= np.bincount(number, runs.blocks[earlier]).astype(np.int32)
        first_own = len(tree) - 1 - len(cached)
        distance = np.empty(len(request), dtype=np.int64)
        self.live = int(
            _stack(request, place, runs.blocks, fresh, tree, distance, first_own, self.live)
        )
        if end < len(self._owned) - 1:  # there are later stretches
            own = place >= first_own
            taken = np.bincount(place[own] - first_own, runs.blocks[own], len(cached))
            self._owned[begin:end] = cached - taken.astype(np.int32)
        seen = np.minimum(runs.depth + runs.blocks, look[request]) - runs.depth
        kept = seen > 0
        return LruDistances(
            runs.request[kept], runs.depth[kept], seen[kept], distance[kept], self.live
        )


def _fenwick(amounts: Int64s) -> Int64s:
    """Return the Fenwick tree of `amounts`: n + 1 entries for n amounts, the first 0."""
    upto: Int64s = np.concatenate([[0], np.cumsum(amounts)])
    node = np.arange(len(upto))
    upto -= upto[node & (node - 1)]
    return upto


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
    node = place + 1
    while node < len(tree):
        tree[node] += amount
        node += node & -node


@kernel
def _stack(
    request: Int32s,
    previous: Int32s,
    blocks: Int32s,
    fresh: Int64s,
    owned: Int64s,
    distance: Int64s,
    first_own: int,
    live: int,
) -> int:
    """Fill the `distance` of each run's first block; return the length of LRU's list at the end.

    A run is `blocks[k]` blocks on the path of `request[k]`. `owned` is a Fenwick tree of the number
    of blocks that each request touched last: of the run's last toucher so far at place
    `previous[k]`, of the section's own requests from place `first_own` on. `fresh` is the number of
    blocks that each request is the first to touch, `live` the length of the list before.
    """
    run = 0
    for at in range(len(fresh)):
        while run < len(request) and request[run] == at:
            # In front of it: what later requests own. Its own request's shallower blocks are
            # theirs already, so nothing of `previous` stands before it.
            distance[run] = live - _count_to(owned, previous[run]) + 1
            _add(owned, previous[run], -blocks[run])
            _add(owned, first_own + at, blocks[run])
            run += 1
        live += fresh[at]
        _add(owned, first_own + at, fresh[at])
    return live

"""LRU stack distances on prefix paths: how large a cache must be for each hit, in one pass.

LRU is a stack algorithm when a request's tail counts as older than its head: the cache of capacity
C holds the C first blocks of one list, ordered by (last request, most recent first; depth). A block
whose place in that list is d hits at every capacity of at least d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path
from kvscope.core.trace import PromptPaths


@dataclass(frozen=True, slots=True)
class LruDistances:
    """Where the blocks that a trace reuses stood in LRU's list, as runs.

    Run k: request[k] found block depth[k] at place distance[k], the next one right behind it, and
    so on for blocks[k] blocks. `live` is the length of the whole list at the end: a cache that
    large never evicts.
    """

    request: NDArray[np.int32]
    depth: NDArray[np.int32]
    blocks: NDArray[np.int32]
    distance: NDArray[np.int64]
    live: int


@dataclass(frozen=True, slots=True)
class Walk:
    """What each request looks up and leaves behind under one definition of a hit.

    It looks up the first `look` blocks of the path that ends at `leaf`, `length` blocks long, of
    which it leaves all in the cache, and `anonymous` further ones that nobody can hit.
    """

    leaf: NDArray[np.int32]
    length: NDArray[np.int32]
    look: NDArray[np.int32]
    anonymous: NDArray[np.int32]


def walk(prompts: PromptPaths, definition: HitDefinition) -> Walk:
    """The paths that requests look up and leave behind, as `definition` counts them.

    Raises UsageError where the definition contradicts itself.
    """
    if definition.partial and definition.outputs == "carried":
        raise UsageError(
            "a partial last block cannot be kept where outputs fill it",
            remedy="take outputs 'ignored' with partial blocks kept",
        )
    size = prompts.block_size
    leaf, length, look = prompts.leaf, prompts.blocks, prompts.blocks
    anonymous = np.zeros_like(length)
    if not definition.partial:
        look = length = prompts.full_blocks
        cut = prompts.blocks > prompts.full_blocks
        leaf = np.where(cut, prompts.block_parent[leaf], leaf)
        anonymous = prompts.input_tokens // size - length
        if definition.outputs == "carried":
            leaf, length = prompts.carried_leaf, prompts.carried_blocks
            anonymous = prompts.cached_blocks - length
    if definition.last_token_rule:
        look = np.minimum(look, (prompts.input_tokens - 1) // size)
    return Walk(leaf, length, look, anonymous)


def lru_distances(prompts: PromptPaths, definition: HitDefinition) -> LruDistances:
    """The stack distance of every block that is looked up again, in one pass over the trace.

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
        done, count, live = _stack(
            prompts.block_parent, steps.leaf, steps.length, steps.look, steps.anonymous,
            done, count, live, owned, last, path, runs, distance,
        )  # fmt: skip
        if done == requests:
            request, depth, blocks = runs[:, :count].copy()
            return LruDistances(request, depth, blocks, distance[:count].copy(), live)
        runs = np.concatenate((runs, np.empty_like(runs)), axis=1)
        distance = np.concatenate((distance, np.empty_like(distance)))


@kernel
def _stack(
    block_parent: NDArray[np.int32],
    leaf: NDArray[np.int32],
    length: NDArray[np.int32],
    look: NDArray[np.int32],
    anonymous: NDArray[np.int32],
    begin: int,
    count: int,
    live: int,
    owned: NDArray[np.int64],
    last: NDArray[np.int32],
    path: NDArray[np.int32],
    runs: NDArray[np.int32],
    distance: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Go on from request `begin`, while there is room for runs: where it stopped, runs, blocks.

    `owned` is a Fenwick tree of how many blocks each request was the last to touch.
    """
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
                older = 0
                node = owner + 1
                while node > 0:
                    older += owned[node]
                    node -= node & -node
                runs[0, count] = request
                runs[1, count] = start
                runs[2, count] = min(at, look[request]) - start
                # In front of it: what later requests own. Its own request's shallower blocks are
                # theirs already, so nothing of `owner` stands before it.
                distance[count] = live - older + 1
                count += 1
            node = owner + 1
            while node <= requests:
                owned[node] -= at - start
                node += node & -node
            node = request + 1
            while node <= requests:
                owned[node] += at - start
                node += node & -node
        fresh = end - at + anonymous[request]
        for i in range(at, end):
            last[path[i]] = request
        live += fresh
        node = request + 1
        while node <= requests:
            owned[node] += fresh
            node += node & -node
    return requests, count, live


def flat_distances(prompts: PromptPaths, definition: HitDefinition) -> LruDistances:
    """The same for a cache that knows no prefixes: every block an object, looked up head to tail.

    The blocks of a run then stand at one and the same place, since each that is found moves to
    the front and pushes the next one back; so every run has one block.

    Source: Bennett & Kruskal, IBM J. Res. Dev. 1975.
    """
    steps = walk(prompts, definition)
    accesses = int(steps.length.sum(dtype=np.int64) + steps.anonymous.sum(dtype=np.int64))
    present = np.zeros(accesses + 1, dtype=np.int32)
    last = np.full(len(prompts.block_parent), -1, dtype=np.int64)
    path = np.empty(int(steps.length.max(initial=0)) + 1, dtype=np.int32)
    found = np.empty((2, accesses), dtype=np.int32)
    distance = np.empty(accesses, dtype=np.int64)
    count, live = _flat_stack(
        prompts.block_parent, steps.leaf, steps.length, steps.look, steps.anonymous,
        present, last, path, found, distance,
    )  # fmt: skip
    request, depth = found[:, :count].copy()
    ones = np.ones(count, dtype=np.int32)
    return LruDistances(request, depth, ones, distance[:count].copy(), live)


@kernel
def _flat_stack(
    block_parent: NDArray[np.int32],
    leaf: NDArray[np.int32],
    length: NDArray[np.int32],
    look: NDArray[np.int32],
    anonymous: NDArray[np.int32],
    present: NDArray[np.int32],
    last: NDArray[np.int64],
    path: NDArray[np.int32],
    found: NDArray[np.int32],
    distance: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill `found` and `distance`: how many there are, and how many blocks were seen.

    `present` is a Fenwick tree of the accesses that were some block's last.
    """
    accesses = len(distance)
    count, live, now = 0, 0, 0
    for request in range(len(leaf)):
        end = length[request]
        write_path(block_parent, leaf[request], path, 0, end)
        for at in range(end + anonymous[request]):
            before = last[path[at]] if at < end else -1
            if before >= 0:
                if at < look[request]:
                    older = 0
                    node = before + 1
                    while node > 0:
                        older += present[node]
                        node -= node & -node
                    found[0, count] = request
                    found[1, count] = at
                    distance[count] = live - older + 1
                    count += 1
                node = before + 1
                while node <= accesses:
                    present[node] -= 1
                    node += node & -node
            else:
                live += 1
            if at < end:
                last[path[at]] = now
            now += 1
            node = now
            while node <= accesses:
                present[node] += 1
                node += node & -node
    return count, live

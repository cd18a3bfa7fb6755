"""Replay of queue policies: published algorithms on lists of blocks, blind to prefixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Bools, Float64s, Int32s
from kvscope.core.block_queues import AFTER, BEFORE, MASK, NOWHERE, SLOTS, WHERE
from kvscope.core.jit import by_reference, callable_in_kernels, kernel, once
from kvscope.core.prefix import Paths
from kvscope.policies.base import QueuePolicy
from kvscope.replay.traffic import Traffic


class Queues(NamedTuple):
    """The state of a queue policy: `links` and `numbers` as in `QueuePolicy`, blocks `cached`.

    `cached` has an entry for each block of the trie, root first, then for each anonymous block (one
    that no request can hit).
    """

    links: Int32s
    numbers: Float64s
    cached: Bools


def empty_queues(policy: type[QueuePolicy], traffic: Traffic, capacity: int) -> Queues:
    """Return an empty cache of `capacity` blocks."""
    blocks = len(traffic.block_parent) + int(traffic.anonymous.sum())
    request = int((traffic.length + traffic.anonymous).max(initial=0))
    return Queues(
        empty_rings(policy.rings, blocks, min(capacity, blocks) + request)
        if policy.rings
        else empty_lists(policy.lists, blocks),
        np.zeros(policy.numbers, dtype=np.float64),
        np.zeros(blocks, dtype=np.bool_),
    )


def empty_lists(lists: int, blocks: int) -> Int32s:
    """Return empty lists that can hold blocks 0 to `blocks` - 1."""
    links = np.zeros((blocks + lists, 4), dtype=np.int32)
    links[:, WHERE] = NOWHERE
    for queue in range(lists):
        links[-1 - queue, AFTER] = -1 - queue
        links[-1 - queue, BEFORE] = -1 - queue
    return links


def empty_rings(rings: int, blocks: int, most: int) -> Int32s:
    """Return empty rings for blocks 0 to `blocks` - 1, each for up to `most` blocks at once.

    They have more than twice the room, so that holes of removed blocks are seldom closed up.
    """
    room = 1 << (2 * most).bit_length()
    empty = np.zeros((rings + 1, max(SLOTS + room, blocks)), dtype=np.int32)
    empty[:rings, MASK] = room - 1
    return empty


@once
def queues_server(policy: type[QueuePolicy]) -> Callable[..., tuple[int, int, int]]:
    """Return the function that serves one request from one cache of a queue policy.

    It takes (traffic, its paths, `Queues`, request, number of its first anonymous block, capacity
    in blocks, the policy's parameters, whether other blocks must be evicted before new ones enter,
    blocks cached before), and returns (leading blocks hit, blocks cached afterwards, evicted).
    """
    hit = callable_in_kernels(policy.hit)
    insert = callable_in_kernels(policy.insert)
    evict = callable_in_kernels(policy.evict)

    @callable_in_kernels
    def serve(
        traffic: Traffic,
        paths: Paths,
        queues: Queues,
        request: int,
        nameless: int,
        capacity: int,
        p: Float64s,
        mandatory: bool,
        size: int,
    ) -> tuple[int, int, int]:
        starts, blocks = paths.starts, paths.blocks
        links, numbers, cached = queues.links, queues.numbers, queues.cached
        room = max(capacity, 1)  # for a block that has to enter
        evictions = 0
        start, named = starts[request], starts[request + 1]
        leading = start
        while leading < named and cached[blocks[leading]]:
            hit(blocks[leading], links, numbers, capacity, p)
            leading += 1
        for at in range(leading, named + traffic.anonymous[request]):
            if at < named:
                block = int(blocks[at])
                if cached[block]:
                    hit(block, links, numbers, capacity, p)
                    continue
            else:
                block = int(nameless + at - named)
            if mandatory and size >= room:
                cached[evict(links, numbers, capacity, p)] = False
                size -= 1
                evictions += 1
            insert(block, links, numbers, capacity, p)
            cached[block] = True
            size += 1
        while size > capacity:
            cached[evict(links, numbers, capacity, p)] = False
            size -= 1
            evictions += 1
        return min(leading - start, traffic.look[request]), size, evictions

    return serve


@once
def queues_kernel(policy: type[QueuePolicy]) -> Callable[..., Any]:
    """Return the kernel that replays a queue policy.

    It takes, in order: the traffic; its paths; the empty `Queues`; the capacity in blocks; the
    policy's parameters; whether a block must be evicted before another enters a full cache; an
    array (R) that it fills with the leading blocks that each request hits. It returns the number of
    blocks evicted. Each anonymous block has a number of its own, beyond those of the trie.
    """
    serve = queues_server(policy)

    @kernel
    def replay(
        traffic: Traffic,
        paths: Paths,
        queues: Queues,
        capacity: int,
        p: Float64s,
        mandatory: bool,
        hits: Int32s,
    ) -> int:
        traffic, paths = by_reference(traffic), by_reference(paths)
        size, evictions, nameless = 0, 0, len(traffic.block_parent)
        for request in range(len(hits)):
            hits[request], size, evicted = serve(
                traffic, paths, queues, request, nameless, capacity, p, mandatory, size
            )
            evictions += evicted
            nameless += traffic.anonymous[request]
        return evictions

    return replay

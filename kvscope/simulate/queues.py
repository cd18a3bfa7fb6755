"""Replay of the policies that are algorithms on lists of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.jit import callable_in_kernels, kernel, once
from kvscope.policies.base import Floats, Ints, QueuePolicy
from kvscope.policies.lists import AFTER, BEFORE, NOWHERE, WHERE
from kvscope.prefix import write_path
from kvscope.simulate.traffic import Traffic


@callable_in_kernels
def empty_lists(blocks: int, lists: int) -> Ints:
    """So many empty lists that can hold blocks 0 to `blocks` - 1."""
    links = np.zeros((blocks + lists, 4), dtype=np.int32)
    links[:, WHERE] = NOWHERE
    for queue in range(lists):
        links[-1 - queue, AFTER] = -1 - queue
        links[-1 - queue, BEFORE] = -1 - queue
    return links


@once
def queues_kernel(policy: type[QueuePolicy]) -> Callable[..., Any]:
    """The kernel that replays a queue policy.

    Anonymous blocks get numbers beyond the trie's, each its own.
    """
    hit = callable_in_kernels(policy.hit)
    insert = callable_in_kernels(policy.insert)
    evict = callable_in_kernels(policy.evict)
    lists, remembered = policy.lists, policy.numbers

    @kernel
    def replay(
        traffic: Traffic, capacity: int, p: Floats, mandatory: bool
    ) -> tuple[NDArray[np.int32], int, NDArray[np.bool_]]:
        parents, leaf, length_of = traffic.block_parent, traffic.leaf, traffic.length
        anonymous_of, look = traffic.anonymous, traffic.look
        requests = len(leaf)
        named = len(parents)
        blocks = named + int(anonymous_of.sum())
        links = empty_lists(blocks, lists)
        numbers = np.zeros(remembered, dtype=np.float64)
        cached = np.zeros(blocks, dtype=np.bool_)
        hits = np.zeros(requests, dtype=np.int32)
        path = np.empty(length_of.max() + 1 if requests else 1, dtype=np.int32)
        size, evictions, nameless = 0, 0, named
        for request in range(requests):
            length, anonymous = length_of[request], anonymous_of[request]
            write_path(parents, leaf[request], path, 0, length)
            found = 0
            while found < length and cached[path[found]]:
                found += 1
            hits[request] = min(found, look[request])
            for at in range(length + anonymous):
                if at < length:
                    block = path[at]
                    if cached[block]:
                        hit(block, links, numbers, capacity, p)
                        continue
                else:
                    block = nameless
                    nameless += 1
                if mandatory:
                    while size >= max(capacity, 1):
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
        return hits, evictions, cached[:named]

    return replay

"""A lower bound of tail excess latency (TEL) that no policy can beat at a capacity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s
from kvscope.core.jit import kernel
from kvscope.replay.last_touch import NextTouches
from kvscope.replay.structures.bitset import add, discard, empty_sets, least, words_for
from kvscope.replay.traffic import Traffic


def tel_tokens_at_least(
    traffic: Traffic,
    next_touches: NextTouches,
    capacity_blocks: int,
    xi_tokens: float,
    first: int = 0,
) -> float:
    """Return a TEL in tokens that every policy has at least, in the `cache` capacity model.

    TEL is the sum of max(uncached tokens - `xi_tokens`, 0) over the requests from `first` on. The
    bound holds for policies that know the future, evict other blocks than leaves, or sacrifice
    requests before `first`.

    Proof. After each request its blocks can be cached, whatever was cached before. So request r
    hits a block only if that stays cached from the request that touched it before until r: an
    interval of time that takes one block of space. A hit at depth d saves r no more than
    w = min(max(I - xi - d B, 0), B) tokens of TEL. A policy thus chooses intervals, at most
    `capacity_blocks` at any time, and saves at most the sum of their w. With N(s) the most
    intervals of w > s that fit, and w the integral of [w > s] over s from 0 to B, the sum is at
    most the integral of N(s), which falls with s: at most N(0) + ... + N(B - 1). Where blocks hold
    one token, a policy that may evict any block reaches it.
    Source: Belady, IBM Systems Journal 1966, and Faigle and Nawijn, Discrete Applied Mathematics
    58, 1995: dropping what ends last keeps the most intervals; the sum over s is kvscope's own.
    """
    size = traffic.block_size
    beyond_xi = np.maximum(traffic.input_tokens - xi_tokens, 0.0)
    beyond_xi[:first] = 0.0
    saved = 0
    for tokens in range(size):
        saving = np.ceil(np.maximum(beyond_xi - tokens, 0.0) / size)  # blocks of more than `tokens`
        needed = np.minimum(traffic.look, saving).astype(np.int32)
        saved += most_hits(next_touches, needed, capacity_blocks)
    return max(float(beyond_xi.sum()) - saved, 0.0)


def most_hits(next_touches: NextTouches, needed: Int32s, capacity_blocks: int) -> int:
    """Return the most hits among the first `needed[r]` blocks of each request r.

    Any block may be evicted at any time.
    """
    requests = len(needed)
    waiting, queue = np.zeros(requests, dtype=np.int64), empty_sets(1, requests)
    return _most_hits(next_touches, needed, capacity_blocks, waiting, queue)


@kernel
def _most_hits(
    future: NextTouches,
    needed: Int32s,
    capacity: int,
    waiting: NDArray[np.int64],
    queue: NDArray[np.uint64],
) -> int:
    """Cache the blocks that a later request needs; evict those that are needed last.

    `waiting[q]` is how many cached blocks request q needs next; member R - 1 - q of `queue`
    (bitset.py) says that there are some.
    """
    hits, size, last = 0, 0, len(needed) - 1
    words = words_for(len(needed))
    for request in range(len(needed)):
        hits += waiting[request]
        size -= waiting[request]
        discard(queue, words, 0, last - request)
        start = 0
        for k in range(future.starts[request], future.starts[request + 1]):
            end, later = future.end[k], future.request[k]
            blocks = min(end, needed[later]) - start
            start = end
            if blocks > 0:
                waiting[later] += blocks
                size += blocks
                add(queue, words, 0, last - later)
        while size > capacity:
            member = least(queue, words, 0)
            evicted = min(waiting[last - member], size - capacity)
            waiting[last - member] -= evicted
            size -= evicted
            if waiting[last - member] == 0:
                discard(queue, words, 0, member)
    return hits

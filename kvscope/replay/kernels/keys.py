"""Replay of key policies, which evict the block with the lowest number (key) first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, once
from kvscope.core.prefix import Paths
from kvscope.policies.base import Block, KeyPolicy
from kvscope.replay.kernels.loop import EvictionOrder, Now, do_nothing, replay_loop, turn_of
from kvscope.replay.last_touch import Segments
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    NAMED,
    TIP,
    CachedRuns,
    empty_runs,
    may_shrink,
    release,
    shrink,
)
from kvscope.replay.traffic import Traffic

_FEW = 1024  # heap entries that are not worth a look for stale ones
_NOW, _LIMIT = 0, 1


class Heap(NamedTuple):
    """A binary heap of requests by (key, request), the lowest pair first.

    Its entries are the first `size[0]` of `keys` and of `requests`.
    """

    keys: Float64s
    requests: Int32s
    size: Int64s


def empty_heap(room: int) -> Heap:
    """Return an empty heap with room for `room` entries."""
    size = np.zeros(1, dtype=np.int64)
    return Heap(np.empty(room, dtype=np.float64), np.empty(room, dtype=np.int32), size)


class Keys(NamedTuple):
    """The state of a key policy over R requests and N blocks.

    `heap` holds every run whose deepest block may be evicted, by that block's key. `uses` (N + 1,
    or 1 where the policy does not count) are the touches of each block since it was cached;
    `segments` and `paths` serve to count them. `clocks` (R) has, for each request, the key of the
    block evicted last before its touch (0: none), which policies see as `Block.clock`. The two
    entries of `clock`: the key of the block evicted last, and the heap size above which stale
    entries are dropped.
    """

    runs: CachedRuns
    heap: Heap
    segments: Segments
    paths: Paths
    uses: Int32s
    clocks: Float64s
    clock: Float64s


def empty_keys(policy: KeyPolicy, traffic: Traffic, segments: Segments, paths: Paths) -> Keys:
    """Return the state of a key policy with an empty cache, for a replay of `traffic`."""
    requests, blocks = len(traffic.leaf), len(traffic.block_parent)
    leaf = policy.evicts == "leaf"
    return Keys(
        empty_runs(traffic, leaf, climb=leaf or policy.counts_uses),
        empty_heap(requests),
        segments,
        paths,
        np.zeros(blocks if policy.counts_uses else 1, dtype=np.int32),
        np.zeros(requests),
        np.array([0.0, _FEW]),
    )


@once
def keys_kernel(policy: type[KeyPolicy]) -> Callable[..., Any]:
    """Return the kernel that replays a key policy, whose key function is compiled into it.

    It takes the arguments of `replay_loop`: traffic, segments, empty `Keys`, settings, and an array
    (R) for the leading blocks that each request hits. It returns the number of blocks evicted.
    """
    return replay_loop(keys_order(policy))


@once
def keys_order(policy: type[KeyPolicy]) -> EvictionOrder:
    """Return the eviction order of a key policy.

    A heap entry is stale once later requests have taken over the whole run. If the policy is
    `rising` (keys grow with time), the lowest entry gets its present key first: it may no longer be
    lowest.
    """
    key_of = callable_in_kernels(policy.key)
    admits_turn = callable_in_kernels(policy.admits)
    rising, counts = policy.rising, policy.counts_uses

    @callable_in_kernels
    def admits(state: Keys, traffic: Traffic, request: int, now: Now) -> bool:
        return admits_turn(turn_of(traffic, request), now.p, now.table)

    @callable_in_kernels
    def key_at(state: Keys, traffic: Traffic, depth: int, request: int, now: Now) -> float:
        of = state.runs.of
        named = depth < of[request, NAMED]
        uses = state.uses[of[request, TIP]] if counts and named else 1  # only the deepest matters
        block = Block(depth, uses, state.clocks[request])
        return key_of(turn_of(traffic, request), block, now.now_s, now.block_size, now.p, now.table)

    @callable_in_kernels
    def key_now(state: Keys, traffic: Traffic, request: int, now: Now) -> float:
        """Return the present key of the deepest block of a request's run."""
        return key_at(state, traffic, state.runs.of[request, END] - 1, request, now)

    @callable_in_kernels
    def touch(state: Keys, traffic: Traffic, request: int, now: Now) -> None:
        count_uses(state, request)

    @callable_in_kernels
    def enter(state: Keys, traffic: Traffic, request: int, now: Now) -> None:
        state.clocks[request] = state.clock[_NOW]

    @callable_in_kernels
    def join(state: Keys, traffic: Traffic, request: int, now: Now) -> None:
        if state.heap.size[0] > state.clock[_LIMIT]:
            drop_stale(state)
            state.clock[_LIMIT] = 2 * state.heap.size[0] + _FEW
        put(state.heap, key_now(state, traffic, request, now), request)

    @callable_in_kernels
    def retable(state: Keys, traffic: Traffic, request: int, now: Now) -> None:
        """Rebuild the heap with keys from the learned table that has just come into force."""
        heap, of = state.heap, state.runs.of
        count = heap.size[0]
        heap.size[0] = 0
        for at in range(count):
            queued, key = int(heap.requests[at]), heap.keys[at]
            if of[queued, END] > of[queued, FIRST]:
                key = key_now(state, traffic, queued, now)
            put(heap, key, queued)

    @callable_in_kernels
    def expire(state: Keys, traffic: Traffic, request: int, now: Now) -> int:
        first = state.runs.of[request, FIRST]
        count = state.runs.of[request, END] - first
        if count <= 0:
            return 0
        shrink(state.runs, request, count, first)
        freed = release(state.runs, request)
        if freed >= 0:
            put(state.heap, key_now(state, traffic, freed, now), freed)
        return int(count)

    @callable_in_kernels
    def evict_from(
        state: Keys, traffic: Traffic, request: int, most: int, key: float, now: Now
    ) -> int:
        """Evict up to `most` blocks of a run, deepest first, while they precede all heap entries.

        `key` is the deepest block's. Deeper blocks of a run never have higher keys: if a shallow
        one precedes the heap's entries, all below it do. Return the number of blocks evicted.
        """
        runs, heap = state.runs, state.heap
        first, evicted = runs.of[request, FIRST], 0
        while True:
            end = runs.of[request, END]
            chunk = 1 if counts else min(most - evicted, end - first)
            while chunk > 1:
                shallow = key_at(state, traffic, end - chunk, request, now)
                if precedes_all(heap, shallow, request):
                    key = shallow
                    break
                chunk >>= 1
            evicted += shrink(runs, request, chunk, first)
            state.clock[_NOW] = key
            joining = request
            if runs.of[request, END] == first:
                joining = release(runs, request)
            elif not may_shrink(runs, request):
                joining = -1
            if joining < 0:
                break
            key = key_now(state, traffic, joining, now)
            if joining != request or evicted == most or not precedes_all(heap, key, joining):
                put(heap, key, joining)
                break
        return evicted

    @callable_in_kernels
    def evict(state: Keys, traffic: Traffic, request: int, now: Now, most: int) -> int:
        heap, of = state.heap, state.runs.of
        while heap.size[0] > 0:
            key, victim = heap.keys[0], int(heap.requests[0])
            drop_lowest(heap)
            if of[victim, END] <= of[victim, FIRST]:
                continue
            if rising:
                key = key_now(state, traffic, victim, now)
                if not precedes_all(heap, key, victim):
                    put(heap, key, victim)
                    continue
            return evict_from(state, traffic, victim, most, key, now)
        return 0

    return EvictionOrder(
        admits,
        enter=enter,
        join=join,
        evict=evict,
        expire=expire,
        touch=touch if counts else do_nothing,
        retable=retable if policy.learner is not None else do_nothing,
    )


@callable_in_kernels
def drop_stale(state: Keys) -> None:
    """Drop the heap entries of runs that later requests have taken over."""
    heap, of = state.heap, state.runs.of
    count = heap.size[0]
    heap.size[0] = 0
    for at in range(count):
        request = int(heap.requests[at])
        if of[request, END] > of[request, FIRST]:
            put(heap, heap.keys[at], request)


@callable_in_kernels
def count_uses(state: Keys, request: int) -> None:
    """Count a touch of each block of a path, before its take-over; from 0 if it is not cached."""
    segments, uses = state.segments, state.uses
    starts, blocks = state.paths.starts, state.paths.blocks
    head, end = starts[request], starts[request + 1]
    at = head
    for k in range(segments.starts[request], segments.starts[request + 1]):
        cached = head + min(state.runs.of[segments.previous[k], END], segments.end[k])
        stop = head + segments.end[k]
        while at < cached:
            uses[blocks[at]] += 1
            at += 1
        while at < stop:
            uses[blocks[at]] = 1
            at += 1
    while at < end:
        uses[blocks[at]] = 1
        at += 1


@callable_in_kernels
def comes_before(heap: Heap, key: float, request: int, at: int) -> bool:
    """Return whether (key, request) is lower than the heap's entry `at`."""
    return bool(key < heap.keys[at] or (key == heap.keys[at] and request < heap.requests[at]))


@callable_in_kernels
def precedes_all(heap: Heap, key: float, request: int) -> bool:
    """Return whether (key, request) is lower than every entry of the heap."""
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
    """Remove the lowest entry of a heap."""
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

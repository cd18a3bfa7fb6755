"""Replay of the policies that give every block a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel, once
from kvscope.core.prefix import Paths, ancestor
from kvscope.policies.base import Block, Floats, KeyPolicy, Turn
from kvscope.replay.last_touch import Segments
from kvscope.replay.structures.heap import comes_before, drop_lowest, put
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    NAMED,
    TIP,
    Ints,
    empty_knots,
    empty_runs,
    may_shrink,
    release,
    shrink,
    take_over,
)
from kvscope.replay.traffic import Traffic

_FEW = 1024  # heap entries that are not worth a look for stale ones
_ARRIVAL, _HISTORY, _CATEGORY, _FOLLOWING, _CLOCK = range(5)


class Keys(NamedTuple):
    """What a key policy and its kernel keep up: `runs.py` says what `runs` and `knots` are.

    `facts` (R x 5) is what policies may see of each request; `uses` counts the touches of each
    block; `keys` and `queued` are the heap.
    """

    runs: Ints
    knots: Ints
    facts: Floats
    uses: Ints
    keys: Floats
    queued: Ints


def empty_keys(policy: type[KeyPolicy], traffic: Traffic, leaf: bool) -> Keys:
    """An empty cache."""
    requests, blocks = len(traffic.leaf), len(traffic.block_parent)
    facts = np.zeros((requests, 5), dtype=np.float64)
    facts[:, _ARRIVAL] = traffic.arrival_s
    facts[:, _HISTORY] = traffic.history_tokens
    facts[:, _CATEGORY] = traffic.category
    facts[:, _FOLLOWING] = traffic.next_prompt_tokens
    return Keys(
        empty_runs(traffic.leaf, traffic.length),
        empty_knots(blocks, leaf),
        facts,
        np.zeros(blocks if policy.counts_uses else 1, dtype=np.int32),
        np.empty(requests, dtype=np.float64),
        np.empty(requests, dtype=np.int32),
    )


@once
def keys_kernel(policy: type[KeyPolicy], leaf: bool) -> Callable[..., Any]:
    """The kernel that replays a key policy; `leaf` as in `Policy.leaves`.

    A heap holds every run that may shrink, once, by the key of its deepest block. An entry goes
    stale when a later request takes the whole run, and lags behind a key that grows with time.
    """
    admits = callable_in_kernels(policy.admits)
    key_of = callable_in_kernels(policy.key)
    rising, reads_tables = policy.rising, policy.learner is not None
    counts = policy.counts_uses
    climb = leaf or counts

    @callable_in_kernels
    def key_at(
        depth: int,
        request: int,
        now: float,
        facts: NDArray[np.float64],
        runs: Ints,
        uses: Ints,
        block_size: int,
        p: Floats,
        table: Floats,
    ) -> float:
        named = depth < runs[request, NAMED]
        used = uses[runs[request, TIP]] if counts and named else 1  # only the deepest is asked for
        block = Block(depth, used, facts[request, _CLOCK])
        return key_of(turn_of(request, facts), block, now, block_size, p, table)

    @callable_in_kernels
    def give_up(
        runs: Ints,
        knots: Ints,
        parents: Ints,
        keys: NDArray[np.float64],
        queued: Ints,
        count: int,
        request: int,
        most: int,
        key: float,
        now: float,
        facts: NDArray[np.float64],
        uses: Ints,
        block_size: int,
        p: Floats,
        table: Floats,
    ) -> tuple[int, int, float]:
        """Evict up to `most` of a run's blocks, those that leave before anything in the heap.

        `key` is its deepest block's. As keys do not grow with depth, where a shallow block leaves
        first all below it do. Returns the blocks, the heap's new count, the last block's key.
        """
        first, gone = runs[request, FIRST], 0
        while True:
            end = runs[request, END]
            chunk = 1 if counts else min(most - gone, end - first)
            while chunk > 1:
                shallow = key_at(
                    end - chunk, request, now, facts, runs, uses, block_size, p, table,
                )  # fmt: skip
                if count == 0 or comes_before(shallow, request, keys, queued, 0):
                    key = shallow
                    break
                chunk >>= 1
            gone += shrink(runs, knots, parents, request, chunk, first, climb, leaf)
            clock = key
            joining = request
            if runs[request, END] == first:
                joining = release(runs, knots, request) if leaf else -1
            elif not may_shrink(runs, knots, request, leaf):
                joining = -1
            if joining < 0:
                break
            key = key_at(
                runs[joining, END] - 1, joining, now, facts, runs, uses, block_size, p, table,
            )  # fmt: skip
            done = joining != request or gone == most
            if done or (count > 0 and not comes_before(key, joining, keys, queued, 0)):
                count = put(keys, queued, count, key, joining)
                break
        return gone, count, clock

    @kernel
    def replay(
        traffic: Traffic,
        moved: Segments,
        paths: Paths,
        state: Keys,
        capacity: int,
        p: Floats,
        tables: NDArray[np.float64],
        since: NDArray[np.int64],
        ttl_s: float,
        mandatory: bool,
        hits: NDArray[np.int32],
    ) -> int:
        parents, block_size = traffic.block_parent, traffic.block_size
        length, anonymous, look = traffic.length, traffic.anonymous, traffic.look
        starts, giver, stops, block = moved.starts, moved.previous, moved.end, moved.block
        requests = len(length)
        runs, knots, facts, uses = state.runs, state.knots, state.facts, state.uses
        keys, queued = state.keys, state.queued
        table = tables[0]
        count, size, evictions, expired, period = 0, 0, 0, 0, 0
        clock, limit = 0.0, _FEW
        for request in range(requests):
            now = facts[request, _ARRIVAL]
            told = period
            while period + 1 < len(since) and since[period + 1] <= request:
                period += 1
            if period != told:
                table = tables[period]
                for at in range(count if reads_tables else 0):
                    one = int(queued[at])
                    if runs[one, END] > runs[one, FIRST]:
                        keys[at] = key_at(
                            runs[one, END] - 1, one, now, facts, runs, uses, block_size, p, table,
                        )  # fmt: skip
                    put(keys, queued, at, keys[at], one)
            while expired < request and facts[expired, _ARRIVAL] < now - ttl_s:
                left = runs[expired, END] - runs[expired, FIRST]
                if left > 0:
                    shrink(runs, knots, parents, expired, left, runs[expired, FIRST], climb, leaf)
                    size -= left
                    evictions += left
                    freed = release(runs, knots, expired) if leaf else -1
                    if freed >= 0:
                        depth = runs[freed, END] - 1
                        key = key_at(
                            depth, freed, now, facts, runs, uses, block_size, p, table,
                        )  # fmt: skip
                        count = put(keys, queued, count, key, freed)
                expired += 1

            if counts:
                count_uses(runs, uses, request, starts, giver, stops, paths)
            found, cached = take_over(runs, knots, request, starts, giver, stops, block, leaf)
            hits[request] = min(found, look[request])
            end = length[request] + anonymous[request]
            if not admits(turn_of(request, facts), p):
                if climb:
                    unused = length[request] - found
                    runs[request, TIP] = ancestor(parents, runs[request, TIP], unused)
                end = found
            runs[request, END] = end
            facts[request, _CLOCK] = clock
            size += end - cached

            for step in range(0 if mandatory else 1, 2):  # others first, then its own blocks too
                if count > limit:
                    count = without_stale(keys, queued, count, runs)
                    limit = 2 * count + _FEW
                if step == 1 and end > 0 and may_shrink(runs, knots, request, leaf):
                    key = key_at(
                        end - 1, request, now, facts, runs, uses, block_size, p, table,
                    )  # fmt: skip
                    count = put(keys, queued, count, key, request)
                while size > capacity and count > 0:
                    key, victim = keys[0], int(queued[0])
                    count = drop_lowest(keys, queued, count)
                    if runs[victim, END] <= runs[victim, FIRST]:
                        continue
                    if rising:
                        key = key_at(
                            runs[victim, END] - 1, victim, now, facts, runs, uses, block_size, p,
                            table,
                        )  # fmt: skip
                        if count > 0 and not comes_before(key, victim, keys, queued, 0):
                            count = put(keys, queued, count, key, victim)
                            continue
                    gone, count, clock = give_up(
                        runs, knots, parents, keys, queued, count, victim, size - capacity, key,
                        now, facts, uses, block_size, p, table,
                    )  # fmt: skip
                    size -= gone
                    evictions += gone
        return evictions

    return replay


@callable_in_kernels
def without_stale(keys: NDArray[np.float64], queued: Ints, count: int, runs: Ints) -> int:
    """Drop the entries of runs that were taken over; the heap's new count."""
    kept = 0
    for at in range(count):
        if runs[queued[at], END] > runs[queued[at], FIRST]:
            kept = put(keys, queued, kept, keys[at], int(queued[at]))
    return kept


@callable_in_kernels
def turn_of(request: int, facts: NDArray[np.float64]) -> Turn:
    """A request as policies see it."""
    return Turn(
        request,
        facts[request, _ARRIVAL],
        int(facts[request, _HISTORY]),
        int(facts[request, _CATEGORY]),
        int(facts[request, _FOLLOWING]),
    )


@callable_in_kernels
def count_uses(
    runs: Ints,
    uses: Ints,
    request: int,
    starts: NDArray[np.int64],
    giver: Ints,
    stops: Ints,
    paths: Paths,
) -> None:
    """Count the touch of every block on a path, before it is taken over; 1 where it is inserted."""
    head, end = paths.starts[request], paths.starts[request + 1]
    at = head
    for k in range(starts[request], starts[request + 1]):
        cached, stop = head + min(runs[giver[k], END], stops[k]), head + stops[k]
        while at < cached:
            uses[paths.blocks[at]] += 1
            at += 1
        while at < stop:
            uses[paths.blocks[at]] = 1
            at += 1
    while at < end:
        uses[paths.blocks[at]] = 1
        at += 1

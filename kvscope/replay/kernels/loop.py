"""The replay loop of all policies that work on paths; policies differ by their `EvictionOrder`.

A request is looked up, its path joins the cache, then blocks are evicted down to the capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import by_reference, callable_in_kernels, kernel
from kvscope.core.prefix import ancestor
from kvscope.policies.base import Table, Turn
from kvscope.replay.last_touch import Segments
from kvscope.replay.structures.runs import END, TIP, CachedRuns, may_shrink, take_over
from kvscope.replay.traffic import Traffic


class Now(NamedTuple):
    """The arguments of an eviction order besides its state; `p` are the policy's parameters.

    `table` is the learned table in force. `functions` are the policy's, for calls by address.
    """

    now_s: float
    block_size: int
    p: Float64s
    table: Table
    functions: Any


class TablePeriods(NamedTuple):
    """The learned tables of a policy, one per period, and the one `in_force`.

    Table k holds from request `since[k]` on; `values[rows[k, c]]` is its row for category c.
    `in_force` (categories x columns) is a copy of the table that holds now.
    """

    since: Int64s
    rows: Int32s
    values: Table
    in_force: Table


@callable_in_kernels
def take_table(tables: TablePeriods, period: int) -> None:
    """Put the table of a period in force."""
    for category in range(len(tables.in_force)):
        row = tables.rows[period, category]
        for column in range(tables.in_force.shape[1]):
            tables.in_force[category, column] = tables.values[row, column]


@callable_in_kernels
def advance_table(tables: TablePeriods, period: int, requests: int) -> int:
    """Put the table for the latest of `requests` requests in force; return its period."""
    before = period
    while period + 1 < len(tables.since) and tables.since[period + 1] < requests:
        period += 1
    if period != before:
        take_table(tables, period)
    return period


@callable_in_kernels
def turn_of(traffic: Traffic, request: int, part: int = 0) -> Turn:
    """Return a request as policies see it, with the category of part number `part` of its path."""
    return Turn(
        request,
        traffic.arrival_s[request],
        traffic.history_tokens[request],
        traffic.category[request] * (traffic.cuts.shape[1] + 1) + part,
        traffic.next_prompt_tokens[request],
    )


@callable_in_kernels
def do_nothing(state: Any, traffic: Traffic, request: int, now: Now) -> None:
    """Do nothing, for orders without this step."""


@callable_in_kernels
def observe_nothing(state: Any, number: int, uncached_tokens: int, now: Now) -> None:
    """Do nothing, for orders that do not adapt."""


class EvictionOrder(Struct, frozen=True, eq=False):
    """The functions that make an eviction order of paths, for the loops below.

    They are called with (state, traffic, request, now): `admits` returns whether the policy admits
    the request, `touch` precedes the request's take-over of its path, `enter` follows the
    take-over, `join` queues the request's run, which may shrink, and `retable` follows a change of
    the policy's table. `expire` evicts a whole run, `evict` at most as many blocks as its last
    argument; both return the number of blocks evicted, 0 if none is left. `observe` is called with
    (state, number, uncached tokens, now) after each request; `number` counts the cache's requests
    from 0.
    """

    admits: Callable[..., bool]
    enter: Callable[..., None]
    join: Callable[..., None]
    evict: Callable[..., int]
    expire: Callable[..., int]
    touch: Callable[..., None] = do_nothing
    retable: Callable[..., None] = do_nothing
    observe: Callable[..., None] = observe_nothing


def server(order: EvictionOrder) -> Callable[..., tuple[int, int, int]]:
    """Return the function that serves one request from one cache in this order.

    It takes (traffic, its segments, state, request, now, capacity in blocks, whether other blocks
    must be evicted before the request's own, blocks cached before, requests served before), and
    returns (leading blocks that the request hits, blocks cached afterwards, blocks evicted).
    """
    admits, touch, enter, join = order.admits, order.touch, order.enter, order.join
    evict, observe = order.evict, order.observe

    @callable_in_kernels
    def serve(
        traffic: Traffic,
        segments: Segments,
        state: Any,
        request: int,
        now: Now,
        capacity: int,
        mandatory: bool,
        size: int,
        number: int,
    ) -> tuple[int, int, int]:
        runs: CachedRuns = state.runs
        evicted = 0
        touch(state, traffic, request, now)
        leading, cached = take_over(runs, segments, request)
        hit = min(leading, traffic.look[request])
        end = traffic.length[request] + traffic.anonymous[request]
        if not admits(state, traffic, request, now):
            if runs.climb:
                unused = traffic.length[request] - leading
                runs.of[request, TIP] = ancestor(runs.parents, runs.of[request, TIP], unused)
            end = leading
        runs.of[request, END] = end
        size += end - cached
        enter(state, traffic, request, now)
        for step in range(0 if mandatory else 1, 2):  # others first, then its own blocks too
            if step == 1 and end > 0 and may_shrink(runs, request):
                join(state, traffic, request, now)
            while size > capacity:
                count = evict(state, traffic, request, now, size - capacity)
                if count == 0:
                    break
                size -= count
                evicted += count
        hit_tokens = hit * traffic.block_size
        observe(state, number, max(traffic.input_tokens[request] - hit_tokens, 0), now)
        return hit, size, evicted

    return serve


def replay_loop(order: EvictionOrder) -> Callable[..., Any]:
    """Return the kernel that replays traffic on one cache in this order.

    It takes, in order: the traffic; its segments; the order's empty cache; the capacity in blocks;
    the policy's parameters; its `TablePeriods`; the idle time (s) after which runs expire; whether
    other blocks must be evicted before a request's own; an array (R) that it fills with the leading
    blocks that each request hits; the policy's functions, for calls by address. It returns the
    number of blocks evicted.
    """
    serve, expire, retable = server(order), order.expire, order.retable

    @kernel
    def replay(
        traffic: Traffic,
        segments: Segments,
        state: Any,
        capacity: int,
        p: Float64s,
        tables: TablePeriods,
        ttl_s: float,
        mandatory: bool,
        hits: Int32s,
        functions: Any,
    ) -> int:
        traffic, segments = by_reference(traffic), by_reference(segments)
        state, tables = by_reference(state), by_reference(tables)
        size, evictions, expired, period = 0, 0, 0, 0
        for request in range(len(traffic.leaf)):
            now_s, before = traffic.arrival_s[request], period
            period = advance_table(tables, period, request + 1)
            now = Now(now_s, traffic.block_size, p, tables.in_force, functions)
            if period != before:
                retable(state, traffic, request, now)
            while expired < request and traffic.arrival_s[expired] < now_s - ttl_s:
                count = expire(state, traffic, expired, now)
                size -= count
                evictions += count
                expired += 1
            hits[request], size, evicted = serve(
                traffic, segments, state, request, now, capacity, mandatory, size, request
            )
            evictions += evicted
        return evictions

    return replay

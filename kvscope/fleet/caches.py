"""The caches of N replicas side by side, each with the same policy.

One replica serves a request, so arrays with an entry per request (runs, places) are shared by all
replicas. Arrays with an entry per block or lane have a row for each replica, and `owner`, the
request that touched a block last, has a column for each replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.jit import callable_in_kernels, once
from kvscope.core.prefix import Paths
from kvscope.policies.base import KeyPolicy, LanePolicy, Policy, QueuePolicy
from kvscope.replay.kernels.keys import Heap, Keys, empty_keys, keys_order
from kvscope.replay.kernels.lanes import Lanes, calls_by_address, empty_lanes, lanes_order
from kvscope.replay.kernels.loop import EvictionOrder, Now, TablePeriods, server
from kvscope.replay.kernels.queues import Queues, empty_queues, queues_server
from kvscope.replay.last_touch import Segments
from kvscope.replay.replay import Tables
from kvscope.replay.structures.runs import END, NAMED, TIP, CachedRuns
from kvscope.replay.traffic import Traffic


class Touched(NamedTuple):
    """The last toucher of each block on each replica, and the path of the request being served.

    `owner` ((blocks + 1) x replicas) is the request that touched a block last on a replica, -1 for
    none. `path` (as long as the longest path) holds the blocks of the request being served, head
    first, and `segments` its runs: blocks that the same request touched last. `paths` is `path` in
    the form of a table of paths. Of `segments` and `paths`, only that request has entries, from
    index 0.
    """

    owner: Int32s
    segments: Segments
    paths: Paths
    path: Int32s


NEXT, EXPIRED, PERIOD = range(3)


class FleetCaches(NamedTuple):
    """N caches, and the progress of their replay.

    `touched` and `state` are arguments of the functions of `Caches`. Per replica, `size` counts the
    blocks cached, `evictions` blocks evicted, `requests` requests served; `p` has a row of policy
    parameters. `progress` holds the NEXT request to serve, in order of arrival, the next one to be
    EXPIRED, and the PERIOD whose table of `tables` is in force.
    """

    touched: Touched
    state: Any
    size: Int64s
    evictions: Int64s
    requests: Int64s
    p: Float64s
    progress: Int64s
    tables: TablePeriods


class Caches(Struct, frozen=True, eq=False):
    """The functions that a fleet's kernel calls, for one kind of policy.

    `begin(state, touched, traffic, request)` registers a request that has arrived. `leading(state,
    touched, replica, look)` counts the leading blocks of its path that a replica holds, up to
    `look`. `serve(traffic, touched, state, replica, request, now, capacity, mandatory, size,
    number)` serves it on a replica with `size` blocks cached and `number` requests served; it
    returns blocks hit, new size and blocks evicted. `now` is a `Now`: the time (s), and what the
    policy uses at it. If `mandatory`, other blocks are evicted before the request's own.
    `expire(state, traffic, replica, request, now)` drops blocks of a request beyond the TTL, and
    returns their number. `retable`, with the arguments of `expire`, switches to another table of
    the policy.
    """

    begin: Callable[..., None]
    leading: Callable[..., int]
    serve: Callable[..., tuple[int, int, int]]
    expire: Callable[..., int]
    retable: Callable[..., None]


def empty_fleet(
    policy: Policy, traffic: Traffic, replicas: int, capacity: int, tables: Tables
) -> FleetCaches:
    """Return N empty caches with the policy's tables.

    Raises UsageError for a policy with hindsight: here the future depends on the router.
    """
    touched, lanes = _empty_touched(traffic, replicas), 1
    if isinstance(policy, LanePolicy):
        lanes = tables.categories if policy.by_category else policy.lanes
    size, evictions, requests = (np.zeros(replicas, dtype=np.int64) for _ in range(3))
    return FleetCaches(
        touched,
        _empty_state(policy, traffic, touched, replicas, capacity, lanes),
        size,
        evictions,
        requests,
        np.repeat(policy.settings()[None], replicas, axis=0),
        np.zeros(3, dtype=np.int64),
        tables.periods(),
    )


def _empty_touched(traffic: Traffic, replicas: int) -> Touched:
    requests, longest = len(traffic.leaf), int(traffic.length.max(initial=0)) + 1
    path = np.zeros(longest, dtype=np.int32)
    starts = np.zeros(requests + 1, dtype=np.int64)
    end, previous, block = (np.zeros(longest, dtype=np.int32) for _ in range(3))
    return Touched(
        np.full((len(traffic.block_parent), replicas), -1, dtype=np.int32),
        Segments(starts, end, previous, block, np.zeros(1, dtype=np.int32)),
        Paths(np.zeros(requests + 1, dtype=np.int64), path),
        path,
    )


def _empty_state(
    policy: Policy, traffic: Traffic, touched: Touched, replicas: int, capacity: int, lanes: int
) -> Any:
    if policy.hindsight:
        raise UsageError(
            f"{policy.name} knows the future, which depends on what this router chooses",
            where="--policy",
            remedy="take a policy without hindsight, or a router that sees the order alone",
        )

    def rows(array: Any) -> Any:
        return np.repeat(array[None], replicas, axis=0)

    if isinstance(policy, LanePolicy):
        cache = empty_lanes(policy, traffic, lanes)
        return cache._replace(
            runs=cache.runs._replace(branches=rows(cache.runs.branches)),
            queues=rows(cache.queues),
            busy=rows(cache.busy),
            scored=rows(cache.scored),
            recent=rows(cache.recent),
        )
    if isinstance(policy, KeyPolicy):
        keys = empty_keys(policy, traffic, touched.segments, touched.paths)
        return keys._replace(
            runs=keys.runs._replace(branches=rows(keys.runs.branches)),
            heap=Heap(*(rows(column) for column in keys.heap)),
            uses=rows(keys.uses),
            clock=rows(keys.clock),
        )
    if isinstance(policy, QueuePolicy):
        queues = empty_queues(type(policy), traffic, capacity)
        return Queues(*(rows(column) for column in queues))
    raise TypeError(f"{policy.name} is of no known shape")


def caches_of(policy: type[Policy]) -> Caches:
    """Return the functions of a policy's caches; all lane policies have the same ones."""
    if issubclass(policy, LanePolicy):
        return _path_caches(lanes_order(calls_by_address()), _lanes_at)
    if issubclass(policy, KeyPolicy):
        return _path_caches(keys_order(policy), _keys_at)
    if issubclass(policy, QueuePolicy):
        return _queue_caches(policy)
    raise TypeError(f"{policy.name} is of no known shape")


@callable_in_kernels
def _runs_at(runs: CachedRuns, replica: int) -> CachedRuns:
    return CachedRuns(runs.of, runs.branches[replica], runs.parents, runs.leaf, runs.climb)


@callable_in_kernels
def _lanes_at(state: Lanes, replica: int) -> Lanes:
    return Lanes(
        _runs_at(state.runs, replica),
        state.queues[replica],
        state.busy[replica],
        state.scored[replica],
        state.places,
        state.recent[replica],
        state.selects,
        state.adaptive,
        state.timeless,
        state.stepwise,
    )


@callable_in_kernels
def _keys_at(state: Keys, replica: int) -> Keys:
    heap = state.heap
    return Keys(
        _runs_at(state.runs, replica),
        Heap(heap.keys[replica], heap.requests[replica], heap.size[replica]),
        state.segments,
        state.paths,
        state.uses[replica],
        state.clocks,
        state.clock[replica],
    )


@callable_in_kernels
def _write_segments(touched: Touched, request: int, length: int, replica: int) -> None:
    """Write the runs of `touched.path`, of `length` blocks, to `touched.segments`.

    Blocks of a run were last touched by the same request on this replica. From now on `request`,
    which is being served, is the last one for the whole path.
    """
    owner, path, segments = touched.owner, touched.path, touched.segments
    at, count = 0, 0
    while at < length:
        before = owner[path[at], replica]
        while at < length and owner[path[at], replica] == before:
            owner[path[at], replica] = request
            at += 1
        if before >= 0:
            segments.end[count] = at
            segments.previous[count] = before
            segments.block[count] = path[at - 1]
            count += 1
    segments.starts[request] = 0
    segments.starts[request + 1] = count
    touched.paths.starts[request] = 0
    touched.paths.starts[request + 1] = length


@once
def _path_caches(order: EvictionOrder, at_replica: Callable[..., Any]) -> Caches:
    serve_one, expire_one, retable_one = server(order), order.expire, order.retable

    @callable_in_kernels
    def begin(state: Any, touched: Touched, traffic: Traffic, request: int) -> None:
        of = state.runs.of
        of[request, TIP] = traffic.leaf[request]
        of[request, NAMED] = traffic.length[request]

    @callable_in_kernels
    def leading(state: Any, touched: Touched, replica: int, look: int) -> int:
        owner, path, of = touched.owner, touched.path, state.runs.of
        depth = 0
        while depth < look:
            last = owner[path[depth], replica]
            if last < 0 or of[last, END] <= depth:
                break
            depth += 1
        return depth

    @callable_in_kernels
    def serve(
        traffic: Traffic,
        touched: Touched,
        state: Any,
        replica: int,
        request: int,
        now: Now,
        capacity: int,
        mandatory: bool,
        size: int,
        number: int,
    ) -> tuple[int, int, int]:
        _write_segments(touched, request, traffic.length[request], replica)
        return serve_one(
            traffic,
            touched.segments,
            at_replica(state, replica),
            request,
            now,
            capacity,
            mandatory,
            size,
            number,
        )

    @callable_in_kernels
    def expire(state: Any, traffic: Traffic, replica: int, request: int, now: Now) -> int:
        return expire_one(at_replica(state, replica), traffic, request, now)

    @callable_in_kernels
    def retable(state: Any, traffic: Traffic, replica: int, request: int, now: Now) -> None:
        retable_one(at_replica(state, replica), traffic, request, now)

    return Caches(begin, leading, serve, expire, retable)


@once
def _queue_caches(policy: type[QueuePolicy]) -> Caches:
    serve_one = queues_server(policy)

    @callable_in_kernels
    def begin(state: Queues, touched: Touched, traffic: Traffic, request: int) -> None:
        """Reserve ids for the request's blocks that the trie lacks, after earlier requests'."""
        starts: Int64s = touched.segments.starts  # unused otherwise where there are no runs
        starts[request + 1] = starts[request] + traffic.anonymous[request]

    @callable_in_kernels
    def leading(state: Queues, touched: Touched, replica: int, look: int) -> int:
        depth = 0
        while depth < look and state.cached[replica, touched.path[depth]]:
            depth += 1
        return depth

    @callable_in_kernels
    def serve(
        traffic: Traffic,
        touched: Touched,
        state: Queues,
        replica: int,
        request: int,
        now: Now,
        capacity: int,
        mandatory: bool,
        size: int,
        number: int,
    ) -> tuple[int, int, int]:
        touched.paths.starts[request] = 0
        touched.paths.starts[request + 1] = traffic.length[request]
        nameless = len(traffic.block_parent) + touched.segments.starts[request]
        queues = Queues(state.links[replica], state.numbers[replica], state.cached[replica])
        return serve_one(
            traffic,
            touched.paths,
            queues,
            request,
            nameless,
            capacity,
            now.p,
            mandatory,
            size,
        )

    @callable_in_kernels
    def expire(state: Queues, traffic: Traffic, replica: int, request: int, now: Now) -> int:
        return 0  # queue policies have no time to live

    @callable_in_kernels
    def retable(state: Queues, traffic: Traffic, replica: int, request: int, now: Now) -> None:
        """Do nothing: queue policies have no table."""

    return Caches(begin, leading, serve, expire, retable)

"""The kernel of a fleet of prefill queues: a router sends requests to replicas as they arrive.

Every replica is one server: prefills run first come, first served, and a request decodes after its
first token without delaying prefills, slower the more requests run when it is sent. Its blocks are
looked up and cached then; routers with KV events may see that late. At equal times requests end
first, then first tokens come, then prefills begin, then loads are scraped, then KV events arrive,
then requests arrive, in the order of the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import (
    Function,
    Opaque,
    by_reference,
    callable_in_kernels,
    kernel,
    once,
)
from kvscope.core.prefix import write_path
from kvscope.fleet.caches import EXPIRED, NEXT, PERIOD, FleetCaches, caches_of
from kvscope.policies.base import Policy
from kvscope.replay.costs import Costs, decode_s, prefill_s
from kvscope.replay.kernels.keys import Heap, drop_lowest, put
from kvscope.replay.kernels.loop import Now, advance_table
from kvscope.replay.traffic import Traffic
from kvscope.routers.base import Prompt, ReplicaLoad, View

ENDS, FIRST_TOKEN, BEGINS = 0, 1, 2
OPEN = -1.0  # in place of a think time: the request arrives at its time in the trace


class Asked(NamedTuple):
    """What routers see of R requests: last trie node, blocks, full ones, conversation (`key`)."""

    leaf: Int32s
    blocks: Int32s
    full_blocks: Int32s
    key: Int64s


class Arrivals(NamedTuple):
    """The arrival times of R requests, in the order of the trace.

    Request r arrives `think_s[r]` seconds after the request that it follows has ended, or at the
    trace's time if `think_s[r]` is OPEN. Request r is followed by `turns[starts[r]:starts[r + 1]]`.
    `due` is a heap of the requests whose arrival time is known.
    """

    think_s: Float64s
    starts: Int64s
    turns: Int32s
    due: Heap


class Replicas(NamedTuple):
    """N replicas: `free_s`, the end of the last prefill on each (s), and the blocks in use.

    `users` ((blocks + 1) x N) counts the requests in flight that use a block; it has one row if the
    router does not count blocks.
    """

    free_s: Float64s
    users: Int32s


class Served(NamedTuple):
    """The replica, hits and times of R requests, in order of arrival.

    `request` is the number in the trace. Times (s) are those of the start of prefill, the first
    token and the last token. `hit` counts hit blocks, copied ones included, `best` the most that
    any replica held, and `uncached` the uncached tokens that the router expected.
    """

    request: Int32s
    replica: Int32s
    hit: Int32s
    best: Int32s
    uncached: Int32s
    begin_s: Float64s
    token_s: Float64s
    end_s: Float64s


class CacheLimits(NamedTuple):
    """Settings of a replay: `capacity` in blocks per replica, and settings of policy and router.

    If `mandatory`, the policy evicts other blocks before a request's own (`Policy.makes_room`).
    Blocks expire `ttl_s` after their last touch, loads are scraped every `scrape_s` (0: never).
    With `event_lag_s` above 0, each cache has a copy for KV events, which serves every request by
    that much later. `counts_blocks`: the router needs the blocks in use.
    """

    capacity: int
    mandatory: bool
    ttl_s: float
    scrape_s: float
    event_lag_s: float
    counts_blocks: bool


@callable_in_kernels
def _copy_load(source: ReplicaLoad, target: ReplicaLoad) -> None:
    for replica in range(len(source.in_flight)):
        target.in_flight[replica] = source.in_flight[replica]
        target.waiting[replica] = source.waiting[replica]
        target.running[replica] = source.running[replica]
        target.processed[replica] = source.processed[replica]
        target.sent_tokens[replica] = source.sent_tokens[replica]
        target.prompt_tokens[replica] = source.prompt_tokens[replica]
        target.uncached_tokens[replica] = source.uncached_tokens[replica]
        target.used_blocks[replica] = source.used_blocks[replica]


@callable_in_kernels
def _take_row(served: Traffic, at: int, trace: Traffic, request: int, now_s: float) -> None:
    """Copy the request that arrives at `now_s` from `trace` to row `at` of `served`."""
    served.leaf[at] = trace.leaf[request]
    served.length[at] = trace.length[request]
    served.look[at] = trace.look[request]
    served.anonymous[at] = trace.anonymous[request]
    served.arrival_s[at] = now_s
    served.input_tokens[at] = trace.input_tokens[request]
    served.history_tokens[at] = trace.history_tokens[request]
    served.category[at] = trace.category[request]
    served.next_prompt_tokens[at] = trace.next_prompt_tokens[request]
    for cut in range(trace.cuts.shape[1]):
        served.cuts[at, cut] = trace.cuts[request, cut]


@callable_in_kernels
def _use(asked: Asked, trace: Traffic, request: int, users: Int32s, replica: int) -> int:
    """Add a user to each block of a prompt; return the number of blocks that had none."""
    block, new = asked.leaf[request], 0
    for _ in range(asked.blocks[request]):
        new += users[block, replica] == 0
        users[block, replica] += 1
        block = trace.block_parent[block]
    return new


@callable_in_kernels
def _unuse(asked: Asked, trace: Traffic, request: int, users: Int32s, replica: int) -> int:
    """Remove a user from each block of a prompt; return the number of blocks that have none now."""
    block, unused = asked.leaf[request], 0
    for _ in range(asked.blocks[request]):
        users[block, replica] -= 1
        unused += users[block, replica] == 0
        block = trace.block_parent[block]
    return unused


@once
def fleet_kernel(policy: type[Policy]) -> Callable[..., Any]:
    """Return the kernel that simulates replicas with a policy behind any router.

    Its arguments, in order: the traffic; what routers see of the requests; arrivals; costs; limits;
    `served`, a copy of the traffic to be put in order of arrival; the caches; their copies for KV
    events (`reported`; without a lag the same caches); replicas and view; a heap for events and a
    buffer for a path; the router's function `choose`, its memory and parameters; `done`, the
    result; a lane policy's functions, else None. It returns nothing: it fills `done`, `served` and
    the caches. One kernel serves all lane policies. It takes tuples of arrays by their addresses.
    """
    kind = caches_of(policy)
    leading = kind.leading
    begin, serve, expire, retable = kind.begin, kind.serve, kind.expire, kind.retable

    @callable_in_kernels
    def open_request(
        caches: FleetCaches, served: Traffic, done: Served, limits: CacheLimits, functions: Any
    ) -> None:
        """Apply tables and expiry up to the next request's arrival; register it in the caches.

        Its path is written to `caches.touched.path`. `functions` are a lane policy's, else None.
        """
        touched, state, progress = caches.touched, caches.state, caches.progress
        slot, before, table = progress[NEXT], progress[PERIOD], caches.tables.in_force
        now_s = served.arrival_s[slot]
        progress[PERIOD] = advance_table(caches.tables, before, slot + 1)
        if progress[PERIOD] != before:
            for replica in range(len(caches.size)):
                now = Now(now_s, served.block_size, caches.p[replica], table, functions)
                retable(state, served, replica, slot, now)
        expired = progress[EXPIRED]
        while expired < slot and served.arrival_s[expired] < now_s - limits.ttl_s:
            owner = done.replica[expired]
            now = Now(now_s, served.block_size, caches.p[owner], table, functions)
            dropped = expire(state, served, owner, expired, now)
            caches.size[owner] -= dropped
            caches.evictions[owner] += dropped
            expired += 1
        progress[EXPIRED] = expired
        begin(state, touched, served, slot)
        write_path(served.block_parent, served.leaf[slot], touched.path, 0, served.length[slot])

    @callable_in_kernels
    def serve_request(
        caches: FleetCaches, served: Traffic, replica: int, limits: CacheLimits, functions: Any
    ) -> int:
        """Serve the request of `open_request` on a replica; return the blocks that it hits."""
        progress = caches.progress
        slot, table = progress[NEXT], caches.tables.in_force
        now_s, p = served.arrival_s[slot], caches.p[replica]
        now = Now(now_s, served.block_size, p, table, functions)
        hit, size, evicted = serve(
            served,
            caches.touched,
            caches.state,
            replica,
            slot,
            now,
            limits.capacity,
            limits.mandatory,
            caches.size[replica],
            caches.requests[replica],
        )
        caches.size[replica] = size
        caches.evictions[replica] += evicted
        caches.requests[replica] += 1
        progress[NEXT] = slot + 1
        return hit

    @kernel
    def run(
        trace: Traffic,
        asked: Asked,
        arrivals: Arrivals,
        costs: Costs,
        limits: CacheLimits,
        served: Traffic,
        caches: FleetCaches,
        reported: FleetCaches,
        replicas: Replicas,
        view: View,
        events: Heap,
        path: Int32s,
        choose: Function,
        memory: Opaque,
        router_p: Float64s,
        done: Served,
        functions: Any,
    ) -> None:
        trace, served, done = by_reference(trace), by_reference(served), by_reference(done)
        caches, reported = by_reference(caches), by_reference(reported)
        view, events = by_reference(view), by_reference(events)
        arrivals, replicas, asked = (
            by_reference(arrivals),
            by_reference(replicas),
            by_reference(asked),
        )
        lagging, counts_blocks = limits.event_lag_s > 0.0, limits.counts_blocks
        own, truth, users = view.own, view.truth, replicas.users
        requests, count = len(trace.leaf), view.replicas
        due, scraped_s, arrived = arrivals.due, 0.0, 0
        while arrived < requests:
            first_due_s = due.keys[0] if due.size[0] > 0 else np.inf
            if events.size[0] > 0 and events.keys[0] <= first_due_s:
                event_s = events.keys[0]
                kind, slot = events.requests[0] // requests, events.requests[0] % requests
                drop_lowest(events)
                if limits.scrape_s > 0.0 and scraped_s < event_s:
                    _copy_load(own, view.scraped)
                    scraped_s = np.ceil(event_s / limits.scrape_s) * limits.scrape_s
                replica, request = done.replica[slot], done.request[slot]
                if kind == BEGINS:
                    own.waiting[replica] -= 1
                    own.running[replica] += 1
                elif kind == FIRST_TOKEN:
                    own.prompt_tokens[replica] -= trace.input_tokens[request]
                    own.uncached_tokens[replica] -= done.uncached[slot]
                else:
                    own.in_flight[replica] -= 1
                    own.running[replica] -= 1
                    if counts_blocks:
                        unused = _unuse(asked, trace, request, users, replica)
                        own.used_blocks[replica] -= unused
                    for at in range(arrivals.starts[request], arrivals.starts[request + 1]):
                        turn = arrivals.turns[at]
                        put(due, event_s + arrivals.think_s[turn], turn)
                continue

            now_s, request = first_due_s, int(due.requests[0])
            drop_lowest(due)
            if limits.scrape_s > 0.0 and scraped_s <= now_s:
                _copy_load(own, view.scraped)
                scraped_s = (np.floor(now_s / limits.scrape_s) + 1.0) * limits.scrape_s
            slot = arrived
            arrived += 1
            done.request[slot] = request
            _take_row(served, slot, trace, request, now_s)
            if lagging:
                late = reported.progress[NEXT]
                while late < slot and served.arrival_s[late] + limits.event_lag_s <= now_s:
                    open_request(reported, served, done, limits, functions)
                    owner = int(done.replica[late] + 0)  # of 64 bits, as below: compiled once
                    serve_request(reported, served, owner, limits, functions)
                    late += 1
                write_path(
                    trace.block_parent,
                    trace.leaf[request],
                    reported.touched.path,
                    0,
                    trace.length[request],
                )

            open_request(caches, served, done, limits, functions)
            write_path(trace.block_parent, asked.leaf[request], path, 0, asked.blocks[request])
            tokens, best = int(trace.input_tokens[request]), 0
            for replica in range(count):
                cached = leading(caches.state, caches.touched, replica, trace.look[request])
                best = max(best, cached)
                hit_tokens = min(cached * trace.block_size, tokens)
                truth.cached_blocks[replica] = cached
                if lagging:
                    view.reported_blocks[replica] = leading(
                        reported.state, reported.touched, replica, trace.look[request]
                    )
                truth.prefill_s[replica] = prefill_s(costs, tokens - hit_tokens, hit_tokens)
                truth.wait_s[replica] = max(replicas.free_s[replica] - now_s, 0.0)
                if counts_blocks:
                    new = 0
                    for at in range(asked.blocks[request]):
                        new += users[path[at], replica] == 0
                    truth.new_blocks[replica] = new
            prompt = Prompt(
                slot,
                now_s,
                tokens,
                asked.key[request],
                asked.blocks[request],
                asked.full_blocks[request],
            )
            view.fetch.blocks[0], view.expected_blocks[0] = 0, -1
            replica = choose(prompt, path, view, memory, router_p)

            hit = serve_request(caches, served, replica, limits, functions)
            fetch_s, fetched = 0.0, min(int(view.fetch.blocks[0]), best)
            if fetched > hit:
                fetch_s, hit = view.fetch.seconds[0], fetched
            hit_tokens = min(hit * trace.block_size, tokens)
            begin_s = max(now_s, replicas.free_s[replica])
            token_s = begin_s + fetch_s + prefill_s(costs, tokens - hit_tokens, hit_tokens)
            outputs = trace.history_tokens[request] - tokens
            each_s = decode_s(costs, own.running[replica] + 1, tokens)
            end_s = token_s + max(outputs - 1, 0) * each_s
            replicas.free_s[replica] = token_s
            own.in_flight[replica] += 1
            own.processed[replica] += 1
            own.sent_tokens[replica] += tokens
            own.prompt_tokens[replica] += tokens
            expected = view.expected_blocks[0] if view.expected_blocks[0] >= 0 else hit
            done.uncached[slot] = tokens - min(expected * trace.block_size, tokens)
            own.uncached_tokens[replica] += done.uncached[slot]
            if counts_blocks:
                own.used_blocks[replica] += _use(asked, trace, request, users, replica)
            if begin_s > now_s:
                own.waiting[replica] += 1
                put(events, begin_s, BEGINS * requests + slot)
            else:
                own.running[replica] += 1
            put(events, token_s, FIRST_TOKEN * requests + slot)
            put(events, end_s, ENDS * requests + slot)
            done.replica[slot], done.hit[slot], done.best[slot] = replica, hit, best
            done.begin_s[slot], done.token_s[slot], done.end_s[slot] = begin_s, token_s, end_s

    return run

"""The kernel of a fleet of simulated vLLMs: requests arrive, a router sends them, engines step.

Before a request is routed, all engines are simulated until it arrives: in open loop one after the
other; in closed loop, and with a shared pool, step by step, the engine furthest behind first. So no
engine plans a step later than a request's end before the next turn is scheduled, and an engine that
plans a step finds in the shared pool all that others had written by then. Writes at the end of a
step get room and bandwidth in the order in which steps began.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import Function, Opaque, callable_in_kernels, kernel
from kvscope.core.prefix import write_path
from kvscope.fleet.engine_loads import LoadCounts, count_loads, count_used_blocks
from kvscope.fleet.kernel import Arrivals, Asked
from kvscope.fleet.machines import (
    NEVER,
    Machines,
    held_blocks,
    queue_request,
    take_tables,
    unused_blocks,
)
from kvscope.replay.costs import Costs, prefill_s
from kvscope.replay.kernels.keys import drop_lowest, put
from kvscope.routers.base import Prompt, View
from kvscope.vllm_sim.state import NONE


class Engines(NamedTuple):
    """The step loop `run` (`engine_function`), and the addresses of M machines, its arguments."""

    run: Function
    machine: Int64s


class SentRequests(NamedTuple):
    """The replicas to which R requests were sent; request numbers are those of the trace.

    `request` lists them in order of arrival. Per request: `replica` served it as its `place`-th,
    `best` is the most blocks that any replica held, and `steps` and `evicted` are the steps planned
    and blocks evicted by `replica` before. Per replica n, by place: `request_at[n]` is the request
    and `uncached[n]` the uncached tokens that the router expected. In closed loop, `open` (N x R)
    lists the places of unfinished requests, `opened` (N) their number.
    """

    request: Int32s
    replica: Int32s
    place: Int32s
    best: Int32s
    steps: Int64s
    evicted: Int64s
    request_at: Int32s
    uncached: Int32s
    open: Int32s
    opened: Int64s


class Loads(NamedTuple):
    """The counts behind a router's view of N replicas: current (`own`), and at the last scrape.

    `scraped_s` (1) is the time of the last scrape.
    """

    own: LoadCounts
    scraped: LoadCounts
    scraped_s: Float64s


class Sights(NamedTuple):
    """What a router sees of the fleet, besides the blocks that caches hold.

    `loads`: whether it sees loads. `blocks`: whether it sees `Truth.new_blocks`. `scrape_s` is the
    interval of scrapes of loads, `event_lag_s` the lag of KV events (s); 0 for none.
    """

    loads: bool
    blocks: bool
    scrape_s: float
    event_lag_s: float


class FleetPaths(NamedTuple):
    """The trie's `parents`, and buffers for a request's path: `whole`, or of its `prompt` alone."""

    parents: Int32s
    whole: Int32s
    prompt: Int32s


@callable_in_kernels
def _next_machine(now_s: Float64s, replicas: int, until_s: float, lag_s: float, begin: int) -> int:
    """Return the first machine from `begin` on whose time is before `until_s`, else NONE.

    Machines numbered from `replicas` on are lagging copies: `until_s - lag_s` suffices for them.
    """
    for number in range(begin, len(now_s)):
        if now_s[number] < (until_s if number < replicas else until_s - lag_s):
            return number
    return NONE


@callable_in_kernels
def _furthest_behind(now_s: Float64s, begin: int, end: int, until_s: float) -> int:
    """Return the machine of begin..end with the earliest time before `until_s`, else NONE."""
    behind = NONE
    for number in range(begin, end):
        if now_s[number] < until_s and (behind == NONE or now_s[number] < now_s[behind]):
            behind = number
    return behind


@callable_in_kernels
def _note_ends(machines: Machines, sent: SentRequests, arrivals: Arrivals, replica: int) -> None:
    """Schedule the next turns of requests that have finished on a replica since the last call.

    Finished requests leave `sent.open`.
    """
    requests, kept = machines.each.requests, 0
    for at in range(sent.opened[replica]):
        place = sent.open[replica, at]
        record = requests[replica, place]
        if np.isnan(record.finished_s):
            sent.open[replica, kept] = place
            kept += 1
        else:
            _end(sent.request_at[replica, place], record.finished_s, arrivals)
    sent.opened[replica] = kept


@callable_in_kernels
def _end(request: int, end_s: float, arrivals: Arrivals) -> None:
    """Schedule the next turns of a request that ended at `end_s`, each after its think time."""
    for at in range(arrivals.starts[request], arrivals.starts[request + 1]):
        turn = arrivals.turns[at]
        put(arrivals.due, end_s + arrivals.think_s[turn], turn)


@callable_in_kernels
def _see_loads(
    machines: Machines, sent: SentRequests, loads: Loads, view: View, scrape_s: float, now_s: float
) -> None:
    """Write the current loads into `view`, and those at the latest scrape if it is new.

    A scrape covers requests sent before it. Blocks in use are known for whole steps only, so they
    are taken at the first arrival after the scrape.
    """
    uncached, last_s = sent.uncached, loads.scraped_s
    if scrape_s > 0.0:
        scraped_s = np.floor(now_s / scrape_s) * scrape_s
        if scraped_s > last_s[0]:
            count_loads(machines, uncached, loads.scraped, scraped_s, scraped_s, view.scraped)
            count_used_blocks(machines, view.scraped)
            for replica in range(view.replicas):
                view.scraped.processed[replica] = view.own.processed[replica]
                view.scraped.sent_tokens[replica] = view.own.sent_tokens[replica]
            last_s[0] = scraped_s
    count_loads(machines, uncached, loads.own, now_s, np.inf, view.own)
    count_used_blocks(machines, view.own)


@callable_in_kernels
def _see_caches(
    machines: Machines,
    asked: Asked,
    request: int,
    costs: Costs,
    view: View,
    paths: FleetPaths,
    blocks: bool,
) -> int:
    """Write into `view` what each replica holds of a request; return the most leading blocks held.

    Written are leading blocks held (also as KV events report them), prefill and waiting times, and
    if `blocks` is set, the blocks of the prompt that no running request uses.
    """
    each, record, truth = machines.each, machines.requests[request], view.truth
    length, tokens, best = int(asked.blocks[request]), int(record.prompt), 0
    write_path(paths.parents, record.leaf, paths.whole, 0, record.length)
    write_path(paths.parents, asked.leaf[request], paths.prompt, 0, length)
    for replica in range(view.replicas):
        held = held_blocks(each, replica, paths.whole, record.look)
        best = max(best, held)
        truth.cached_blocks[replica] = held
        hit = min(held * view.block_size, tokens)
        truth.prefill_s[replica] = prefill_s(costs, tokens - hit, hit)
        truth.wait_s[replica] = costs.prefill_token_s * view.own.uncached_tokens[replica]
        if blocks:
            truth.new_blocks[replica] = unused_blocks(each, replica, paths.prompt, length)
    for late in range(view.replicas, len(machines.sent)):
        reported = held_blocks(each, late, paths.whole, record.look)
        view.reported_blocks[late - view.replicas] = reported
    return best


@callable_in_kernels
def _send(
    machines: Machines,
    sent: SentRequests,
    arrivals: Arrivals,
    request: int,
    replica: int,
    now_s: float,
) -> int:
    """Queue a request on a replica and on its lagging copy, if any; return its place."""
    replicas = len(sent.opened)
    place = queue_request(machines, replica, request, now_s)
    if len(machines.sent) > replicas:
        queue_request(machines, replicas + replica, request, now_s)
    sent.replica[request], sent.place[request] = replica, place
    state = machines.each.state[replica, 0]
    sent.steps[request], sent.evicted[request] = state.steps, state.evictions
    sent.request_at[replica, place] = request
    if machines.requests[request].oversized:  # it is rejected, which ends it
        _end(request, now_s, arrivals)
    elif sent.open.shape[1] > 0:
        sent.open[replica, sent.opened[replica]] = place
        sent.opened[replica] += 1
    return place


@callable_in_kernels
def _simulate(
    engines: Engines, machines: Machines, sent: SentRequests, arrivals: Arrivals, lag_s: float
) -> None:
    """Simulate the engines up to the next arrival, or until they are idle if none is due."""
    each, now_s, due = machines.each, machines.now_s, arrivals.due
    replicas, closed, begin = len(sent.opened), sent.open.shape[1] > 0, 0
    shared = each.offload.pool[0, 0].shared > 0
    while True:
        until_s, steps, number = due.keys[0] if due.size[0] > 0 else np.inf, 1, NONE
        if closed or shared:
            number, begin = _furthest_behind(now_s, 0, replicas, until_s), max(begin, replicas)
        if shared and number == NONE:
            number = _furthest_behind(now_s, replicas, len(now_s), until_s - lag_s)
        if number == NONE:
            begin = _next_machine(now_s, replicas, until_s, lag_s, begin)
            number, steps = begin, NEVER
        if number == NONE:
            break
        if number >= replicas:
            until_s -= lag_s
        finished = each.state[number, 0].finished
        busy = engines.run(engines.machine[number], steps, NEVER, until_s)
        now_s[number] = each.state[number, 0].now_s if busy else np.inf
        if each.offload.state[number, 0].waits > 0:  # until something comes
            now_s[number] = max(now_s[number], until_s)
        if closed and number < replicas and each.state[number, 0].finished > finished:
            _note_ends(machines, sent, arrivals, number)


@kernel
def run_engines(
    engines: Engines,
    machines: Machines,
    asked: Asked,
    paths: FleetPaths,
    arrivals: Arrivals,
    costs: Costs,
    sights: Sights,
    view: View,
    loads: Loads,
    sent: SentRequests,
    choose: Function,
    memory: Opaque,
    p: Float64s,
    begin: int,
    end: int,
) -> int:
    """Simulate engines behind a router: route the arrivals from `begin` to before `end`.

    Return the number of the next arrival. If no arrival is due before `end`, the engines finish all
    requests; so let the last call have an `end` beyond the last arrival.
    `choose` is the router's function, `memory` its memory, and `p` its parameters.
    """
    due = arrivals.due
    for slot in range(begin, end):
        _simulate(engines, machines, sent, arrivals, sights.event_lag_s)
        if due.size[0] == 0:
            return slot
        now_s, request = due.keys[0], int(due.requests[0])
        drop_lowest(due)
        take_tables(machines, slot)
        if sights.loads:
            _see_loads(machines, sent, loads, view, sights.scrape_s, now_s)
        best = _see_caches(machines, asked, request, costs, view, paths, sights.blocks)
        tokens = int(machines.requests[request].prompt)
        blocks, full_blocks = asked.blocks[request], asked.full_blocks[request]
        prompt = Prompt(slot, now_s, tokens, asked.key[request], blocks, full_blocks)
        view.expected_blocks[0] = -1
        replica = choose(prompt, paths.prompt, view, memory, p)
        expected = int(view.expected_blocks[0])
        if expected < 0:
            expected = int(view.truth.cached_blocks[replica])
        place = _send(machines, sent, arrivals, request, replica, now_s)
        sent.uncached[replica, place] = tokens - min(expected * view.block_size, tokens)
        view.own.processed[replica] += 1
        view.own.sent_tokens[replica] += tokens
        sent.request[slot], sent.best[request] = request, best
    return end

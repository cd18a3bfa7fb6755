"""The load of simulated engines at a time: requests that wait, run, or have no token yet."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Records
from kvscope.core.jit import callable_in_kernels
from kvscope.fleet.machines import Machines
from kvscope.routers.base import ReplicaLoad

COUNT = np.dtype(
    [(name, np.int64) for name in ("seen", "taken", "listed", "queued", "tokens", "uncached")]
)
"""The counts of one replica.

Of the requests sent to it, the first `seen` count. Of these, the first `taken` have left its queue,
and `listed` of them had not ended when last counted. The other `queued` ones have prompts of
`tokens` tokens, `uncached` of which the router expects to be computed.
"""


class LoadCounts(NamedTuple):
    """The counts of N replicas, and for each its requests taken from the queue and not ended.

    `each` (N) are records of COUNT. Row n of `listed` (N x R) begins with the places of replica n's
    requests that left the queue: numbers, from 0, among those sent to it. Rejected requests are
    neither listed nor queued.
    """

    each: Records
    listed: Int32s


def no_counts(replicas: int, requests: int) -> LoadCounts:
    """Return the counts of idle replicas, all 0."""
    each: Any = np.zeros(replicas, dtype=COUNT)
    return LoadCounts(each.view(np.recarray), np.empty((replicas, requests), dtype=np.int32))


@callable_in_kernels
def see_sent(
    machines: Machines, uncached: Int32s, counts: LoadCounts, number: int, to_s: float
) -> None:
    """Add the arrivals before `to_s` at replica `number` to its counts.

    `uncached` (N x R) are the uncached tokens of the request at each place, as the router expected.
    """
    requests, count = machines.each.requests, counts.each[number]
    while count.seen < machines.sent[number]:
        record = requests[number, count.seen]
        if record.arrival_s >= to_s:
            break
        if not record.oversized:
            count.queued += 1
            count.tokens += record.prompt
            count.uncached += uncached[number, count.seen]
        count.seen += 1


@callable_in_kernels
def list_taken(machines: Machines, uncached: Int32s, counts: LoadCounts, number: int) -> None:
    """Add the requests that left the queue of replica `number` to its row of `counts.listed`.

    They no longer count as queued. With a CPU tier, requests may overtake others in the queue: then
    add all that have arrived, those that still wait too. `uncached` (N x R) is as in `see_sent`:
    the expected uncached tokens of the request at each place.
    """
    requests, count = machines.each.requests, counts.each[number]
    state = machines.each.state[number, 0]
    end = state.next if machines.each.offload.members.size == 0 else state.arrived
    while count.taken < min(end, count.seen):
        record = requests[number, count.taken]
        if not record.oversized:
            counts.listed[number, count.listed] = count.taken
            count.listed += 1
            count.queued -= 1
            count.tokens -= record.prompt
            count.uncached -= uncached[number, count.taken]
        count.taken += 1


@callable_in_kernels
def count_loads(
    machines: Machines,
    uncached: Int32s,
    counts: LoadCounts,
    at_s: float,
    before_s: float,
    load: ReplicaLoad,
) -> None:
    """Write each replica's load at `at_s` into `load`, of requests that arrived before `before_s`.

    A machine simulates whole steps, so it may be past `at_s`: events after `at_s` do not count.
    Neither `at_s` nor `before_s` may decrease from call to call.
    """
    for number in range(len(load.in_flight)):
        see_sent(machines, uncached, counts, number, before_s)
        list_taken(machines, uncached, counts, number)
        requests, count = machines.each.requests, counts.each[number]
        running, kept, waiting = 0, 0, count.tokens
        tokens, uncached_tokens = count.tokens, count.uncached
        for at in range(count.listed):
            place = counts.listed[number, at]
            record = requests[number, place]
            if record.finished_s <= at_s:
                continue
            counts.listed[number, kept] = place
            kept += 1
            if record.admitted_s <= at_s:
                running += 1
            else:
                waiting += record.prompt
            if not record.first_token_s <= at_s:
                tokens += record.prompt
                uncached_tokens += uncached[number, place]
        count.listed = kept
        load.in_flight[number] = kept + count.queued
        load.running[number] = running
        load.waiting[number] = kept + count.queued - running
        load.waiting_tokens[number] = waiting
        load.prompt_tokens[number] = tokens
        load.uncached_tokens[number] = uncached_tokens


@callable_in_kernels
def count_used_blocks(machines: Machines, load: ReplicaLoad) -> None:
    """Write the blocks that each replica uses now into `load`."""
    for number in range(len(load.used_blocks)):
        state = machines.each.state[number, 0]
        load.used_blocks[number] = state.blocks - state.free

"""The scheduler with a CPU tier below the pool: waiting requests load, each step stores.

A request whose prefix continues in the tier gets its blocks, and waits apart from running requests
until they are loaded. It waits while its chunks are being stored, or loaded for another request.
The end of each plan offers the chunks that the planned step fills to the tier; their copies begin
with the next step. If another request gets a block that a copy still reads, the step waits for the
copy.

Transfers of one direction follow each other; their times are modelled. All else is exact, but for
requests that end in the same step: vLLM stores their last chunks in no order, the model in the
batch's order. At most `max_num_seqs` loads (16 if `max_num_seqs` is less) hold blocks at a time.

Source: vLLM 0.32.0 and 0.33.0, vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py
(OffloadingConnectorScheduler) and worker.py, vllm/v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.core.prefix import write_path
from kvscope.vllm_sim.admission import (
    arrive,
    learn,
    look_up_front,
    note_admission,
    note_written,
    write_front,
)
from kvscope.vllm_sim.chunks import (
    chunk_at,
    commit_accesses,
    offer_chunks,
    pin_chunk,
    reuse,
    see,
    unpin_chunk,
)
from kvscope.vllm_sim.groups import (
    allocate,
    cut,
    fits,
    free_copied,
    hash_filled,
    hash_planned,
    planned_step,
)
from kvscope.vllm_sim.offload_blocks import (
    advance,
    blocks_still_needed,
    enter,
    fence_chunk,
    fits_loaded,
    has_ended,
    list_loads,
    list_states,
    list_stores,
    look_up_chunks,
    note_table,
)
from kvscope.vllm_sim.offload_state import (
    ENDED,
    LOADED,
    LOADING,
    READ,
    READY,
    SKIP,
    Offload,
)
from kvscope.vllm_sim.pool import expire
from kvscope.vllm_sim.scheduler import (
    begin_plan,
    complete,
    cost_plan,
    leave_waiting,
    plan,
    plan_running,
    start,
)
from kvscope.vllm_sim.state import NONE, Machine
from kvscope.vllm_sim.storage import next_copy_s

LOAD = -2  # of an admission: the request has begun to load


@callable_in_kernels
def reserved_blocks(machine: Machine) -> int:
    """Return the number of blocks that prompts in progress and loads still need."""
    off, requests, state = machine.offload, machine.requests, machine.state[0]
    reserved = 0
    for at in range(state.running + off.state[0].loading):
        loading = at >= state.running
        request = off.loading[at - state.running] if loading else machine.running[at]
        record = requests[request]
        if loading or record.computed < record.prompt + record.generated:
            reserved += blocks_still_needed(machine, request)
    return reserved


@callable_in_kernels
def take_slot(machine: Machine, request: int) -> None:
    """Move the front request from the waiting queue to a free slot: rows of `table` and `path`."""
    record, path, state = machine.requests[request], machine.path, machine.state[0]
    free = len(machine.slots) - state.running - machine.offload.state[0].loading
    record.slot = machine.slots[free - 1]
    if record.hits != NONE:
        leave_waiting(machine, request)
    for at in range(record.length):
        path[record.slot, at] = path[len(path) - 1, at]


@callable_in_kernels
def add_transfer(jobs: Any, number: int, request: int, nodes: int) -> Any:
    """Return the record of a new transfer of `nodes` chunks, for the caller to list the chunks.

    `jobs` is the ring `loads` or `stores`, and `number` the transfer's number in it, from 0. In the
    ring of chunks (`load_nodes`, `store_nodes`) its chunks follow the previous transfer's.
    """
    job, before = jobs[number % len(jobs)], jobs[(number - 1) % len(jobs)]
    job.request, job.submitted, job.done, job.flush, job.nodes = request, 0, 0, 0, nodes
    job.first = before.first + before.nodes if number else 0
    return job


@called_by_kernels
def begin_load(machine: Machine, request: int, hit: int, cached: int) -> int:
    """Begin to load a request's chunks between `hit` and `cached` tokens.

    Return how many of the loaded blocks the request had read before from storage, the tier below.
    """
    off, record, state = machine.offload, machine.requests[request], machine.offload.state[0]
    member, path, bpc = off.members[request], machine.path[record.slot], state.blocks_per_chunk
    hits, read = hit // machine.state[0].block_size, 0
    count = list_loads(machine, request, hit, cached)
    if record.preemptions == 0:
        member.chunks = count
    job = add_transfer(off.loads, state.loads, request, count)
    for place in range(count):
        at = off.offered[place]
        node = chunk_at(off, path, at)
        off.load_nodes[(job.first + place) % len(off.load_nodes)] = node
        off.chunks[node].loading = 1
        pin_chunk(off, node)
        see(off, request, path, at)
        reuse(off, request, at)
        if off.marks[member.access + at] & READ:
            read += (at + 1) * bpc - max(hits, at * bpc)
    state.loads += 1
    state.reread = 0
    member.transfers += 1
    member.stage = LOADING
    off.loading[state.loading] = request
    state.loading += 1
    return read


@callable_in_kernels
def offer_listed(machine: Machine, request: int, path: Int32s, row: int, count: int) -> bool:
    """Offer the tier the first `count` chunks of `offered`; return False if it refuses them.

    `row` is the request's slot, or once it has ended its index in `ended`.
    """
    off = machine.offload
    state, member = off.state[0], off.members[request]
    if count == 0:
        return True
    if state.storage:
        machine.storage.poll(machine, bool(state.polls_late))
    fresh = offer_chunks(off, request, path, count)
    if fresh <= 0:
        return fresh == 0
    job = add_transfer(off.stores, state.stores, request, fresh)
    for place in range(fresh):
        at = off.fresh[place]
        off.store_nodes[(job.first + place) % len(off.store_nodes)] = chunk_at(off, path, at)
        fence_chunk(machine, request, row, at)
    job.fences = state.fences
    state.stores += 1
    member.transfers += 1
    return True


@callable_in_kernels
def tokens_stored(machine: Machine, request: int) -> int:
    """Return how many leading tokens of a planned or ended request have KV that may be stored."""
    record = machine.requests[request]
    known = record.prompt + record.generated
    tokens = max(record.prompt, known - 1) if has_ended(machine, request) else record.computed
    if machine.offload.state[0].prompt_only:
        tokens = min(tokens, record.prompt)
    return min(tokens, known)  # type: ignore[no-any-return]


@callable_in_kernels
def offer_step(machine: Machine) -> None:
    """Offer the chunks that the planned step fills, then the remaining chunks of ended requests.

    States of linear attention come first, in an offer each.
    """
    off, state, front = machine.offload, machine.state[0], len(machine.path) - 1
    states = list_states(machine)
    running = states + state.planned
    for at in range(running + off.state[0].ended):
        row = at - running
        if at < states:
            request = off.states[at, 0]
        elif at < running:
            request = machine.batch[1, at - states]
        else:
            request = off.ended[row]
        record, path = machine.requests[request], machine.path[front]
        if at >= running:
            write_path(machine.parents, record.leaf, path, 0, record.length)
        else:
            path, row = machine.path[record.slot], record.slot
        count = 1
        if at < states:
            off.offered[0] = off.states[at, 1]
        else:
            count = list_stores(machine, request, row, tokens_stored(machine, request))
        if offer_listed(machine, request, path, row, count) and at >= states:
            advance(machine, request, row)


@callable_in_kernels
def store_step(machine: Machine) -> None:
    """End a plan: offer its chunks to the tier, then apply the accesses of ended requests."""
    off, requests, state = machine.offload, machine.requests, machine.offload.state[0]
    size, front = machine.state[0].block_size, machine.path[len(machine.path) - 1]
    reads = bool(state.storage)
    if reads and not state.polls_late:
        machine.storage.flush(machine)
    offer_step(machine)
    for at in range(state.ended):
        request = off.ended[at]
        record = requests[request]
        write_path(machine.parents, record.leaf, front, 0, record.length)
        tokens = max(record.prompt, record.prompt + record.generated - 1)
        commit_accesses(off, request, front, tokens // size // state.unit_nodes * state.groups)
        off.members[request].stage = ENDED
        if reads and off.members[request].transfers == 0:
            machine.storage.forget_answers(machine, request)
    if state.ended > 0:
        machine.state[0].front = NONE
    state.ended = 0
    if reads and state.polls_late:
        machine.storage.flush(machine)


@callable_in_kernels
def submit(off: Any, job: Any, now_s: float) -> None:
    """Begin the copy of store `job` (TRANSFER) at `now_s`, or once earlier stores have ended."""
    state = off.state[0]
    begin_s = max(now_s, state.store_free_s)
    job.done_s = begin_s + (state.store_latency_s + state.store_chunk_s * job.nodes)
    state.store_free_s = job.done_s
    job.submitted = 1


@callable_in_kernels
def begin_transfers(machine: Machine) -> float:
    """Begin the stores of the previous plan and the loads of this plan.

    Return when the step can start (s): after the stores whose blocks it writes.
    """
    off, state, now_s = machine.offload, machine.offload.state[0], machine.state[0].now_s
    begin_s = now_s
    for number in range(state.stores_done, state.planned_stores):
        job = off.stores[number % len(off.stores)]
        if not job.submitted:
            submit(off, job, now_s)
    for number in range(state.stores_done, state.stores):
        job = off.stores[number % len(off.stores)]
        if job.flush and not job.done:
            if not job.submitted:
                submit(off, job, now_s)
            begin_s = max(begin_s, job.done_s)
    state.planned_stores = state.stores
    for number in range(state.loads_done, state.loads):
        job = off.loads[number % len(off.loads)]
        if not job.submitted:
            free_s = max(begin_s, state.load_free_s)
            job.done_s = free_s + (state.load_latency_s + state.load_chunk_s * job.nodes)
            state.load_free_s = job.done_s
            job.submitted = 1
    return begin_s  # type: ignore[no-any-return]


@called_by_kernels
def end_transfers(machine: Machine) -> None:
    """End transfers that are over: unpin chunks, write stores to storage, mark requests LOADED."""
    off, state, now_s = machine.offload, machine.offload.state[0], machine.state[0].now_s
    for number in range(state.stores_done, state.stores):
        job = off.stores[number % len(off.stores)]
        if job.submitted and not job.done and job.done_s <= now_s:
            for at in range(job.first, job.first + job.nodes):
                unpin_chunk(off, off.store_nodes[at % len(off.store_nodes)])
            if state.storage:
                machine.storage.write_on(machine, job.first, job.nodes, now_s)
            member = off.members[job.request]
            member.transfers -= 1
            ended = member.stage == ENDED and member.transfers == 0
            if ended and state.storage:
                machine.storage.forget_answers(machine, job.request)
            job.done = 1
    while state.stores_done < state.stores and off.stores[state.stores_done % len(off.stores)].done:
        state.fences_done = off.stores[state.stores_done % len(off.stores)].fences
        state.stores_done += 1
    while state.loads_done < state.loads:
        job = off.loads[state.loads_done % len(off.loads)]
        if not job.submitted or job.done_s > now_s:
            break
        for at in range(job.first, job.first + job.nodes):
            node = off.load_nodes[at % len(off.load_nodes)]
            off.chunks[node].loading = 0
            unpin_chunk(off, node)
        off.members[job.request].transfers -= 1
        off.members[job.request].stage = LOADED
        state.loads_done += 1


@callable_in_kernels
def next_end_s(machine: Machine) -> float:
    """Return when the next transfer ends (s): now if a store has yet to begin, infinity if none."""
    off, state, soonest_s = machine.offload, machine.offload.state[0], np.inf
    for number in range(state.stores_done, state.stores):
        job = off.stores[number % len(off.stores)]
        if not job.submitted:
            return machine.state[0].now_s  # type: ignore[no-any-return]
        if not job.done:
            soonest_s = min(soonest_s, job.done_s)
    if state.loads_done < state.loads:
        soonest_s = min(soonest_s, off.loads[state.loads_done % len(off.loads)].done_s)
    return soonest_s


@called_by_kernels
def wait(machine: Machine, until_s: float) -> float:
    """Advance an idle engine to the next arrival or end of a transfer.

    Return the time of that event (s), infinity for none. If it is after `until_s`, the engine does
    not advance, since a request may still be sent until then. After a preemption (loads hold
    blocks), other requests may fit once the preempted request's stores have ended.
    """
    requests, state, off = machine.requests, machine.state[0], machine.offload.state[0]
    preempted = off.waits == 2
    next_s = off.begin_s if preempted else next_end_s(machine)
    if off.storage and not preempted:
        next_s = next_copy_s(machine.offload, state.now_s, next_s)
    if state.arrived < len(requests):
        next_s = min(next_s, requests[state.arrived].arrival_s)
    if next_s <= until_s and next_s < np.inf:
        off.waits = 0
        state.now_s = max(off.begin_s, next_s)
        end_transfers(machine)
    return next_s


@callable_in_kernels
def mark_arrived(machine: Machine) -> None:
    """Reserve an entry of `marks` (flags such as SEEN) per chunk of requests that have arrived."""
    off = machine.offload.state[0]
    while off.marked < machine.state[0].arrived:
        machine.offload.members[off.marked].access = off.marks_taken
        off.marks_taken += machine.requests[off.marked].length // off.unit_nodes * off.groups
        off.marked += 1


@callable_in_kernels
def next_new(machine: Machine, at: int) -> int:
    """Return the first arrived request from `at` on that fits, never admitted, else `arrived`."""
    requests = machine.requests
    while at < machine.state[0].arrived and (requests[at].oversized or requests[at].hits != NONE):
        at += 1
    return at


@callable_in_kernels
def advance_next(machine: Machine) -> None:
    """Advance `next` (STATE) to the first request never admitted; rejected ones have finished."""
    state, end = machine.state[0], next_new(machine, machine.state[0].next)
    for request in range(state.next, end):
        state.finished += machine.requests[request].oversized
    state.next = end


@callable_in_kernels
def resume(machine: Machine, request: int, budget: int) -> int:
    """Prepare to run a request whose load has ended.

    Return the tokens to compute in the step being planned; 0 if this and later requests must wait.
    """
    record, member = machine.requests[request], machine.offload.members[request]
    total = record.prompt + record.generated
    if member.stage == LOADED:
        hash_filled(machine, request, record.computed, planned_step(machine))
        record.computed = min(record.computed, total - 1)
        member.stage = READY
    tokens = cut(machine, request, record.computed, min(total - record.computed, budget))
    end = record.computed + tokens
    if tokens == 0 or not fits_loaded(machine, request, end):
        return 0
    return tokens


@callable_in_kernels
def admit_above_tier(machine: Machine, request: int, budget: int) -> int:
    """Try to admit a waiting request, whose path is in the last row of `path`.

    Return the tokens to compute in the step being planned; LOAD if it begins to load, SKIP if this
    request must wait, 0 if all requests must wait.
    """
    off, record, state = machine.offload, machine.requests[request], machine.state[0]
    total, member = record.prompt + record.generated, off.members[request]
    first = record.hits == NONE
    if member.transfers > 0:
        return SKIP
    hit = look_up_front(machine, request)
    loaded = look_up_chunks(machine, request, hit, total)
    if loaded == SKIP:
        return SKIP
    if off.state[0].restarts:
        off.next_chunk[request] = 0
    tokens = 0 if loaded > 0 else cut(machine, request, hit, min(total - hit, budget))
    cached = hit + loaded
    end, reserved = cached + tokens, reserved_blocks(machine) if loaded > 0 else 0
    slots = len(machine.slots) - state.running - off.state[0].loading
    if end == hit or slots == 0:
        return 0
    if not fits(machine, request, hit, cached, end, reserved):
        return 0
    take_slot(machine, request)
    if first:
        note_written(machine, request, hit)
        note_admission(machine, request, hit // state.block_size)
        member.external = loaded
    enter(machine, request, hit, cached)
    record.computed = cached
    if loaded == 0:
        return tokens
    read = begin_load(machine, request, hit, cached)
    if first:
        member.read = read
    return LOAD


@callable_in_kernels
def join(machine: Machine, request: int, tokens: int) -> None:
    """Allocate a request's blocks, and plan its next `tokens` tokens.

    If `tokens` is LOAD, the blocks are for a load, and nothing is planned.
    """
    off, state, record = machine.offload, machine.state[0], machine.requests[request]
    end = record.computed + max(tokens, 0)
    allocate(machine, request, end, True)
    note_table(machine, request)
    if tokens == LOAD:
        return
    if record.preemptions == 0:
        learn(machine, off.state[0].learned, record.prompt - record.computed)
        off.state[0].learned += 1
    hash_planned(machine, request, end)
    machine.running[state.running] = request
    state.running += 1
    plan(machine, request, tokens)


@callable_in_kernels
def next_loaded(machine: Machine, at: int) -> int:
    """Return the first index in `loading`, from `at`, of a loaded request, else the end."""
    off = machine.offload
    while at < off.state[0].loading and off.members[off.loading[at]].stage == LOADING:
        at += 1
    return at


@callable_in_kernels
def leave_loading(off: Offload, at: int) -> None:
    """Remove entry `at` from `loading`, the requests that hold blocks but do not run."""
    off.state[0].loading -= 1
    for place in range(at, off.state[0].loading):
        off.loading[place] = off.loading[place + 1]


@called_by_kernels
def plan_waiting(machine: Machine) -> None:
    """Plan requests that do not run: first loaded, then preempted, then arrived requests."""
    off, state = machine.offload, machine.state[0]
    loaded, were = next_loaded(machine, 0), off.state[0].loading
    preempted, at = state.preempted - 1, next_new(machine, state.next)
    while state.budget > 0 and state.running < state.max_num_seqs:
        resumes = loaded < were
        if resumes:
            request = off.loading[loaded]
            tokens = resume(machine, request, state.budget)
        else:
            if preempted >= 0:
                request = machine.preempted[preempted]
                preempted -= 1
            elif at < state.arrived:
                request = at
                at = next_new(machine, at + 1)
            else:
                break
            write_front(machine, request)
            tokens = admit_above_tier(machine, request, state.budget)
        if tokens == 0:
            break
        if tokens == SKIP:
            continue
        join(machine, request, tokens)
        if resumes:
            leave_loading(off, loaded)
            were -= 1
            loaded = min(next_loaded(machine, loaded), were)
    advance_next(machine)


@callable_in_kernels
def schedule_above_tier(machine: Machine) -> None:
    """Plan a step: running requests, then, if none was preempted, waiting requests."""
    begin_plan(machine)
    machine.offload.state[0].plan += 1
    machine.offload.state[0].now_s = machine.state[0].now_s
    if plan_running(machine):
        plan_waiting(machine)
    free_copied(machine)
    cost_plan(machine)
    store_step(machine)


@called_by_kernels
def run_above_tier(machine: Machine, steps: int, finished: int, until_s: float) -> bool:
    """Run an engine with a CPU tier for up to `steps` steps or waits.

    Stop early once `finished` requests have finished or were rejected, or at `until_s` (s). Return
    False if nothing is left to do, or if requests can never start.
    """
    state, off = machine.state[0], machine.offload.state[0]
    if off.stuck:
        return False
    for _ in range(steps):
        if state.finished >= finished or state.now_s >= until_s:
            break
        if off.waits == 0:
            arrive(machine)
            mark_arrived(machine)
            if state.ttl_s < np.inf:
                expire(machine)
            preempted = state.preempted
            schedule_above_tier(machine)
            if off.storage and off.reread > 2 * (machine.offload.pool[0].chunks + off.capacity):
                off.stuck = True
                return False
            off.begin_s = begin_transfers(machine)
            if state.planned > 0:
                off.reread = 0
                start(machine)
                state.end_s += off.begin_s - state.now_s
                complete(machine)
                end_transfers(machine)
                continue
            off.waits = 1 + (state.preempted > preempted)
        next_s = wait(machine, until_s)
        if off.waits > 0:
            return next_s < np.inf
    return True

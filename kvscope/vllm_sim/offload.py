"""The scheduler with a CPU tier below the pool: loads of waiting requests, a store in each step.

A request whose prefix goes on in the tier gets its blocks, and waits outside of the running ones
until they are loaded. Where chunks of it are being stored, or loaded for another one, it waits for
them. At the end of each plan, the chunks that running requests fill in it are offered to the tier;
their copies begin with the step after it. A block that a copy still reads is given to another
request only behind it: the step waits.

Transfers of one direction follow each other; how long they take is modelled. All else is exact, but
for requests that end in the same step: vLLM stores their last chunks in no order, the model in that
of the batch. At most `max_num_seqs` loads (16 if that is less)
hold blocks at a time.

Source: vLLM 0.32.0 and 0.33.0, vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py
(OffloadingConnectorScheduler) and worker.py, vllm/v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, kernel, once
from kvscope.core.prefix import write_path
from kvscope.policies.base import LanePolicy
from kvscope.replay.kernels.loop import advance_table
from kvscope.vllm_sim.admission import (
    adapter,
    allocator,
    blocks_for,
    count_free,
    count_written,
    hash_blocks,
    look_up,
    note_admission,
    one_group,
    use_hits,
    write_front,
)
from kvscope.vllm_sim.chunk_lanes import ChunkRules, chunk_rules
from kvscope.vllm_sim.chunks import (
    chunk_at,
    evict_first,
    forget_offers,
    is_held,
    offerer,
    pin_chunk,
    reuse,
    see,
    unpin_chunk,
    write_back,
)
from kvscope.vllm_sim.offload_state import (
    ASKING,
    ENDED,
    LOADED,
    LOADING,
    MISSING,
    PENDING,
    PRESENT,
    READ,
    READY,
    WAITING,
    Offload,
)
from kvscope.vllm_sim.pool import expire, taker
from kvscope.vllm_sim.prefetch import may_start, next_fetch_s, prefetcher
from kvscope.vllm_sim.scheduler import (
    arrive,
    begin_plan,
    completer,
    cost_plan,
    leave_waiting,
    plan,
    running_planner,
    start,
)
from kvscope.vllm_sim.state import NONE, ROOT, Machine
from kvscope.vllm_sim.storage import (
    flush,
    forget_answers,
    next_copy_s,
    poll,
    reader,
    write_on,
)

SKIP = -1
Storage = Literal["none", "read", "prefetched"]


@callable_in_kernels
def note_block(machine: Machine, block: int) -> None:
    """Note that a request gets a block, which waits for copies that ended requests left behind."""
    off, requests = machine.offload, machine.requests
    off.taken[block] = off.state[0].plan
    entry = off.fence[block]
    while entry >= off.state[0].fences_done:
        fence = off.fences[entry % len(off.fences)]
        if requests[fence.request].finished_s >= 0:  # nan until then
            off.stores[fence.job % len(off.stores)].flush = 1
        entry = fence.older


@callable_in_kernels
def note_table(machine: Machine, request: int) -> None:
    """Note all blocks of a request that was just admitted."""
    record = machine.requests[request]
    for at in range(record.allocated):
        note_block(machine, machine.table[record.slot, at])


def run_finder(read: Callable[..., int], storage: Storage) -> Callable[..., int]:
    """Return the function that finds the end of the run of chunks that a tier has, from `begin` on.

    It returns SKIP where one of them is under way, but for a prefetch: that is another request's.
    `read` is as in `reader`, if requests read `storage`.
    """
    reads_storage, prefetches = storage == "read", storage == "prefetched"

    @callable_in_kernels
    def find_run(off: Offload, request: int, path: Int32s, begin: int, end: int) -> int:
        at, pending, reads = begin, False, 0
        while at < end:
            chunk = off.chunks[chunk_at(off, path, at)]
            if prefetches and chunk.answer == ASKING:
                break
            if is_held(off, chunk_at(off, path, at)):
                pending = pending or chunk.users == PENDING
            elif reads_storage:
                answer = read(off, request, path, at, reads == 0)
                if answer == MISSING:
                    break
                pending = True
                reads += answer == PRESENT
            else:
                break
            at += 1
        return SKIP if pending else at

    return find_run


def chunk_finder(rules: ChunkRules, storage: Storage) -> Callable[..., int]:
    """Return the function that looks up the chunks behind the hits of the front request.

    It returns the tokens to load, SKIP to wait for them. `rules` order the chunks.
    """
    find_run = run_finder(reader(offerer(rules.choose)), storage)
    reads_storage = storage == "read"

    @callable_in_kernels
    def look_up_chunks(machine: Machine, request: int, hits: int, total: int) -> int:
        off, path = machine.offload, machine.path[len(machine.path) - 1]
        size, bpc = machine.state[0].block_size, off.state[0].blocks_per_chunk
        begin, end = hits // bpc, total // (size * bpc)
        least = off.state[0].least_load
        if (end * bpc - hits) < least:
            return 0
        if reads_storage:
            poll(off, False)
        at = find_run(off, request, path, begin, end)
        if at == SKIP:
            return SKIP
        if at == begin or at * bpc - hits < least:
            return 0
        for chunk in range(begin, at):
            if off.chunks[chunk_at(off, path, chunk)].loading:
                return SKIP
        return (at * bpc - hits) * size  # type: ignore[no-any-return]

    return look_up_chunks


@callable_in_kernels
def reserved_blocks(machine: Machine) -> int:
    """Return the blocks that prompts in progress and loads will still need."""
    off, requests, state = machine.offload, machine.requests, machine.state[0]
    reserved = 0
    for at in range(state.running + off.state[0].loading):
        loading = at >= state.running
        request = off.loading[at - state.running] if loading else machine.running[at]
        record = requests[request]
        total = record.prompt + record.generated
        if loading or record.computed < total:
            reserved += max(0, blocks_for(total, state.block_size) - record.allocated)
    return reserved


@callable_in_kernels
def take_slot(machine: Machine, request: int) -> None:
    """Give the front request a block table; its path comes along, and it leaves the queue."""
    record, path, state = machine.requests[request], machine.path, machine.state[0]
    free = len(machine.slots) - state.running - machine.offload.state[0].loading
    record.slot = machine.slots[free - 1]
    if record.hits != NONE:
        leave_waiting(machine, request)
    for at in range(record.length):
        path[record.slot, at] = path[len(path) - 1, at]


@callable_in_kernels
def begin_load(machine: Machine, request: int, hits: int, tokens: int) -> int:
    """Have a request load so many tokens behind its hits.

    Return how many of its blocks it had read from storage.
    """
    off, record, state = machine.offload, machine.requests[request], machine.offload.state[0]
    member, path, bpc = off.members[request], machine.path[record.slot], state.blocks_per_chunk
    begin, read = hits // bpc, 0
    job = off.loads[state.loads % len(off.loads)]
    job.request, job.submitted, job.done = request, 0, 0
    job.first = off.loads[(state.loads - 1) % len(off.loads)].first if state.loads else 0
    job.first += off.loads[(state.loads - 1) % len(off.loads)].nodes if state.loads else 0
    end = (hits + tokens // machine.state[0].block_size) // bpc
    job.nodes = end - begin
    for at in range(begin, end):
        node = chunk_at(off, path, at)
        off.load_nodes[(job.first + at - begin) % len(off.load_nodes)] = node
        off.chunks[node].loading = 1
        pin_chunk(off, node)
        see(off, request, path, at)
        reuse(off, request, at)
        if off.marks[member.access + at] & READ:
            read += (at + 1) * bpc - max(hits, at * bpc)
    state.loads += 1
    state.reread = 0
    state.loaded += end - begin
    member.next_chunk = end
    member.transfers += 1
    member.stage = LOADING
    off.loading[state.loading] = request
    state.loading += 1
    return read


def storer(rules: ChunkRules, storage: Storage) -> Callable[..., None]:
    """Return the function that offers the tier what a request has filled with so many tokens.

    From its next chunk on; `rules` order the chunks.
    """
    offer, reads_storage = offerer(rules.choose), storage == "read"

    @callable_in_kernels
    def store_chunks(
        machine: Machine, request: int, path: Int32s, table: Int64s, tokens: int, allocated: int
    ) -> None:
        off, record = machine.offload, machine.requests[request]
        state, member, bpc = off.state[0], off.members[request], off.state[0].blocks_per_chunk
        if state.write_back:
            return
        if state.prompt_only:
            tokens = min(tokens, record.prompt)
        known = (record.prompt + record.generated) // machine.state[0].block_size
        begin, end = member.next_chunk, min(tokens // machine.state[0].block_size, allocated, known)
        end = end // bpc
        if end <= begin:
            return
        if reads_storage:
            poll(off, state.polls_late)
        if state.forgets_offers:
            forget_offers(off, path, max(begin, record.hits // bpc), end)
        count = offer(off, request, path, begin, end)
        if count < 0:
            return
        member.next_chunk = end
        if count == 0:
            return
        ended = record.finished_s >= 0
        job = off.stores[state.stores % len(off.stores)]
        job.request, job.submitted, job.done, job.flush, job.nodes = request, 0, 0, 0, count
        job.first = off.stores[(state.stores - 1) % len(off.stores)].first if state.stores else 0
        job.first += off.stores[(state.stores - 1) % len(off.stores)].nodes if state.stores else 0
        for place in range(count):
            at = off.fresh[place]
            node = chunk_at(off, path, at)
            off.store_nodes[(job.first + place) % len(off.store_nodes)] = node
            for block in table[at * bpc : (at + 1) * bpc]:
                fence = off.fences[state.fences % len(off.fences)]
                fence.job, fence.request, fence.older = state.stores, request, off.fence[block]
                off.fence[block] = state.fences
                state.fences += 1
                if ended and off.taken[block] == state.plan:
                    job.flush = 1
        job.fences = state.fences
        state.stores += 1
        member.transfers += 1

    return store_chunks


def step_storer(rules: ChunkRules, storage: Storage) -> Callable[[Machine], None]:
    """Return the function that offers what the planned step fills, then what ended requests left.

    Those leave the tier then.
    """
    store_chunks, commit = storer(rules, storage), rules.commit
    reads_storage = storage == "read"

    @callable_in_kernels
    def store_step(machine: Machine) -> None:
        off, requests, state = machine.offload, machine.requests, machine.offload.state[0]
        size = machine.state[0].block_size
        if reads_storage and not state.polls_late:
            flush(off)
        planned, front = machine.state[0].planned, machine.path[len(machine.path) - 1]
        for at in range(planned + state.ended):
            ended = at >= planned
            request = off.ended[at - planned] if ended else machine.batch[1, at]
            record = requests[request]
            if ended:
                write_path(machine.nodes.parent, record.leaf, front, 0, record.length)
                path, table = front, off.ended_table[at - planned]
                tokens = max(record.prompt, record.prompt + record.generated - 1)
                allocated = off.members[request].blocks
            else:
                path, table = machine.path[record.slot], machine.table[record.slot]
                tokens = min(record.computed, record.prompt + record.generated)
                allocated = record.allocated
            store_chunks(machine, request, path, table, tokens, allocated)
        for at in range(0 if state.write_back else state.ended):
            request = off.ended[at]
            record = requests[request]
            write_path(machine.nodes.parent, record.leaf, front, 0, record.length)
            tokens = max(record.prompt, record.prompt + record.generated - 1)
            commit(machine, request, front, tokens // size // state.blocks_per_chunk)
            off.members[request].stage = ENDED
            if reads_storage and off.members[request].transfers == 0:
                forget_answers(machine, request)
        if state.ended > 0:
            machine.state[0].front = NONE
        state.ended = 0
        if reads_storage and state.polls_late:
            flush(off)

    return store_step


@callable_in_kernels
def submit(off: Any, job: Any, now_s: float) -> None:
    """Begin the copy of a store."""
    state = off.state[0]
    begin_s = max(now_s, state.store_free_s)
    job.done_s = begin_s + (state.store_latency_s + state.store_chunk_s * job.nodes)
    state.store_free_s = job.done_s
    job.submitted = 1


@callable_in_kernels
def begin_transfers(machine: Machine) -> float:
    """Begin the stores of the plan before this one and the loads of this one.

    Return when the step can start: it waits for stores whose blocks it writes.
    """
    off, state, now_s = machine.offload, machine.offload.state[0], machine.state[0].now_s
    begin_s = now_s
    if state.written_back > 0:
        begin_s = max(now_s, state.store_free_s) + state.store_latency_s
        begin_s += state.store_chunk_s * state.written_back
        state.store_free_s = begin_s
        state.written_back = 0
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


def transfer_ender(storage: Storage) -> Callable[[Machine], None]:
    """Return the function that ends the transfers that are done by now."""
    writes_on, reads_storage = storage != "none", storage == "read"

    @callable_in_kernels
    def end_transfers(machine: Machine) -> None:
        off, state, now_s = machine.offload, machine.offload.state[0], machine.state[0].now_s
        for number in range(state.stores_done, state.stores):
            job = off.stores[number % len(off.stores)]
            if job.submitted and not job.done and job.done_s <= now_s:
                for at in range(job.first, job.first + job.nodes):
                    unpin_chunk(off, off.store_nodes[at % len(off.store_nodes)])
                if writes_on:
                    write_on(off, off.store_nodes, job.first, job.nodes, now_s)
                member = off.members[job.request]
                member.transfers -= 1
                if reads_storage and member.stage == ENDED and member.transfers == 0:
                    forget_answers(machine, job.request)
                job.done = 1
        while (
            state.stores_done < state.stores
            and off.stores[state.stores_done % len(off.stores)].done
        ):
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
                if state.write_back:
                    evict_first(off, node)
            off.members[job.request].transfers -= 1
            off.members[job.request].stage = LOADED
            state.loads_done += 1

    return end_transfers


@callable_in_kernels
def next_end_s(machine: Machine) -> float:
    """Return when the next transfer ends, now if one has to begin, infinity without any."""
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


def waiter(
    end_transfers: Callable[[Machine], None], storage: Storage
) -> Callable[[Machine, bool], bool]:
    """Return the function that lets time pass to the next arrival or end of a transfer.

    It returns False where neither comes. Where requests were just `preempted` (loads have blocks),
    others may fit as soon as their copies have ended.
    """
    copies, prefetches = storage != "none", storage == "prefetched"

    @callable_in_kernels
    def wait(machine: Machine, preempted: bool) -> bool:
        requests, state = machine.requests, machine.state[0]
        begin_s = begin_transfers(machine)
        next_s = begin_s if preempted else next_end_s(machine)
        if copies and not preempted:
            next_s = next_copy_s(machine.offload, state.now_s, next_s)
        if prefetches and not preempted:
            next_s = next_fetch_s(machine, next_s)
        if state.arrived < len(requests):
            next_s = min(next_s, requests[state.arrived].arrival_s)
        if next_s == np.inf:
            return False
        state.now_s = max(begin_s, next_s)
        end_transfers(machine)
        return True

    return wait


@callable_in_kernels
def next_new(machine: Machine, at: int) -> int:
    """Return the first request from `at` on that arrived and was never admitted."""
    requests = machine.requests
    while at < machine.state[0].arrived and (requests[at].oversized or requests[at].hits != NONE):
        at += 1
    return at


@callable_in_kernels
def advance_next(machine: Machine) -> None:
    """Move on to the first request that was never admitted; those rejected are done with."""
    state, end = machine.state[0], next_new(machine, machine.state[0].next)
    for request in range(state.next, end):
        state.finished += machine.requests[request].oversized
    state.next = end


def releaser(release: Callable[..., None]) -> Callable[..., None]:
    """Return the function that frees all blocks of a request, as `release`, and notes its end."""

    @callable_in_kernels
    def release_offloaded(machine: Machine, request: int, finished: bool) -> None:
        off, state, record = machine.offload, machine.offload.state[0], machine.requests[request]
        if finished:
            row = off.ended_table[state.ended]
            for at in range(record.allocated):
                row[at] = machine.table[record.slot, at]
            off.members[request].blocks = record.allocated
            off.ended[state.ended] = request
            state.ended += 1
        elif off.members[request].transfers > 0:
            for number in range(state.stores_done, state.stores):
                job = off.stores[number % len(off.stores)]
                if job.request == request:
                    job.flush = 1
        off.members[request].stage = WAITING
        release(machine, request, finished)

    return release_offloaded


def loaded_admitter(
    allocate: Callable[..., None], leaf: bool, learn: Callable[..., None]
) -> Callable[..., Any]:
    """Return the function that tries to run a request whose load has ended, as `admit` does."""

    @callable_in_kernels
    def admit_loaded(machine: Machine, request: int, budget: int) -> int:
        off, state, record = machine.offload, machine.state[0], machine.requests[request]
        member, size, total = (
            off.members[request],
            state.block_size,
            record.prompt + record.generated,
        )
        if member.stage == LOADED:
            hash_blocks(machine, request, record.computed, leaf)
            record.computed = min(record.computed, total - 1)
            member.stage = READY
        tokens = min(total - record.computed, budget)
        blocks = blocks_for(record.computed + tokens, size)
        needed = blocks_for(total, size) if state.reserve_full_prompt else blocks
        needed -= record.allocated
        if state.running > 0:
            needed += state.watermark_blocks
        if needed > state.free:
            return 0
        allocate(machine, request, blocks)
        hash_blocks(machine, request, record.computed + tokens, leaf)
        note_table(machine, request)
        if record.preemptions == 0:
            learn(machine, off.state[0].learned, record.prompt - record.computed)
            off.state[0].learned += 1
        machine.running[state.running] = request
        state.running += 1
        return tokens  # type: ignore[no-any-return]

    return admit_loaded


def offloaded_admitter(
    allocate: Callable[..., None],
    leaf: bool,
    look_up_chunks: Callable[..., int],
    learn: Callable[..., None],
    storage: Storage,
) -> Callable[..., Any]:
    """Return the function that tries to admit a waiting request, whose path is written out.

    It returns the tokens to compute in the step being planned; 0 where all requests have to wait,
    SKIP where this one does, or has begun to load.
    """
    prefetches = storage == "prefetched"

    @callable_in_kernels
    def admit(machine: Machine, request: int, budget: int) -> int:
        off, record, state = machine.offload, machine.requests[request], machine.state[0]
        size, total, member = (
            state.block_size,
            record.prompt + record.generated,
            off.members[request],
        )
        first = record.hits == NONE
        if member.transfers > 0 or (prefetches and not may_start(machine, request)):
            return SKIP
        hits = look_up(machine, record.look if first else (total - 1) // size)
        loaded = look_up_chunks(machine, request, hits, total)
        if loaded == SKIP:
            return SKIP
        if off.state[0].restarts:
            member.next_chunk = 0
        tokens = 0 if loaded > 0 else min(total - hits * size, budget)
        blocks = blocks_for(hits * size + loaded + tokens, size)
        others = count_free(machine, hits) - hits
        if state.running > 0:
            others += state.watermark_blocks
        whole = blocks_for(total, size) if state.reserve_full_prompt else blocks
        reserved = reserved_blocks(machine) if loaded > 0 else 0
        slots = len(machine.slots) - state.running - off.state[0].loading
        if max(whole, blocks + reserved) + others > state.free or slots == 0:
            return 0
        take_slot(machine, request)
        if first:
            record.written = max(count_written(machine, record.look), hits)
            record.kept = record.written
            member.external = loaded
            note_admission(machine, request, hits)
        use_hits(machine, request, hits)
        if loaded > 0:  # pins its chunks before blocks are written back into the tier
            read = begin_load(machine, request, hits, loaded)
            if first:
                member.read = read
        allocate(machine, request, blocks)
        record.computed = hits * size + loaded
        note_table(machine, request)
        if loaded > 0:
            return SKIP
        if first:
            learn(machine, off.state[0].learned, record.prompt - hits * size)
            off.state[0].learned += 1
        hash_blocks(machine, request, hits * size + tokens, leaf)
        machine.running[state.running] = request
        state.running += 1
        return tokens

    return admit


def loaded_planner(admit_loaded: Callable[..., Any]) -> Callable[[Machine], bool]:
    """Return the function that plans for loaded requests; False where one of them does not fit."""

    @callable_in_kernels
    def plan_loaded(machine: Machine) -> bool:
        off, state, at = machine.offload, machine.state[0], 0
        while at < off.state[0].loading and state.budget > 0 and state.running < state.max_num_seqs:
            request = off.loading[at]
            if off.members[request].stage == LOADING:
                at += 1
                continue
            tokens = admit_loaded(machine, request, state.budget)
            if tokens == 0:
                return False
            off.state[0].loading -= 1
            for place in range(at, off.state[0].loading):
                off.loading[place] = off.loading[place + 1]
            plan(machine, request, tokens)
        return True

    return plan_loaded


def waiting_planner(admit: Callable[..., Any]) -> Callable[[Machine], None]:
    """Return the function that plans for waiting requests: those preempted, then by arrival."""

    @callable_in_kernels
    def plan_waiting(machine: Machine) -> None:
        state = machine.state[0]
        preempted, at = state.preempted - 1, next_new(machine, state.next)
        while state.budget > 0 and state.running < state.max_num_seqs:
            if preempted >= 0:
                request = machine.preempted[preempted]
                preempted -= 1
            elif at < state.arrived:
                request = at
                at = next_new(machine, at + 1)
            else:
                break
            write_front(machine, request)
            tokens = admit(machine, request, state.budget)
            if tokens == 0:
                break
            if tokens != SKIP:
                plan(machine, request, tokens)
        advance_next(machine)

    return plan_waiting


@callable_in_kernels
def take_chunk_table(machine: Machine) -> None:
    """Put the table in force by which the tier's policy scores for the latest request."""
    off, arrived = machine.offload, machine.state[0].arrived
    off.state[0].period = advance_table(off.tables, off.state[0].period, arrived)


def arriver(rules: ChunkRules, storage: Storage) -> Callable[[Machine], None]:
    """Return the function that queues requests that have arrived, and has them prefetched."""
    prefetch, prefetches = prefetcher(offerer(rules.choose)), storage == "prefetched"

    @callable_in_kernels
    def enter(machine: Machine) -> None:
        arrived = machine.state[0].arrived
        arrive(machine)
        take_chunk_table(machine)
        if prefetches:
            prefetch(machine, arrived)

    return enter


@once
def offloaded_stepper(
    policy: type[LanePolicy],
    leaf: bool,
    chunk_policy: type[LanePolicy] | None = None,
    leaf_chunks: bool = False,
    storage: Storage = "none",
) -> Callable[..., Any]:
    """Return the kernel that runs an engine with a CPU tier, called as that of `stepper`.

    `chunk_policy` orders the chunks, as `chunk_rules` has it. Of `storage` below them, waiting
    requests "read" what they lack, as in vLLM, or it is "prefetched" when they arrive.
    """
    take_free = taker(policy, leaf)

    @callable_in_kernels
    def take(machine: Machine) -> int:
        block = take_free(machine)
        if machine.offload.state[0].write_back and machine.state[0].evicted_node != ROOT:
            write_back(machine.offload, machine.state[0].evicted_node)
        note_block(machine, block)
        return block

    rules = one_group(policy, leaf, take)
    rules = rules._replace(release=releaser(rules.release))
    allocate = allocator(take)
    chunk_order = chunk_rules(chunk_policy, leaf_chunks)
    find_chunks, learn = chunk_finder(chunk_order, storage), adapter(policy)
    admit = offloaded_admitter(allocate, leaf, find_chunks, learn, storage)
    admit_loaded = loaded_admitter(allocate, leaf, learn)
    plan_running, complete = running_planner(rules), completer(rules)
    store_step, end_transfers = step_storer(chunk_order, storage), transfer_ender(storage)
    wait = waiter(end_transfers, storage)
    plan_loaded, plan_waiting = loaded_planner(admit_loaded), waiting_planner(admit)
    enter, reads_storage = arriver(chunk_order, storage), storage == "read"

    @callable_in_kernels
    def schedule(machine: Machine) -> None:
        begin_plan(machine)
        machine.offload.state[0].plan += 1
        machine.offload.state[0].now_s = machine.state[0].now_s
        if plan_running(machine) and plan_loaded(machine):
            plan_waiting(machine)
        cost_plan(machine)
        store_step(machine)

    @kernel
    def run(machine: Machine, steps: int, finished: int, until_s: float) -> bool:
        state = machine.state[0]
        for _ in range(steps):
            if state.finished >= finished or state.now_s >= until_s:
                break
            enter(machine)
            if state.ttl_s < np.inf:
                expire(machine, leaf)
            preempted = state.preempted
            schedule(machine)
            off = machine.offload.state[0]
            if reads_storage and off.reread > 2 * (off.stored_chunks + off.capacity):
                off.stuck = True
                return False
            if state.planned > 0:
                off.reread = 0
                begin_s = begin_transfers(machine)
                start(machine)
                state.end_s += begin_s - state.now_s
                complete(machine)
                end_transfers(machine)
            elif not wait(machine, state.preempted > preempted):
                return False
        return True

    return run

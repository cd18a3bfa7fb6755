"""Prefetches of SGLang's HiCache: what storage has of a new request goes into the host's memory.

A request that arrives looks for its prefix behind what the GPU and the host's memory have. If at
least the threshold's tokens are missing there and storage has as many, they get room in memory and
are read, one request after the other, in batches of pages; a page is a block. When the scheduler
comes to the request, `best_effort` stops the reading and goes on with the batches that are there,
`wait_complete` waits for all, and `timeout` for a while. Look-ups take no time, and a page that
another request is reading is not read twice.

Source: SGLang 0.5.23, srt/managers/scheduler.py (_prefetch_kvcache), cache_controller.py
(prefetch_rate_limited, _page_transfer) and srt/mem_cache/unified_radix_cache.py
(prefetch_from_storage, check_prefetch_progress, _drain_storage_control_queues_impl).
"""

from __future__ import annotations

from typing import Any

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.vllm_sim.admission import look_up, write_front
from kvscope.vllm_sim.chunk_lanes import offer_chunks
from kvscope.vllm_sim.chunks import (
    chunk_at,
    is_held,
    list_range,
    move_to_end,
    remove_chunk,
    see,
    unpin_chunk,
)
from kvscope.vllm_sim.offload_state import (
    ASKING,
    INSERTED,
    NO_FETCH,
    QUEUED,
    READ,
    READING,
    T1,
    TIMEOUT,
    UNKNOWN,
    WAIT_COMPLETE,
    WRITTEN,
    Offload,
)
from kvscope.vllm_sim.state import NONE, Machine
from kvscope.vllm_sim.storage import poll, write_on

BATCH_PAGES = 128  # STORAGE_BATCH_SIZE, mem_cache/hicache_storage.py


@callable_in_kernels
def protect(off: Offload, request: int, path: Int32s, end: int) -> int:
    """Have the next offer evict none of a request's chunks before `end`; return how many it could.

    They count as accessed.
    """
    count = 0
    for at in range(end):
        chunk = off.chunks[chunk_at(off, path, at)]
        if is_held(off, chunk_at(off, path, at)) and chunk.users == 0:
            see(off, request, path, at)
            chunk.offer = off.state[0].offers + 1
            count += 1
    return count


@callable_in_kernels
def make_room(off: Offload, request: int, path: Int32s, begin: int, end: int) -> Any:
    """Make room in memory for chunks begin..end of a request.

    Returns the end of those that have it, the missing ones of which are in `fresh`, and their
    number; NONE for that where too few have it.
    """
    state, fresh = off.state[0], NONE
    threshold, state.threshold = state.threshold, 0  # for what is stored from the GPU
    least = max(1, state.fetch_least)
    while fresh < 0 and (end - begin) * state.blocks_per_chunk >= least:
        room = state.capacity - state.held + state.evictable
        room -= protect(off, request, path, begin)
        fresh = offer_chunks(off, request, path, list_range(off, begin, end))
        end = end if fresh >= 0 else begin + min(end - begin - 1, room)
    state.threshold = threshold
    return end, fresh


@callable_in_kernels
def end_of_held(off: Offload, path: Int32s, begin: int, end: int) -> int:
    """Return the end of the run of chunks that memory has, but for those being prefetched."""
    while begin < end and is_held(off, chunk_at(off, path, begin)):
        if off.chunks[chunk_at(off, path, begin)].answer == ASKING:
            break
        begin += 1
    return begin


@callable_in_kernels
def end_of_written(off: Offload, path: Int32s, begin: int, end: int) -> int:
    """Return the end of the run of chunks that storage has."""
    while begin < end and off.chunks[chunk_at(off, path, begin)].in_storage == WRITTEN:
        begin += 1
    return begin


@callable_in_kernels
def make_recent(off: Offload, path: Int32s, begin: int, end: int) -> None:
    """Make the held ones of these chunks the most recent ones, the first of them above all."""
    for at in range(end - 1, begin - 1, -1):
        if is_held(off, chunk_at(off, path, at)):
            move_to_end(off, chunk_at(off, path, at), T1)


@callable_in_kernels
def prefetch(machine: Machine, request: int) -> None:
    """Have a request prefetch what storage has: less, where not all of it fits into memory."""
    off, record, state = machine.offload, machine.requests[request], machine.offload.state[0]
    write_front(machine, request)
    path, bpc = machine.path[len(machine.path) - 1], state.blocks_per_chunk
    above, last = look_up(machine, record.look) // bpc, record.look // bpc
    begin = end_of_held(off, path, above, last)
    wanted = last - begin
    # Half of the memory is left for stores.
    if wanted * bpc < state.fetch_least or 2 * state.fetching >= state.capacity:
        return
    end = end_of_written(off, path, begin, last)
    end, fresh = make_room(off, request, path, begin, end)
    if fresh < 0:
        return
    if not state.provisional:
        make_recent(off, path, above, end)
    for place in range(fresh):
        off.marks[off.members[request].access + off.fresh[place]] |= READ
        off.chunks[chunk_at(off, path, off.fresh[place])].answer = ASKING
    job = off.fetches[request]
    job.begin, job.end, job.fresh, job.wanted = begin, end, fresh, wanted
    job.stage, job.asked_s = QUEUED, machine.state[0].now_s
    state.fetching += wanted
    state.read_chunks += fresh


@called_by_kernels
def prefetch_arrivals(machine: Machine, arrived: int) -> None:
    """Have the requests from `arrived` on prefetch; reads that are due by now begin and end."""
    for request in range(arrived, machine.state[0].arrived + 1):
        advance_fetches(machine, request)
        if request < machine.state[0].arrived and not machine.requests[request].oversized:
            prefetch(machine, request)


@callable_in_kernels
def end_fetch(machine: Machine, request: int, read: int) -> None:
    """Keep the first `read` chunks that a request reads; the others lose their room."""
    off, job, state = machine.offload, machine.offload.fetches[request], machine.offload.state[0]
    write_front(machine, request)
    path = machine.path[len(machine.path) - 1]
    for at in range(job.begin, job.end):
        mark, node = off.members[request].access + at, chunk_at(off, path, at)
        if not off.marks[mark] & READ:
            continue
        off.chunks[node].answer = UNKNOWN
        unpin_chunk(off, node)
        if read > 0:
            read -= 1
            continue
        off.marks[mark] ^= READ | INSERTED
        remove_chunk(off, node)
        state.stored -= 1
        state.read_chunks -= 1
    state.fetching -= job.wanted
    job.stage = NO_FETCH


@callable_in_kernels
def advance_fetches(machine: Machine, end: int) -> None:
    """Begin and end the reads that are due by now, in the order of their requests before `end`.

    What the pool wrote back is written on to storage before.
    """
    off, state, now_s = machine.offload, machine.offload.state[0], machine.state[0].now_s
    state.now_s = now_s
    if state.asked > 0:
        write_on(off, off.asked, 0, state.asked, now_s)
        for at in range(state.asked):
            unpin_chunk(off, off.asked[at])
        state.asked = 0
    poll(off, True)
    while state.fetch_head < end:
        job = off.fetches[state.fetch_head]
        if job.stage == QUEUED:
            begin_s = max(job.asked_s, state.read_free_s)
            if begin_s > now_s:
                break
            job.begin_s = begin_s
            job.end_s = begin_s + (state.read_latency_s + state.read_chunk_s * job.fresh)
            state.read_free_s = job.end_s
            job.stage = READING
        if job.stage == READING:
            if job.end_s > now_s:
                break
            end_fetch(machine, state.fetch_head, job.fresh)
        state.fetch_head += 1


@callable_in_kernels
def deadline_s(off: Offload, request: int) -> float:
    """Return until when a request waits for its prefetch, once it has been held back for it."""
    state, job = off.state[0], off.fetches[request]
    return job.held_s + state.fetch_base_s + state.fetch_chunk_s * job.wanted  # type: ignore[no-any-return]


@callable_in_kernels
def may_start(machine: Machine, request: int) -> bool:
    """Return whether a request need not wait for its prefetch, which ends then."""
    off, state, now_s = machine.offload, machine.offload.state[0], machine.state[0].now_s
    job, read = off.fetches[request], 0
    if job.stage == NO_FETCH:
        return True
    if state.fetch_policy == WAIT_COMPLETE:
        return False
    if state.fetch_policy == TIMEOUT:
        if job.held_s < 0:
            job.held_s = now_s
        if now_s < deadline_s(off, request):
            return False
    if job.stage == READING:
        first_s = job.begin_s + state.read_latency_s
        if state.read_chunk_s > 0 and now_s > first_s:
            read = min(job.fresh, int((now_s - first_s) / state.read_chunk_s))
            read -= read % BATCH_PAGES
        # The batch under way is read to its end.
        batch_s = first_s + state.read_chunk_s * (read + BATCH_PAGES)
        state.read_free_s = min(job.end_s, batch_s)
    end_fetch(machine, request, read)
    return True


@callable_in_kernels
def next_fetch_s(machine: Machine, soonest_s: float) -> float:
    """Return when a read begins or ends, or a wait for one, or `soonest_s` if that is sooner."""
    off, state, first = machine.offload, machine.offload.state[0], True
    for request in range(state.fetch_head, machine.state[0].arrived):
        job = off.fetches[request]
        if job.stage == NO_FETCH:
            continue
        if first:
            first = False
            begin_s = max(job.asked_s, state.read_free_s)
            soonest_s = min(soonest_s, job.end_s if job.stage == READING else begin_s)
        if job.held_s >= 0:
            soonest_s = min(soonest_s, deadline_s(off, request))
    return soonest_s

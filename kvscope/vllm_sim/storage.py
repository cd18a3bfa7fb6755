"""Storage below a CPU tier: it gets a copy of each stored chunk, read back if memory lacks it.

A store that has reached the CPU's memory is written on to storage, its chunks pinned meanwhile.
A request whose chunk is not in memory asks storage, which answers at the end of the plan. A chunk
in storage gets room in memory at once and is read at the end of the plan, while the request waits.
Without room, the chunk counts as missing. Answers hold until the requests that asked have ended.
Storage deletes nothing. Copies of one direction follow each other; vLLM's threads overlap them.

Several engines may share storage: each finds a file once the first copy of it has ended, and two
engines may write the same file at a time. Eviction, which vLLM lacks, stands for a cleaner of files
or another store; a chunk that is evicted during its read is read to its end.

Source: vLLM 0.32.0 and 0.33.0, vllm/v1/kv_offload/tiering/manager.py (TieringOffloadingManager),
async_lookup.py (AsyncLookupManager), fs/manager.py (FileSystemTierManager) and
fs/io.py (_store_block).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvscope.core.jit import Function, callable_in_kernels
from kvscope.core.prefix import write_path
from kvscope.vllm_sim.chunks import (
    chunk_at,
    list_range,
    offer_chunks,
    pin_chunk,
    unpin_chunk,
)
from kvscope.vllm_sim.offload_state import (
    ASKED,
    ASKING,
    MISSING,
    PRESENT,
    READ,
    READS,
    UNKNOWN,
    WRITES,
    Offload,
)
from kvscope.vllm_sim.state import NONE, Machine, StorageFunctions


@callable_in_kernels
def add_copy(jobs: Any, number: int) -> Any:
    """Return the record of a new copy without chunks yet.

    `jobs` is the ring `reads` or `writes`, `number` the copy's number in it, from 0. In the ring of
    chunks (`read_nodes`, `write_nodes`) its chunks follow the previous copy's.
    """
    job, before = jobs[number % len(jobs)], jobs[(number - 1) % len(jobs)]
    job.first = before.first + before.nodes if number else 0
    job.nodes = 0
    return job


@callable_in_kernels
def copy_end_s(off: Offload, direction: int, now_s: float, chunks: int) -> float:
    """Return when a copy of `chunks` chunks ends (s), behind the earlier ones of its `direction`.

    Sets `free_s` of the direction's link (READS or WRITES), and of a shared link with a limit.
    """
    link, pool = off.links[direction], off.pool_links[direction]
    end_s = max(now_s, link.free_s) + (link.latency_s + link.chunk_s * chunks)
    if pool.chunk_s > 0:
        pool.free_s = max(now_s, pool.free_s) + pool.chunk_s * chunks
        end_s = max(end_s, pool.free_s + link.latency_s)
    link.free_s = end_s
    return end_s  # type: ignore[no-any-return]


@callable_in_kernels
def unlink_file(off: Offload, node: int) -> None:
    """Remove a file from the LRU list."""
    file = off.files[node]
    off.files[file.before].after, off.files[file.after].before = file.after, file.before


@callable_in_kernels
def use_file(off: Offload, node: int) -> None:
    """Add a file that is not in the LRU list as its most recent one."""
    file, end = off.files[node], off.files[len(off.files) - 1]
    file.before, file.after = end.before, len(off.files) - 1
    off.files[end.before].after = node
    end.before = node


@callable_in_kernels
def make_room(off: Offload, now_s: float) -> bool:
    """Return whether storage has room for one more chunk, evicting a file if full and allowed."""
    pool, oldest = off.pool[0], off.files[len(off.files) - 1].after
    if pool.chunks < pool.capacity:
        return True
    if not pool.evicts or not off.files[oldest].written_s <= now_s:
        return False
    unlink_file(off, oldest)
    off.files[oldest].written_s = np.inf
    pool.chunks -= 1
    pool.evictions += 1
    return True


def poll(machine: Any, again: bool) -> None:
    """Unpin the chunks of copies that have ended, at most once per plan unless `again`."""
    off, state = machine.offload, machine.offload.state[0]
    if state.polled and not again:
        return
    state.polled = True
    while (
        state.writes_done < state.writes
        and off.writes[state.writes_done % len(off.writes)].done_s <= state.now_s
    ):
        job = off.writes[state.writes_done % len(off.writes)]
        for at in range(job.first, job.first + job.nodes):
            unpin_chunk(off, off.write_nodes[at % len(off.write_nodes)])
        state.writes_done += 1
    while (
        state.reads_done < state.reads_begun
        and off.reads[state.reads_done % len(off.reads)].done_s <= state.now_s
    ):
        job = off.reads[state.reads_done % len(off.reads)]
        for at in range(job.first, job.first + job.nodes):
            unpin_chunk(off, off.read_nodes[at % len(off.read_nodes)])
        state.reads_done += 1


@callable_in_kernels
def ask_storage(off: Offload, request: int, node: int, at: int) -> int:
    """Return storage's answer about a request's chunk `at`: PRESENT, MISSING, ASKING (none yet)."""
    state, chunk, mark = off.state[0], off.chunks[node], off.members[request].access + at
    if not off.marks[mark] & ASKED:
        off.marks[mark] |= ASKED
        chunk.askers += 1
    if chunk.answer == UNKNOWN:
        chunk.answer = ASKING
        off.asked[state.asked] = node
        state.asked += 1
    return chunk.answer  # type: ignore[no-any-return]


@callable_in_kernels
def add_read(off: Offload, request: int, node: int, at: int, first: bool) -> None:
    """Queue the read of a request's chunk `at` into memory; `first` begins a new copy."""
    state = off.state[0]
    off.marks[off.members[request].access + at] |= READ
    if first:
        add_copy(off.reads, state.reads)
        state.reads += 1
    job = off.reads[(state.reads - 1) % len(off.reads)]
    off.read_nodes[(job.first + job.nodes) % len(off.read_nodes)] = node
    job.nodes += 1
    if off.pool[0].evicts:
        unlink_file(off, node)
        use_file(off, node)
    state.read_chunks += 1
    state.reread += 1


def read_chunk(machine: Any, request: int, at: int, first: bool) -> int:
    """Queue a read of chunk `at` of a waiting request's path, if storage has the chunk.

    Returns PRESENT if the read is queued for the end of the plan, ASKING if storage has not
    answered yet, MISSING if storage lacks the chunk or memory has no room. `first`: the request's
    first read in this plan.
    """
    off, path = machine.offload, machine.path[len(machine.path) - 1]
    node = chunk_at(off, path, at)
    answer = ask_storage(off, request, node, at)
    if answer == PRESENT and not off.files[node].written_s <= off.state[0].now_s:
        off.chunks[node].answer = answer = MISSING  # it was evicted since
    if answer != PRESENT:
        return answer
    if offer_chunks(off, request, path, list_range(off, at, at + 1)) < 0:
        return MISSING
    add_read(off, request, node, at, first)
    return PRESENT


def write_on(machine: Any, first: int, count: int, now_s: float) -> None:
    """Begin to write `count` stored chunks, from entry `first` of `store_nodes`, on to storage."""
    off, fresh = machine.offload, 0
    state, pool, nodes = off.state[0], off.pool[0], off.store_nodes
    job = add_copy(off.writes, state.writes)
    job.nodes = count
    for at in range(count):
        node = nodes[(first + at) % len(nodes)]
        off.write_nodes[(job.first + at) % len(off.write_nodes)] = node
        pin_chunk(off, node)
        if off.files[node].written_s <= now_s:
            continue
        if off.files[node].written_s == np.inf:  # else another engine is writing it
            if not make_room(off, now_s):
                pool.full += 1
                continue
            pool.chunks += 1
            if pool.evicts:
                use_file(off, node)
        off.fresh[fresh] = node
        fresh += 1
    job.done_s = max(now_s, off.links[WRITES].free_s)
    if fresh > 0:
        job.done_s = copy_end_s(off, WRITES, now_s, fresh)
    for node in off.fresh[:fresh]:
        off.files[node].written_s = min(off.files[node].written_s, job.done_s)
    state.writes += 1
    state.written_chunks += fresh


def flush(machine: Any) -> None:
    """End a plan: begin its reads, and answer the requests' questions about chunks."""
    off, state = machine.offload, machine.offload.state[0]
    poll(machine, False)
    state.polled = False
    while state.reads_begun < state.reads:
        job = off.reads[state.reads_begun % len(off.reads)]
        job.done_s = copy_end_s(off, READS, state.now_s, job.nodes)
        state.reads_begun += 1
    for at in range(state.asked):
        written = off.files[off.asked[at]].written_s <= state.now_s
        off.chunks[off.asked[at]].answer = PRESENT if written else MISSING
    state.retry = state.asked > 0
    state.asked = 0


def forget_answers(machine: Any, request: int) -> None:
    """Forget storage's answers to a finished request, but for chunks that others asked for."""
    off, record, front = machine.offload, machine.requests[request], len(machine.path) - 1
    path, access = machine.path[front], off.members[request].access
    write_path(machine.parents, record.leaf, path, 0, record.length)
    machine.state[0].front = NONE
    for at in range(record.length // off.state[0].blocks_per_chunk):
        if off.marks[access + at] & ASKED:
            chunk = off.chunks[chunk_at(off, path, at)]
            chunk.askers -= 1
            if chunk.askers == 0:
                chunk.answer = UNKNOWN


@callable_in_kernels
def next_copy_s(off: Offload, now_s: float, soonest_s: float) -> float:
    """Return when the next copy ends (s), now if an answer is new, at the latest `soonest_s`."""
    state = off.state[0]
    if state.retry:
        return now_s
    if state.writes_done < state.writes:
        soonest_s = min(soonest_s, off.writes[state.writes_done % len(off.writes)].done_s)
    if state.reads_done < state.reads_begun:
        soonest_s = min(soonest_s, off.reads[state.reads_done % len(off.reads)].done_s)
    return soonest_s


def storage_functions(machine: Machine | None) -> StorageFunctions:
    """Return the functions that kernels call for `machine`; for None, placeholders never called."""
    calls = (poll, read_chunk, write_on, flush, forget_answers)
    return StorageFunctions(*(Function.each(calls, machine)))

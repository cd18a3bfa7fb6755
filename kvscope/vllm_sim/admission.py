"""What the scheduler does to one request: look it up, admit it, allocate blocks, preempt it.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_manager.py (KVCacheManager.get_computed_blocks,
allocate_slots, free) and vllm/v1/core/sched/scheduler.py (Scheduler._preempt_request).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.core.prefix import write_path
from kvscope.policies.base import ADAPT_EVERY, RECENT, Turn
from kvscope.replay.kernels.loop import advance_table
from kvscope.replay.structures.recent import note_recent, sort_recent
from kvscope.vllm_sim.pool import give_back, give_content, goes_in_front, lose_content, take, use
from kvscope.vllm_sim.state import NONE, Machine


class BlockRules(NamedTuple):
    """What the scheduler calls for a request's blocks; all functions are callable in kernels.

    `extend(machine, request, tokens)` allocates and hashes for so many more tokens of a running
    request, and returns False where too few blocks are free. `hash_filled(machine, request,
    tokens)` hashes the blocks that its first `tokens` tokens fill. `release(machine, request,
    finished)` frees all its blocks. `admit` is as `admitter` describes. `cut(machine, request,
    computed, tokens)` returns how many of its next tokens one step may compute.
    `end_plan(machine)` frees what was held until a step was planned. `quiet_until(machine, request,
    coming)` returns how many tokens a request that decodes has computed when `extend` changes a
    block next, or earlier; it has `coming` tokens on their way before a step. NONE where a step may
    change more.
    """

    extend: Callable[..., bool]
    hash_filled: Callable[..., None]
    release: Callable[..., None]
    admit: Callable[..., Any]
    cut: Callable[..., int]
    end_plan: Callable[..., None]
    quiet_until: Callable[..., int]


@callable_in_kernels
def arrive(machine: Machine) -> None:
    """Queue the requests that have arrived by now, and take the policy's table of that time."""
    requests, state = machine.requests, machine.state[0]
    while state.arrived < len(requests) and requests[state.arrived].arrival_s <= state.now_s:
        state.arrived += 1
    state.period = advance_table(machine.tables, state.period, state.arrived)


@callable_in_kernels
def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of blocks for so many tokens, the last one perhaps partial."""
    return (tokens + block_size - 1) // block_size


@callable_in_kernels
def peek_waiting(machine: Machine) -> int:
    """Return the first request of the waiting queue, NONE if it is empty, and write out its path.

    Preempted requests come first, the last one preempted in front; then by arrival. Oversized
    requests are rejected here.
    """
    requests, state = machine.requests, machine.state[0]
    if state.preempted > 0:
        request = machine.preempted[state.preempted - 1]
    else:
        while state.next < state.arrived and requests[state.next].oversized:
            state.next += 1
            state.finished += 1
        if state.next == state.arrived:
            return NONE
        request = state.next
    if state.front != request:
        row = machine.path[len(machine.path) - 1]
        record = requests[request]
        write_path(machine.nodes.parent, record.leaf, row, 0, record.length)
        state.front = request
    return request  # type: ignore[no-any-return]


@callable_in_kernels
def write_front(machine: Machine, request: int) -> None:
    """Write out the path of a waiting request."""
    if machine.state[0].front != request:
        row, record = machine.path[len(machine.path) - 1], machine.requests[request]
        write_path(machine.nodes.parent, record.leaf, row, 0, record.length)
        machine.state[0].front = request


@callable_in_kernels
def look_up(machine: Machine, most: int) -> int:
    """Return how many leading blocks of the front path are cached, at most `most`."""
    path = machine.path[len(machine.path) - 1]
    hits = 0
    while hits < most and machine.nodes[path[hits]].first != NONE:
        hits += 1
    return hits


@callable_in_kernels
def count_written(machine: Machine, most: int) -> int:
    """Return how many leading blocks of the front path were ever cached, at most `most`."""
    path = machine.path[len(machine.path) - 1]
    written = 0
    while written < most and machine.nodes[path[written]].written:
        written += 1
    return written


@callable_in_kernels
def count_free(machine: Machine, hits: int) -> int:
    """Return how many of the hit blocks are free: using them leaves fewer to allocate."""
    path = machine.path[len(machine.path) - 1]
    free = 0
    for at in range(hits):
        if machine.blocks[machine.nodes[path[at]].first].users == 0:
            free += 1
    return free


@callable_in_kernels
def enter_running(machine: Machine, request: int) -> None:
    """Move the front request of the waiting queue to the running ones; its path comes along."""
    record, path, state = machine.requests[request], machine.path, machine.state[0]
    record.slot = machine.slots[state.max_num_seqs - state.running - 1]
    machine.running[state.running] = request
    state.running += 1
    if state.preempted > 0:
        state.preempted -= 1
    else:
        state.next += 1
    for at in range(record.length):
        path[record.slot, at] = path[len(path) - 1, at]


@callable_in_kernels
def note_admission(machine: Machine, request: int, hits: int) -> None:
    """Count the hits of a request when it is first admitted."""
    record, state = machine.requests[request], machine.state[0]
    record.hits = hits
    record.admitted_s = state.now_s
    state.admitted += 1


@callable_in_kernels
def use_hits(machine: Machine, request: int, hits: int) -> None:
    """Pin the blocks of the first `hits` nodes of its path for a request."""
    record, path = machine.requests[request], machine.path
    for at in range(hits):
        block = machine.nodes[path[record.slot, at]].first
        use(machine, block)
        machine.table[record.slot, at] = block
    record.allocated = hits
    record.hashed = hits


@callable_in_kernels
def hash_blocks(machine: Machine, request: int, tokens: int) -> None:
    """Hash the blocks that `tokens` tokens fill, so that look-ups find them."""
    record = machine.requests[request]
    full = tokens // machine.state[0].block_size
    for at in range(record.hashed, full):
        block = machine.table[record.slot, at]
        give_content(machine, block, machine.path[record.slot, at])
    record.hashed = max(record.hashed, full)


def allocator(take_block: Callable[[Machine, bool], int]) -> Callable[..., None]:
    """Return the function that allocates free blocks until a request has so many."""

    @callable_in_kernels
    def allocate(machine: Machine, request: int, blocks: int) -> None:
        record = machine.requests[request]
        for at in range(record.allocated, blocks):
            machine.table[record.slot, at] = take_block(machine, at > record.allocated)
        record.allocated = max(record.allocated, blocks)

    return allocate


@callable_in_kernels
def lose_new_contents(machine: Machine, request: int) -> None:
    """Have the blocks that a request wrote, and no other one uses, lose their content."""
    record = machine.requests[request]
    for at in range(record.hits, record.hashed):
        block = machine.table[record.slot, at]
        if machine.blocks[block].users == 1:
            lose_content(machine, block)


@callable_in_kernels
def turn_of(machine: Machine, request: int, part: int) -> Turn:
    """Return a request as policies see it, with the category of a part of its path."""
    record = machine.requests[request]
    return Turn(
        request,
        record.arrival_s,
        record.history_tokens,
        record.category * (machine.cuts.shape[1] + 1) + part,
        record.next_prompt_tokens,
    )


@called_by_kernels
def release_blocks(machine: Machine, request: int, finished: bool) -> None:
    """Free all blocks of a request that runs, the tail first.

    One that has not finished will be back at once, so none of its blocks are evicted early. The
    new blocks of a turn that the policy does not admit lose their content.
    """
    record, state = machine.requests[request], machine.state[0]
    slot, allocated, cuts = record.slot, record.allocated, machine.cuts[request]
    known, size, p = machine.functions, state.block_size, machine.p
    part = int(np.searchsorted(cuts, allocated - 1 if finished else 0, side="right"))
    turn = turn_of(machine, request, part)
    _, shallow = known.place(turn, 0, size, p)
    begin, lane = int(allocated) if finished else 0, shallow
    if finished and state.selects and not known.admits(turn, p, machine.tables.in_force):
        lose_new_contents(machine, request)
    for at in range(allocated):  # to the front of their queue: the last one freed goes first
        block = machine.table[slot, at]
        if goes_in_front(machine, block):
            give_back(machine, block, shallow)
    for at in range(allocated - 1, -1, -1):
        if at < begin:
            while part > 0 and at < cuts[part - 1]:
                part -= 1
            turn = turn_of(machine, request, part)
            begin, lane = known.place(turn, at + 1, size, p)
            begin = max(begin, int(cuts[part - 1]) if part > 0 else 0)
        block = machine.table[slot, at]
        if not goes_in_front(machine, block):
            give_back(machine, block, lane)
    record.allocated = 0
    record.hashed = 0
    record.slot = NONE
    free = len(machine.slots) - state.running - machine.offload.state[0].loading
    machine.slots[free] = slot
    state.running -= 1


@callable_in_kernels
def learn(machine: Machine, number: int, uncached_tokens: int) -> None:
    """Let the policy adapt to the uncached tokens of its next request.

    Requests are numbered as they run first.
    """
    if machine.state[0].adaptive and machine.functions.adapts(machine.p):
        note_recent(machine.recent, number, uncached_tokens)
        if (number + 1) % ADAPT_EVERY == 0:
            end = sort_recent(machine.recent, number + 1)
            machine.functions.adapt(machine.recent[RECENT:end], machine.p)


def admitter(allocate: Callable[..., None]) -> Callable[..., Any]:
    """Return the function that tries to admit the first waiting request, given a budget of tokens.

    It returns the tokens to compute in the step being planned; 0 if the request has to wait. Hits
    count when a request is first admitted.
    """

    @callable_in_kernels
    def admit(machine: Machine, request: int, budget: int) -> int:
        record, state = machine.requests[request], machine.state[0]
        size, total = state.block_size, record.prompt + record.generated
        hits = look_up(machine, record.look if record.hits == NONE else (total - 1) // size)
        tokens = min(total - hits * size, budget)
        blocks = blocks_for(hits * size + tokens, size)
        needed = blocks_for(total, size) if state.reserve_full_prompt else blocks
        needed += count_free(machine, hits) - hits
        if needed > state.free:
            return 0
        enter_running(machine, request)
        if record.hits == NONE:
            record.written = count_written(machine, record.look)
            record.kept = record.written
        use_hits(machine, request, hits)
        allocate(machine, request, blocks)
        hash_blocks(machine, request, hits * size + tokens)
        record.computed = hits * size
        if record.hits == NONE:
            learn(machine, state.admitted, record.prompt - hits * size)
            note_admission(machine, request, hits)
        return tokens  # type: ignore[no-any-return]

    return admit


@callable_in_kernels
def whole(machine: Machine, request: int, computed: int, tokens: int) -> int:
    """Return all tokens: a step of attention may end anywhere."""
    return tokens


@callable_in_kernels
def nothing_held(machine: Machine) -> None:
    """Free nothing: attention holds no block until a step is planned."""


@callable_in_kernels
def quiet_until(machine: Machine, request: int, coming: int) -> int:
    """Return `BlockRules.quiet_until`: a request allocates a block, or hashes one."""
    record, size = machine.requests[request], machine.state[0].block_size
    return min(record.allocated * size, (record.hashed + 1) * size - 1 + coming)  # type: ignore[no-any-return]


def one_group(take_block: Callable[[Machine, bool], int] = take) -> BlockRules:
    """Return the rules of requests whose layers all cache every token.

    `take_block` allocates one free block. `several_groups` does the same for one group with LRU,
    but takes 1.3 to 2.8 times as long.
    """
    allocate = allocator(take_block)

    @callable_in_kernels
    def extend(machine: Machine, request: int, tokens: int) -> bool:
        record, state = machine.requests[request], machine.state[0]
        wanted = record.computed + tokens
        blocks = blocks_for(wanted, state.block_size)
        if blocks - record.allocated > state.free:
            return False
        # Most steps fill no block: a test here is much cheaper than a call.
        if blocks > record.allocated:
            allocate(machine, request, blocks)
        hash_filled(machine, request, min(wanted, record.prompt + record.generated))
        return True

    @callable_in_kernels
    def hash_filled(machine: Machine, request: int, tokens: int) -> None:
        if tokens // machine.state[0].block_size > machine.requests[request].hashed:
            hash_blocks(machine, request, tokens)

    admit = admitter(allocate)
    return BlockRules(extend, hash_filled, release_blocks, admit, whole, nothing_held, quiet_until)

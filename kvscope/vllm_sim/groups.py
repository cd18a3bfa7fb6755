"""Blocks of requests: allocated from the pool, hashed, and freed.

Most models have one group of layers, of full attention, which keeps all blocks of a request; only
its blocks may lie in several lanes (a policy's queues). Other models are in `hybrid`.

With a CPU tier, `offload_state` records the blocks that a request takes and frees.

Source: vLLM 0.32.0, vllm/v1/core/single_type_kv_cache_manager.py (FullAttentionManager) and
vllm/v1/core/kv_cache_manager.py (KVCacheManager.allocate_slots, free).
"""

from __future__ import annotations

import numpy as np

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.policies.base import Turn
from kvscope.vllm_sim.group_hits import blocks_for, content_at
from kvscope.vllm_sim.offload_state import WAITING
from kvscope.vllm_sim.pool import (
    give_back,
    give_content,
    goes_in_front,
    holder_of,
    lose_content,
    take,
    use,
)
from kvscope.vllm_sim.state import (
    ALWAYS,
    CHUNKED,
    FULL,
    LINEAR,
    NONE,
    SLIDING,
    Machine,
    has_tier,
)


@callable_in_kernels
def known_tokens(machine: Machine, request: int) -> int:
    """Return the number of a request's prompt and output tokens known so far."""
    record = machine.requests[request]
    return record.prompt + record.generated  # type: ignore[no-any-return]


@callable_in_kernels
def skipped_blocks(machine: Machine, group: int, tokens: int) -> int:
    """Return how many leading blocks of a group no token after the first `tokens` attends to."""
    layout = machine.groups[group]
    if layout.kind == FULL:
        return 0
    if layout.kind == SLIDING:
        skipped = max(0, tokens - layout.window_tokens + 1)
    elif layout.kind == CHUNKED:
        skipped = tokens // layout.window_tokens * layout.window_tokens
    else:
        skipped = max(0, tokens - 1)
    return skipped // layout.block_tokens  # type: ignore[no-any-return]


@callable_in_kernels
def first_held(machine: Machine, request: int, group: int) -> int:
    """Return the first block of a group that a running request has not freed yet."""
    return skipped_blocks(machine, group, machine.requests[request].skipped_for)


@called_by_kernels
def free_unhashed(machine: Machine, row: int, begin: int, end: int) -> None:
    """Free the blocks without a hash in entries [begin, end) of a row of the block table.

    They are the next to be allocated, the last one first. With `unhashed_last` (STATE), free none.
    """
    for at in range(begin, end):
        block = machine.table[row, at]
        if block != NONE and goes_in_front(machine, block):
            give_back(machine, block, 0)


@called_by_kernels
def free_blocks(machine: Machine, request: int, group: int, begin: int, end: int) -> None:
    """Free blocks [begin, end) of a request's group, last first, to lane 0, the only lane."""
    row = machine.requests[request].slot * len(machine.groups) + group
    free_unhashed(machine, row, begin, end)
    for at in range(end - 1, begin - 1, -1):
        block = machine.table[row, at]
        if block != NONE and not goes_in_front(machine, block):
            give_back(machine, block, 0)


@callable_in_kernels
def planned_step(machine: Machine) -> int:
    """Return the step number to record in `Machine.written` for states of the planned step."""
    return machine.state[0].steps + 2  # type: ignore[no-any-return]


@callable_in_kernels
def hash_filled(machine: Machine, request: int, tokens: int, written: int) -> None:
    """Hash those blocks filled by a request's first `tokens` tokens that later requests may hit.

    `written` is the step number to record for states: `planned_step`, or 1 once the step has ended.
    """
    state = machine.state[0]
    if state.draft_tokens > 0 and not state.drops:
        tokens = min(tokens, known_tokens(machine, request) - 1)
    if state.hybrid and (
        state.hashes_always or tokens >= machine.requests[request].hashed + state.hash_tokens
    ):
        machine.grouped.hash_kept(machine, request, tokens, written)
    elif tokens >= machine.requests[request].hashed + state.hash_tokens:
        hash_full(machine, request, tokens)


@called_by_kernels
def hash_full(machine: Machine, request: int, tokens: int) -> None:
    """Hash the blocks of full attention that `tokens` tokens fill."""
    record, size = machine.requests[request], machine.state[0].hash_tokens
    for at in range(record.hashed // size, tokens // size):
        give_content(
            machine, machine.table[record.slot, at], content_at(machine, record.slot, 0, at)
        )
    record.hashed = tokens // size * size


@callable_in_kernels
def hash_planned(machine: Machine, request: int, tokens: int) -> None:
    """Hash the blocks that a request fills in the planned step; record its tokens before it."""
    hash_filled(machine, request, tokens, planned_step(machine))
    record = machine.requests[request]
    record.planned_step = machine.state[0].steps + 1
    record.computed_before = record.computed


@callable_in_kernels
def last_boundary(machine: Machine, tokens: int, unit: int) -> int:
    """Return the last multiple of `unit` within `tokens` tokens where a hit can end.

    The last token is always computed again; with `drops`, a field of `state` set for most drafters,
    a hit's last block, too.
    """
    if machine.state[0].drops:
        return max(0, tokens // unit - 1) * unit
    return (tokens - 1) // unit * unit


@callable_in_kernels
def prefill_end(machine: Machine, request: int) -> int:
    """Return the tokens to prefill: the prompt, or all tokens computed before a preemption."""
    record = machine.requests[request]
    return max(record.prompt, record.prompt + record.generated - 1)  # type: ignore[no-any-return]


@callable_in_kernels
def columns(machine: Machine, request: int, group: int) -> int:
    """Return the used length (blocks and gaps) of a running request's row in the block table."""
    record, layout = machine.requests[request], machine.groups[group]
    ahead, scratch = layout.ahead_tokens, layout.scratch
    if not record.reserves:
        ahead = scratch = 0
    return blocks_for(record.allocated + ahead, layout.block_tokens) + scratch  # type: ignore[no-any-return]


@callable_in_kernels
def unverified(machine: Machine, request: int) -> int:
    """Return how many draft tokens a request's next step and its step in progress have together."""
    record = machine.requests[request]
    return record.drafts + (record.drafted if record.coming > 0 else 0)  # type: ignore[no-any-return]


@called_by_kernels
def lose_new_contents(machine: Machine, request: int) -> None:
    """Remove the hashes of blocks that a request wrote and that no other request uses."""
    record, size = machine.requests[request], machine.state[0].block_size
    for at in range(record.hits, record.hashed // size):
        block = machine.table[record.slot, at]
        if machine.blocks[block].users == 1:
            lose_content(machine, block)


@callable_in_kernels
def turn_of(machine: Machine, request: int, part: int) -> Turn:
    """Return a request as policies see it; its category tells the parts of a path apart, too.

    `part` is the number of the part, from 0 at the path's head; `cuts` divide the path into parts.
    """
    record = machine.requests[request]
    return Turn(
        request,
        record.arrival_s,
        record.history_tokens,
        record.category * (machine.cuts.shape[1] + 1) + part,
        record.next_prompt_tokens,
    )


@called_by_kernels
def last_part(machine: Machine, request: int, finished: bool) -> int:
    """Return the number of the path part with a request's last block, 0 if it is preempted."""
    end = columns(machine, request, 0) - 1 if finished else 0
    return int(np.searchsorted(machine.cuts[request], end, side="right"))


@called_by_kernels
def free_to_lanes(machine: Machine, request: int, finished: bool) -> None:
    """Free all blocks of full attention to the lanes of the policy, the tail first.

    A preempted request is readmitted soon, so none of its blocks is evicted early.
    """
    record, size, cuts = machine.requests[request], machine.state[0].block_size, machine.cuts
    known, p, row = machine.functions, machine.p, record.slot
    blocks, part = columns(machine, request, 0), last_part(machine, request, finished)
    _, lane = known.place(turn_of(machine, request, part), 0, size, p)
    begin = blocks if finished else 0
    free_unhashed(machine, row, 0, blocks)
    for at in range(blocks - 1, -1, -1):
        if at < begin:
            while part > 0 and at < cuts[request, part - 1]:
                part -= 1
            begin, lane = known.place(turn_of(machine, request, part), at + 1, size, p)
            begin = max(begin, int(cuts[request, part - 1]) if part > 0 else 0)
        block = machine.table[row, at]
        if not goes_in_front(machine, block):
            give_back(machine, block, lane)


@called_by_kernels
def release(machine: Machine, request: int, finished: bool) -> None:
    """Free all blocks of a running request, group by group, the tail first.

    The new blocks of a turn that the policy does not admit lose their hash.
    """
    record, state, known = machine.requests[request], machine.state[0], machine.functions
    if has_tier(machine):
        note_release(machine, request, finished)
    if finished and state.selects:
        turn = turn_of(machine, request, last_part(machine, request, finished))
        if not known.admits(turn, machine.p, machine.tables.in_force):
            lose_new_contents(machine, request)
    if state.lanes > 1:
        free_to_lanes(machine, request, finished)
    else:
        for group in range(len(machine.groups)):
            end = columns(machine, request, group)
            free_blocks(machine, request, group, first_held(machine, request, group), end)
    record.allocated = 0
    record.hashed = 0
    record.copy_at = NONE
    free = len(machine.slots) - state.running - machine.offload.state[0].loading
    machine.slots[free] = record.slot
    record.slot = NONE
    state.running -= 1


@called_by_kernels
def note_release(machine: Machine, request: int, finished: bool) -> None:
    """Record that a request leaves the pool; the tier goes on to store a finished one's blocks.

    The stores of a preempted request must end before its blocks are reused.
    """
    off, state, record = machine.offload, machine.offload.state[0], machine.requests[request]
    if finished:
        keep_table(machine, request, state.ended)
        off.members[request].allocated = record.allocated
        off.ended[state.ended] = request
        state.ended += 1
    elif off.members[request].transfers > 0:
        for number in range(state.stores_done, state.stores):
            job = off.stores[number % len(off.stores)]
            if job.request == request:
                job.flush = 1
    off.members[request].stage = WAITING


@callable_in_kernels
def keep_table(machine: Machine, request: int, number: int) -> None:
    """Copy an ended request's block table to entry `number` of `ended_table`, for its stores.

    NONE: never the request's, or another's since. Then free blocks that no later token reads.
    """
    off, record, groups = machine.offload, machine.requests[request], len(machine.groups)
    for group in range(groups):
        if machine.groups[group].kind == LINEAR:
            continue
        kept, row = off.ended_table[number * groups + group], record.slot * groups + group
        full = machine.groups[group].kind == FULL
        for at in range(blocks_for(record.allocated, machine.groups[group].block_tokens)):
            block = machine.table[row, at]
            lost = not full and (
                off.since[row, at] == NONE or off.taken[block] > off.since[row, at]
            )
            kept[at] = NONE if lost else block
    if record.computed >= record.skips_at:
        machine.grouped.free_skipped(machine, request, record.computed)


@callable_in_kernels
def quiet_until(machine: Machine, request: int, coming: int) -> int:
    """Return a decoding request's computed tokens when its blocks may next change, a lower bound.

    Changes are allocation, hashing and freeing; `coming` (0, 1) outputs are in flight before each.
    NONE if the end of a step may hash, too: if hits end within blocks, or its state is rehashed.
    """
    record, state = machine.requests[request], machine.state[0]
    if state.alignment_tokens < state.state_tokens:
        return NONE
    if state.rehashes_states:
        filled = (record.computed + 1 - coming) // state.hash_tokens * state.hash_tokens
        if filled <= last_boundary(machine, record.prompt, state.state_tokens):
            return NONE
    if record.copy_at != NONE:
        return 0
    hashes_at = record.hashed + state.hash_tokens - 1 + coming
    room = record.room - unverified(machine, request)
    return min(room, hashes_at, record.skips_at + coming)  # type: ignore[no-any-return]


@callable_in_kernels
def cut(machine: Machine, request: int, computed: int, tokens: int) -> int:
    """Return how many of a request's next `tokens` tokens a step computes, after `computed` ones.

    All of them, except that with linear attention steps end where states are worth keeping.
    """
    if machine.state[0].state_tokens == 0:
        return tokens
    return machine.grouped.cut(machine, request, computed, tokens)  # type: ignore[no-any-return]


@callable_in_kernels
def free_copied(machine: Machine) -> None:
    """Unpin the blocks that the planned step copies (`copies`), and their copies."""
    if machine.state[0].alignment_tokens < machine.state[0].state_tokens:  # hits end within blocks
        machine.grouped.free_copied(machine)


@called_by_kernels
def blocks_missing(machine: Machine, request: int, begin: int, tokens: int, capped: bool) -> int:
    """Return how many more blocks of all groups a request needs to compute [begin, tokens).

    `capped`: windows count at most the blocks that they hold at a time.
    """
    if machine.state[0].hybrid:
        return machine.grouped.blocks_missing(machine, request, begin, tokens, capped)  # type: ignore[no-any-return]
    layout = machine.groups[0]
    blocks = blocks_for(tokens + layout.ahead_tokens, layout.block_tokens)
    return max(0, blocks - columns(machine, request, 0))


@called_by_kernels
def fits(machine: Machine, request: int, hit: int, cached: int, end: int, reserved: int) -> bool:
    """Return whether the pool has the blocks of a waiting request's first `end` tokens.

    The first `hit` tokens are a hit, tokens up to `cached` are loaded; `reserved` blocks are kept
    for other requests. With `reserve_full_prompt` all known tokens of the request must fit.
    """
    state, row, layout = machine.state[0], machine.path[len(machine.path) - 1], machine.groups[0]
    if state.hybrid:
        return machine.grouped.fits(machine, request, hit, cached, end, reserved)  # type: ignore[no-any-return]
    size, taken = layout.block_tokens, 0
    held = blocks_for(hit, size)
    for at in range(held):
        taken += machine.blocks[holder_of(machine, row[at])].users == 0
    needed = reserved + taken + max(0, blocks_for(end + layout.ahead_tokens, size) - held)
    whole = taken + max(0, blocks_for(known_tokens(machine, request), size) - held)
    enough = not state.reserve_full_prompt or whole <= state.free
    return enough and needed <= state.free  # type: ignore[no-any-return]


@called_by_kernels
def use_hits(machine: Machine, request: int, hit: int, cached: int) -> None:
    """Pin those blocks of a hit (`hit` tokens) that tokens after the first `cached` still read."""
    if machine.state[0].hybrid:
        machine.grouped.use_hits(machine, request, hit, cached)
        return
    record = machine.requests[request]
    for at in range(blocks_for(hit, machine.groups[0].block_tokens)):
        block = holder_of(machine, machine.path[record.slot, at])
        use(machine, block)
        machine.table[record.slot, at] = block
    record.copy_at = NONE
    record.allocated = record.hashed = hit
    record.reserves = False
    record.skipped_for, record.skips_at = cached, ALWAYS


@called_by_kernels
def allocate(machine: Machine, request: int, tokens: int, admitted: bool) -> None:
    """Allocate blocks in all groups, to have room for a request's first `tokens` tokens.

    `admitted`: the request was not running before this plan.
    """
    if machine.state[0].hybrid:
        machine.grouped.allocate(machine, request, tokens, admitted)
        return
    record, layout, again = machine.requests[request], machine.groups[0], False
    size, allocated = layout.block_tokens, max(tokens, record.allocated)
    end = blocks_for(allocated + layout.ahead_tokens, size)
    for at in range(columns(machine, request, 0), end):
        machine.table[record.slot, at] = take(machine, again)
        again = True
    record.room = end * size - layout.ahead_tokens
    record.allocated = allocated
    record.reserves = True


@called_by_kernels
def extend(machine: Machine, request: int, tokens: int) -> bool:
    """Allocate and hash a running request's next `tokens` tokens; False if blocks are lacking.

    Blocks that no later token attends to are freed, except those that a step in progress still
    reads.
    """
    record, state = machine.requests[request], machine.state[0]
    if record.computed >= record.skips_at:
        in_flight = state.in_progress > 0 and record.planned_step == state.steps
        settled = record.computed_before if in_flight else record.computed
        if settled >= record.skips_at:
            machine.grouped.free_skipped(machine, request, settled)
    wanted = record.computed + tokens
    drafted = wanted + unverified(machine, request)
    if tokens == 1 and drafted == record.room + 1 and not state.hybrid:  # most often: one block
        if state.free == 0:
            return False
        machine.table[record.slot, columns(machine, request, 0)] = take(machine, False)
        record.allocated, record.room = drafted, record.room + state.block_size
    elif drafted > record.room or record.copy_at != NONE:
        if blocks_missing(machine, request, record.computed, drafted, False) > state.free:
            return False
        allocate(machine, request, drafted, False)
    hash_planned(machine, request, min(wanted, known_tokens(machine, request)))
    return True

"""Blocks and chunks of requests above a CPU tier: which chunks they load, and which they store.

A chunk belongs to one group of layers, as its blocks do. A prefix is loaded only if the tier holds
all chunks that each group attends to: for full attention all chunks after the hit on the GPU, for
windows the last chunks before the prefix's end. Windows' chunks are stored where a load can end:
before the end of a prompt and where prompts part, with a retention interval also before its
multiples, or before each chunk of full attention.

Linear attention loads one state, at the prefix's end. A state is stored when it is hashed, in an
offer of its own, if the pool keeps it and a chunk ends with it.

vLLM records a request's blocks when it gets them, and removes those that another request has got
since. So a window that a request has passed can be stored until another request gets its blocks.

Source: vLLM 0.32.0 and 0.33.0, vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py
(_lookup_complete_chunks, update_state_after_alloc, _update_req_states,
_build_aligned_boundary_store_jobs, _build_store_jobs), vllm/v1/core/sched/scheduler.py
(Scheduler._request_remaining_blocks) and vllm/v1/core/single_type_kv_cache_manager.py
(SlidingWindowManager.reachable_block_mask, MambaManager.cache_blocks).
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.vllm_sim.chunks import chunk_at, is_held
from kvscope.vllm_sim.group_hits import blocks_for
from kvscope.vllm_sim.groups import (
    blocks_missing,
    first_held,
    known_tokens,
    skipped_blocks,
    use_hits,
)
from kvscope.vllm_sim.offload_state import ANY, MISSING, PENDING, PRESENT, READY, SKIP
from kvscope.vllm_sim.pool import note_block
from kvscope.vllm_sim.state import ALWAYS, FULL, LINEAR, NONE, ROOT, SLIDING, Machine

NO_HORIZON = -1  # a request goes on, and stores no window for its end


@callable_in_kernels
def has_ended(machine: Machine, request: int) -> bool:
    """Return whether a request has generated its last token."""
    return machine.requests[request].finished_s >= 0  # type: ignore[no-any-return]


@callable_in_kernels
def allocated_of(machine: Machine, request: int) -> int:
    """Return the tokens for which a request has blocks, or had them when it ended."""
    if has_ended(machine, request):
        return machine.offload.members[request].allocated  # type: ignore[no-any-return]
    return machine.requests[request].allocated  # type: ignore[no-any-return]


@callable_in_kernels
def fence_block(machine: Machine, request: int, block: int) -> None:
    """Let steps that reuse `block` wait for the newest store, which reads the block.

    They wait only once `request`, which has the block, has ended; from now on if it is ANY.
    """
    off, state = machine.offload, machine.offload.state[0]
    fence = off.fences[state.fences % len(off.fences)]
    fence.job, fence.request, fence.older = state.stores, request, off.fence[block]
    off.fence[block] = state.fences
    state.fences += 1


@callable_in_kernels
def fence_until_ended(machine: Machine, request: int, block: int) -> None:
    """Let steps that reuse `block` after the end of `request` wait for the newest store of it.

    If the request has ended and this plan has reused the block already, the planned step waits.
    """
    off, state = machine.offload, machine.offload.state[0]
    fence_block(machine, request, block)
    if off.taken[block] == state.plan and has_ended(machine, request):
        off.stores[state.stores % len(off.stores)].flush = 1


@callable_in_kernels
def place_of(machine: Machine, group: int, at: int) -> int:
    """Return the place of a group's chunk `at` in its request's list of chunks."""
    state = machine.offload.state[0]
    nodes = (at + 1) * machine.offload.layers[group].chunk_tokens // machine.state[0].block_size
    return (nodes // state.unit_nodes - 1) * state.groups + state.groups - 1 - group  # type: ignore[no-any-return]


@callable_in_kernels
def group_of(machine: Machine, place: int) -> int:
    """Return the group of the chunk at a place."""
    groups = machine.offload.state[0].groups
    return groups - 1 - place % groups  # type: ignore[no-any-return]


@callable_in_kernels
def number_of(machine: Machine, place: int) -> int:
    """Return the number (from 0) within its group of the chunk at a place."""
    off, group = machine.offload, group_of(machine, place)
    nodes = (place // off.state[0].groups + 1) * off.state[0].unit_nodes
    return nodes * machine.state[0].block_size // off.layers[group].chunk_tokens - 1  # type: ignore[no-any-return]


@callable_in_kernels
def chunk_of(machine: Machine, group: int, at: int) -> int:
    """Return the index in `chunks` of a group's chunk `at` on request `front`'s path (STATE)."""
    path = machine.path[len(machine.path) - 1]
    return chunk_at(machine.offload, path, place_of(machine, group, at))


@callable_in_kernels
def chunks_before(machine: Machine, group: int, end: int) -> int:
    """Return how many chunks before a load's end a group's window covers (0: all chunks)."""
    layers, layout = machine.offload.layers[group], machine.groups[group]
    if layout.kind != SLIDING:
        return layers.window_chunks  # type: ignore[no-any-return]
    padding = -end % layers.chunk_tokens
    wanted = blocks_for(layout.window_tokens - 1 + padding, layers.chunk_tokens)
    return max(layers.window_chunks, wanted)  # type: ignore[no-any-return]


@callable_in_kernels
def find_leading(machine: Machine, request: int, group: int, begin: int, end: int) -> int:
    """Return how many of a group's chunks [begin, end) the tier holds, from `begin` without a gap.

    Queue reads of missing chunks that storage has. SKIP while a chunk is stored, read or asked for.
    """
    off, pending, reads = machine.offload, False, 0
    count = end - begin
    for at in range(begin, end):
        chunk = chunk_of(machine, group, at)
        if is_held(off, chunk):
            pending = pending or off.chunks[chunk].users == PENDING
            continue
        answer = MISSING
        if off.state[0].storage:
            answer = machine.storage.read_chunk(machine, request, at, reads == 0)
        if answer == MISSING:
            count = at - begin
            break
        pending = True
        reads += answer == PRESENT
    return SKIP if pending else count


@callable_in_kernels
def find_window(machine: Machine, group: int, begin: int, end: int, first: int) -> int:
    """Return the number of chunks from `begin` to the end of the last window that the tier holds.

    Of the group's chunks [begin, end), a window at `end` needs `first`, any other `window_chunks`
    (of LAYERS). Chunks from `begin` without a gap are a window, too, since the GPU has the blocks
    before them. 0 without a window, SKIP if a chunk of the window is being stored.
    """
    off, wanted, run, pending = machine.offload, first, 0, False
    for at in range(end - 1, begin - 1, -1):
        chunk = chunk_of(machine, group, at)
        if is_held(off, chunk):
            pending = pending or off.chunks[chunk].users == PENDING
            run += 1
        else:
            wanted, run, pending = off.layers[group].window_chunks, 0, False
        if run == wanted:
            return SKIP if pending else at - begin + wanted
    return SKIP if pending else run


@callable_in_kernels
def find_chunks(machine: Machine, request: int, group: int, hit: int, most: int, keyed: int) -> int:
    """Return the prefix (tokens) up to which the tier has a group's chunks after the hit.

    It ends with the chunk of token `most` at the latest, and with the last of the `keyed` chunks of
    the group that the request fills. 0 without chunks, SKIP if the request has to wait.
    """
    tokens = machine.offload.layers[group].chunk_tokens
    begin, end = hit // tokens, min(blocks_for(most, tokens), keyed)
    if machine.offload.layers[group].window_chunks == 0:
        count = find_leading(machine, request, group, begin, end)
    else:
        first = chunks_before(machine, group, min(most, end * tokens))
        count = find_window(machine, group, begin, end, first)
    return count if count <= 0 else (begin + count) * tokens


@callable_in_kernels
def is_loading(machine: Machine, hit: int, end: int) -> bool:
    """Return whether another request is loading a chunk between `hit` and `end` tokens."""
    off = machine.offload
    for group in range(len(machine.groups)):
        tokens = off.layers[group].chunk_tokens
        first, last = hit // tokens, blocks_for(end, tokens)
        if off.layers[group].window_chunks > 0:
            first = max(first, last - chunks_before(machine, group, end))
        for at in range(first, last):
            if off.chunks[chunk_of(machine, group, at)].loading:
                return True
    return False


@called_by_kernels
def look_up_chunks(machine: Machine, request: int, hit: int, total: int) -> int:
    """Return how many tokens of a request's `total` known ones to load after the first `hit`.

    SKIP if the request waits for chunks, 0 if there is nothing to load. Full attention is looked up
    first, then windows, widest first; if a group has fewer tokens than earlier groups, these are
    looked up again. Windows leave the last token to compute, states all tokens after the last
    state's chunk.
    """
    off, groups = machine.offload, len(machine.groups)
    windows, loadable, waits, begin = off.state[0].full_groups, 0, False, 0
    states = max(1, machine.state[0].state_tokens * off.state[0].blocks_per_chunk)
    most = (total - int(windows < groups)) // states * states
    while begin < groups:
        again = groups
        for place in range(begin, groups):
            group = off.order[place]
            tokens = off.layers[group].chunk_tokens
            most = min(most, total // tokens * tokens)
            if most - hit < tokens:
                return 0
            if off.state[0].storage:
                machine.storage.poll(machine, False)
            end = find_chunks(machine, request, group, hit, most, total // tokens)
            if end == 0:
                return 0
            if end == SKIP:
                waits = True
            else:
                most = min(most, end)
            if most - hit < tokens:
                return 0
            if most - hit < loadable:
                if waits:
                    waits, again = False, 0
                elif place > windows and again == groups:
                    again = windows
            loadable = most - hit
        begin = again
    if waits or is_loading(machine, hit, hit + loadable):
        return SKIP
    return loadable


@called_by_kernels
def list_loads(machine: Machine, request: int, hit: int, cached: int) -> int:
    """Write the places of chunks to load for tokens [hit, cached) to `offered`; return how many."""
    off, bpc, count = machine.offload, machine.offload.state[0].blocks_per_chunk, 0
    for group in range(len(machine.groups)):
        size, tokens = machine.groups[group].block_tokens, off.layers[group].chunk_tokens
        first, end = max(blocks_for(hit, size), skipped_blocks(machine, group, cached)), 0
        if first < blocks_for(cached, size):
            end = blocks_for(cached, tokens)
        for at in range(first // bpc, end):
            off.offered[count] = place_of(machine, group, at)
            count += 1
        if machine.groups[group].kind != LINEAR:
            off.next_chunk[request, group] = blocks_for(cached, tokens)
    return count


@callable_in_kernels
def block_in(machine: Machine, request: int, row: int, group: int, at: int) -> int:
    """Return block `at` of a request, NONE if it was freed and another request has taken it.

    `row` is its slot, or its index in `ended` after its end. For blocks of chunks before the next
    one to offer, the answer is the one that `pass_over` recorded.
    """
    off, number = machine.offload, row * len(machine.groups) + group
    ended = has_ended(machine, request)
    block = off.ended_table[number, at] if ended else machine.table[number, at]
    if machine.groups[group].kind == FULL:
        return block  # type: ignore[no-any-return]
    if ended:
        passed = off.next_chunk[request, group] * off.state[0].blocks_per_chunk
        lost = block != NONE and at >= passed and off.taken[block] == off.state[0].plan
        return NONE if lost else block
    since = off.since[number, at]
    return NONE if since == NONE or off.taken[block] > since else block


@callable_in_kernels
def pass_over(machine: Machine, request: int, row: int, group: int, end: int) -> None:
    """Fix the answers of `block_in` for chunks before `end`: later reuse of blocks is ignored."""
    off, bpc = machine.offload, machine.offload.state[0].blocks_per_chunk
    number = row * len(machine.groups) + group
    for at in range(off.next_chunk[request, group] * bpc, end * bpc):
        lost = block_in(machine, request, row, group, at) == NONE
        off.since[number, at] = NONE if lost else ALWAYS


@callable_in_kernels
def stores_block(
    machine: Machine, request: int, group: int, at: int, filled: int, horizon: int
) -> bool:
    """Return whether a later load may need a group's block `at`, of the request's `filled` ones.

    `horizon` is the number of leading blocks after which a load can end: those of an ended request
    or of a prompt; NO_HORIZON without such an end.
    """
    off, state, layout = machine.offload, machine.state[0], machine.groups[group]
    size, needed = layout.block_tokens, layout.blocks_for_hit
    alignment = off.state[0].alignment_tokens
    if layout.kind != SLIDING or alignment == 0 or alignment % size:
        return True
    segment = (state.segment_tokens if state.keeps_boundaries else alignment) // size
    if segment > 0:
        if needed >= segment or at % segment >= segment - needed:
            return True
        rest = horizon % segment if horizon != NO_HORIZON else 0
        if rest > 0 and max(horizon - rest, horizon - needed) <= at < min(filled, horizon):
            return True
    if state.keeps_boundaries:
        record = machine.requests[request]
        for boundary in (record.prompt - 1, record.junction):
            end = boundary // alignment * alignment // size
            if end - needed <= at < end:
                return True
    return False


@callable_in_kernels
def stores_chunk(
    machine: Machine, request: int, row: int, group: int, at: int, filled: int, horizon: int
) -> bool:
    """Return whether to offer a group's chunk `at`: a load may need it, and its last block remains.

    With `whole_chunks` (OFFLOAD), all its blocks that a load may need must remain. The request
    fills `filled` chunks; a load can end after `horizon` ones (NO_HORIZON: unknown).
    """
    bpc, needed = machine.offload.state[0].blocks_per_chunk, False
    if block_in(machine, request, row, group, (at + 1) * bpc - 1) == NONE:
        return False
    blocks = horizon * bpc if horizon != NO_HORIZON else NO_HORIZON
    for block in range(at * bpc, (at + 1) * bpc):
        if stores_block(machine, request, group, block, filled * bpc, blocks):
            needed = True
            lost = block_in(machine, request, row, group, block) == NONE
            if lost and machine.offload.state[0].whole_chunks:
                return False
    return needed


@callable_in_kernels
def first_again(machine: Machine, group: int, end: int) -> int:
    """Return the first of an ended request's `end` chunks to offer again, `end` for none.

    A load can end where the request ended. While that was unknown, the sliding window before it was
    offered only up to the last multiple of `alignment_tokens`, so the rest is offered again.
    """
    state, layout = machine.offload.state[0], machine.groups[group]
    alignment = state.alignment_tokens
    if layout.kind != SLIDING or alignment == 0 or alignment % layout.block_tokens:
        return end
    blocks, segment = end * state.blocks_per_chunk, alignment // layout.block_tokens
    return blocks // segment * segment // state.blocks_per_chunk  # type: ignore[no-any-return]


@callable_in_kernels
def list_stores(machine: Machine, request: int, row: int, tokens: int) -> int:
    """Write the places of chunks newly filled by `tokens` tokens to `offered`; return how many.

    Most steps fill no chunk, and this check of each group is much cheaper than a call.
    """
    off, more = machine.offload, has_ended(machine, request)
    for group in range(len(machine.groups)):
        off.ends[group] = off.next_chunk[request, group]
        more = more or tokens >= (off.ends[group] + 1) * off.layers[group].chunk_tokens
    return list_filled(machine, request, row, tokens) if more else 0


@called_by_kernels
def list_filled(machine: Machine, request: int, row: int, tokens: int) -> int:
    """Do the same as `list_stores`, for a request that may have filled chunks."""
    off, state, record = machine.offload, machine.offload.state[0], machine.requests[request]
    ended, known, count = has_ended(machine, request), known_tokens(machine, request), 0
    allocated = allocated_of(machine, request)
    for group in range(len(machine.groups)):
        size, chunk = machine.groups[group].block_tokens, off.layers[group].chunk_tokens
        passed = off.next_chunk[request, group]
        blocks = min(min(tokens, known) // size, blocks_for(allocated, size))
        end = blocks // state.blocks_per_chunk
        if machine.groups[group].kind == LINEAR:  # see list_states
            continue
        off.ends[group] = max(passed, end)
        prompt, begin = record.prompt // chunk, passed
        again = ended and end != prompt and state.reconsiders
        if again:
            begin = min(begin, first_again(machine, group, end))
        if end <= begin:
            continue
        horizon = NO_HORIZON
        if not machine.state[0].keeps_boundaries:
            horizon = end if ended else prompt if end <= prompt else NO_HORIZON
        for at in range(begin, end):
            if at < passed and stores_passed(machine, request, group, at, end, prompt):
                continue
            if stores_chunk(machine, request, row, group, at, end, horizon):
                off.offered[count] = place_of(machine, group, at)
                count += 1
    return count


@callable_in_kernels
def advance(machine: Machine, request: int, row: int) -> None:
    """Move a request's `next_chunk` behind the chunks of each group that the tier has accepted."""
    off = machine.offload
    passes_over = off.state[0].reconsiders and not has_ended(machine, request)
    for group in range(len(machine.groups)):
        if passes_over:
            pass_over(machine, request, row, group, off.ends[group])
        off.next_chunk[request, group] = off.ends[group]


@callable_in_kernels
def stores_passed(
    machine: Machine, request: int, group: int, at: int, filled: int, prompt: int
) -> bool:
    """Return whether an ended request offered its chunk `at` during the prefill of its prompt.

    The request has `filled` chunks, its prompt `prompt` chunks.
    """
    bpc = machine.offload.state[0].blocks_per_chunk
    for block in range(at * bpc, (at + 1) * bpc):
        if stores_block(machine, request, group, block, filled * bpc, prompt * bpc):
            return True
    return False


@callable_in_kernels
def list_states_of(machine: Machine, request: int, count: int) -> int:
    """List a request's states hashed in this plan behind the first `count` entries of `states`.

    Return the new number of entries. Of a chunk of states, only the state at its end is stored.
    """
    off, record = machine.offload, machine.requests[request]
    bpc, hashed = off.state[0].blocks_per_chunk, record.hashed
    if off.state[0].prompt_only:
        hashed = min(hashed, record.prompt)
    for group in range(len(machine.groups)):
        if machine.groups[group].kind != LINEAR:
            continue
        row, first = record.slot * len(machine.groups) + group, first_held(machine, request, group)
        begin, end = off.next_chunk[request, group], hashed // off.layers[group].chunk_tokens
        for at in range(begin, end):
            last = (at + 1) * bpc - 1
            block = machine.table[row, last] if last >= first else NONE
            if block != NONE and machine.blocks[block].content != ROOT:
                off.states[count, 0], off.states[count, 1] = request, place_of(machine, group, at)
                count += 1
        off.next_chunk[request, group] = max(begin, end)
    return count


@called_by_kernels
def list_states(machine: Machine) -> int:
    """List the states of linear attention to offer in this plan; return their number.

    They are those hashed in this plan. Entries of `states` are (request, place of the chunk), first
    of planned requests, then of loaded requests for which the pool has no room yet.
    """
    off, planned, count = machine.offload, machine.state[0].planned, 0
    if machine.state[0].state_tokens == 0:
        return 0
    for at in range(planned + off.state[0].loading):
        request = machine.batch[1, at] if at < planned else off.loading[at - planned]
        if at < planned or off.members[request].stage == READY:
            count = list_states_of(machine, request, count)
    return count


@callable_in_kernels
def fence_chunk(machine: Machine, request: int, row: int, place: int) -> None:
    """Let steps that reuse blocks of a chunk wait for the newest store, which reads them."""
    bpc, group = machine.offload.state[0].blocks_per_chunk, group_of(machine, place)
    number = number_of(machine, place)
    if machine.groups[group].kind == LINEAR:
        last = (number + 1) * bpc - 1
        fence_block(machine, ANY, machine.table[row * len(machine.groups) + group, last])
        return
    for at in range(number * bpc, (number + 1) * bpc):
        block = block_in(machine, request, row, group, at)
        if machine.groups[group].kind == FULL:
            fence_until_ended(machine, request, block)
        elif block != NONE:
            fence_block(machine, ANY, block)


@callable_in_kernels
def blocks_still_needed(machine: Machine, request: int) -> int:
    """Return how many blocks a prompt's rest takes; windows count at most those held at a time."""
    record, known = machine.requests[request], known_tokens(machine, request)
    planned = record.planned_step == machine.state[0].steps + 1
    begin = record.computed_before if planned else record.computed
    return blocks_missing(machine, request, begin, known, True)


@callable_in_kernels
def fits_loaded(machine: Machine, request: int, end: int) -> bool:
    """Return whether a loaded request can run up to `end` tokens; free blocks it reads no more."""
    state, record = machine.state[0], machine.requests[request]
    if state.reserve_full_prompt and blocks_still_needed(machine, request) > state.free:
        return False
    if record.computed >= record.skips_at:
        machine.grouped.free_skipped(machine, request, record.computed)
    missing = blocks_missing(machine, request, record.computed, end, False)
    return missing <= state.free  # type: ignore[no-any-return]


@callable_in_kernels
def enter(machine: Machine, request: int, hit: int, cached: int) -> None:
    """Pin the blocks of a request's hit (`use_hits`); let it offer only states after the hit."""
    off = machine.offload
    use_hits(machine, request, hit, cached)
    for group in range(len(machine.groups)):
        if machine.groups[group].kind == LINEAR:
            off.next_chunk[request, group] = hit // off.layers[group].chunk_tokens


@callable_in_kernels
def note_table(machine: Machine, request: int) -> None:
    """Record that a request gets its tables' blocks: the step waits for stores that read them."""
    record = machine.requests[request]
    for group in range(len(machine.groups)):
        size, row = machine.groups[group].block_tokens, record.slot * len(machine.groups) + group
        for at in range(first_held(machine, request, group), blocks_for(record.allocated, size)):
            if machine.table[row, at] != NONE:
                note_block(machine, machine.table[row, at])

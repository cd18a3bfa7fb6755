"""Blocks of requests: groups of layers, each with its block table, in one pool.

A block belongs to one group and its content is the pair (group, node): node + group * nodes. Full
attention keeps all blocks of a request; sliding windows and chunks free those that no later token
looks at. Linear attention ("linear") writes one block a step, the state after its last token, and
its steps end where blocks do. A prefix is a hit only where all groups have what they need there.
Most models have one group of full attention; only its blocks may lie in several lanes.

With a `prefix_match_unit` below the blocks of states, hits end within blocks, at the end of an
earlier prompt: a step ends there, and the block is copied before anything else is written to it,
by the request that goes on as by those that hit it. Such a block is found by what its prompt ends
with (its group's node there), and once it is full by its own end as well.

Above a CPU tier, what a request is given and leaves is noted for the tier (`offload_state`).

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_coordinator.py (HybridKVCacheCoordinator),
vllm/v1/core/single_type_kv_cache_manager.py (FullAttentionManager, SlidingWindowManager,
ChunkedLocalAttentionManager, MambaManager in mode "align"), vllm/v1/core/kv_cache_manager.py
(KVCacheManager.allocate_slots, free), vllm/v1/core/sched/scheduler.py
(Scheduler._mamba_block_aligned_split) and vllm/v1/kv_cache_interface.py
(is_mamba_prefill_checkpoint_valid).
"""

from __future__ import annotations

import numpy as np

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.policies.base import Turn
from kvscope.vllm_sim.group_hits import (
    block_of,
    blocks_for,
    content_after,
    content_at,
    forget,
    second_of,
)
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
    ROOT,
    SLIDING,
    Machine,
    has_tier,
)


@callable_in_kernels
def known_tokens(machine: Machine, request: int) -> int:
    """Return the tokens of a request that are known, prompt and output."""
    record = machine.requests[request]
    return record.prompt + record.generated  # type: ignore[no-any-return]


@callable_in_kernels
def skipped_blocks(machine: Machine, group: int, tokens: int) -> int:
    """Return how many leading blocks of a group no token after the first `tokens` looks at."""
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
    """Free those of blocks begin..end of a block table that go in front: the last one goes first.

    Linear attention lacks some.
    """
    for at in range(begin, end):
        block = machine.table[row, at]
        if block != NONE and goes_in_front(machine, block):
            give_back(machine, block, 0)


@called_by_kernels
def free_blocks(machine: Machine, request: int, group: int, begin: int, end: int) -> None:
    """Free blocks begin..end of a group, the last one first, to the only lane."""
    row = machine.requests[request].slot * len(machine.groups) + group
    free_unhashed(machine, row, begin, end)
    for at in range(end - 1, begin - 1, -1):
        block = machine.table[row, at]
        if block != NONE and not goes_in_front(machine, block):
            give_back(machine, block, 0)


@called_by_kernels
def free_skipped(machine: Machine, request: int, tokens: int) -> None:
    """Free what no token after the first `tokens` looks at, and note when that is more."""
    record = machine.requests[request]
    record.skips_at = ALWAYS
    for group in range(len(machine.groups)):
        layout = machine.groups[group]
        if layout.kind == FULL:
            continue
        begin, end = first_held(machine, request, group), skipped_blocks(machine, group, tokens)
        if begin < end:
            free_blocks(machine, request, group, begin, end)
        if layout.kind == SLIDING:
            following = (end + 1) * layout.block_tokens + layout.window_tokens - 1
        elif layout.kind == LINEAR:
            following = (end + 1) * layout.block_tokens + 1
        else:
            following = (tokens // layout.window_tokens + 1) * layout.window_tokens
        record.skips_at = min(record.skips_at, following)
    record.skipped_for = tokens


@callable_in_kernels
def ends_segment(machine: Machine, group: int, at: int) -> bool:
    """Return whether a hit at the end of a segment, as the retention counts them, needs a block."""
    layout, interval = machine.groups[group], machine.state[0].segment_tokens
    if interval == 0:
        return False
    needed, segment = layout.blocks_for_hit + layout.drafted, interval // layout.block_tokens
    before = at - layout.drafted  # a drafter's block is the one behind the segment
    return needed >= segment or (before >= 0 and before % segment >= segment - needed)  # type: ignore[no-any-return]


@callable_in_kernels
def is_retained(machine: Machine, request: int, group: int, at: int) -> bool:
    """Return whether a group keeps block `at` of a request for later ones, by the retention."""
    record, layout, state = machine.requests[request], machine.groups[group], machine.state[0]
    if layout.kind not in (SLIDING, LINEAR):
        return True
    needed, size = layout.blocks_for_hit + layout.drafted, layout.block_tokens
    if ends_segment(machine, group, at):
        return True
    if not state.keeps_boundaries:
        return False
    dropped = state.alignment_tokens if state.draft_tokens > 0 else 0
    junction = record.junction if record.junction > 0 else -state.alignment_tokens  # none
    for boundary in (
        max(0, record.prompt - 1 - dropped),
        max(0, record.prompt - max(1, dropped)),
        junction,
    ):
        end = boundary // state.alignment_tokens * state.alignment_tokens // size + layout.drafted
        if end - needed <= at < end:
            return True
    return False


@callable_in_kernels
def planned_step(machine: Machine) -> int:
    """Return how a node notes that a block gets its content in the step being planned."""
    return machine.state[0].steps + 2  # type: ignore[no-any-return]


@callable_in_kernels
def hash_filled(machine: Machine, request: int, tokens: int, written: int) -> None:
    """Hash the blocks that `tokens` tokens fill, up to where a hit may end, that groups keep.

    The contents of states are noted as `written`. Most steps fill none: a test here is much
    cheaper than a call.
    """
    state = machine.state[0]
    if state.hashes_always or tokens >= machine.requests[request].hashed + state.hash_tokens:
        hash_kept(machine, request, tokens, written)


@callable_in_kernels
def hash_planned(machine: Machine, request: int, tokens: int) -> None:
    """Hash what a request fills in the step being planned, and note how far it is before."""
    hash_filled(machine, request, tokens, planned_step(machine))
    record = machine.requests[request]
    record.planned_step = machine.state[0].steps + 1
    record.computed_before = record.computed


@callable_in_kernels
def note_states(machine: Machine, request: int, at: int, written: int) -> None:
    """Note the states in blocks `at` of a request as `written`, where it holds them."""
    slot = machine.requests[request].slot
    for group in range(len(machine.groups)):
        if machine.groups[group].kind != LINEAR or at < first_held(machine, request, group):
            continue
        if machine.table[slot * len(machine.groups) + group, at] != NONE:
            machine.written[content_at(machine, slot, group, at)] = written


@callable_in_kernels
def rehash_state(machine: Machine, request: int, filled: int, written: int) -> None:
    """Note the state before a prompt's end as `written`, where so many tokens fill its block."""
    size, prompt = max(1, machine.state[0].state_tokens), machine.requests[request].prompt
    if filled // size == last_boundary(machine, prompt, size) // size:
        note_states(machine, request, filled // size - 1, written)


@called_by_kernels
def hash_kept(machine: Machine, request: int, tokens: int, written: int) -> None:
    """Hash blocks as `hash_filled` does.

    With `rehashes_states` so is the state before a prompt's end as long as the request holds it.
    """
    record, state = machine.requests[request], machine.state[0]
    filled, exported = tokens // state.hash_tokens * state.hash_tokens, NONE
    within = state.alignment_tokens < state.state_tokens
    elsewhere = within or state.draft_tokens > 0  # exports another state than its block would have
    if elsewhere and exported_states(machine, request, record.computed, tokens) > 0:
        exported = blocks_for(tokens, state.state_tokens) - 2
    if filled <= record.hashed:
        if state.rehashes_states:
            rehash_state(machine, request, filled, written)
    else:
        for group in range(len(machine.groups)):
            layout, row = machine.groups[group], record.slot * len(machine.groups) + group
            size, linear, full = layout.block_tokens, layout.kind == LINEAR, layout.kind == FULL
            begin = max(record.hashed // size, first_held(machine, request, group))
            for at in range(begin, filled // size):
                block = machine.table[row, at]
                if linear and at == exported:
                    continue
                if full or (block != NONE and is_retained(machine, request, group, at)):
                    content = content_at(machine, record.slot, group, at)
                    if within or not full:
                        forget(machine, block)
                    give_content(machine, block, content)
                    if linear:
                        machine.written[content] = written
        record.hashed = filled
    if within:
        hash_prompt_end(machine, request, tokens, exported, written)
    elif exported != NONE:
        hash_exports(machine, request, tokens, exported, written)


@callable_in_kernels
def hash_prompt_end(
    machine: Machine, request: int, tokens: int, exported: int, written: int
) -> None:
    """Hash the blocks of a request in which hits of its prompt can end, when it has `tokens`.

    A state that the step exports is in block `exported`.
    """
    record, state = machine.requests[request], machine.state[0]
    boundary = (record.prompt - 1) // state.alignment_tokens * state.alignment_tokens
    at = boundary // state.state_tokens
    for group in range(len(machine.groups)):
        row = record.slot * len(machine.groups) + group
        if machine.groups[group].kind == LINEAR and exported != NONE:
            hash_export(machine, request, group, tokens, machine.table[row, exported], written)
        elif boundary > tokens or boundary == at * state.state_tokens:
            continue
        elif machine.groups[group].kind == FULL:
            block = machine.table[row, at]
            content = content_after(machine, record.slot, group, boundary)
            second = second_of(machine, block)
            if machine.blocks[block].content == ROOT:
                give_content(machine, block, content)
            elif (
                machine.blocks[block].content != content and machine.blocks[second].content == ROOT
            ):
                give_content(machine, second, content)
        elif boundary == tokens and machine.table[row, at] != NONE:
            content = content_after(machine, record.slot, group, boundary)
            forget(machine, machine.table[row, at])
            give_content(machine, machine.table[row, at], content)
            machine.written[content] = written
            record.copy_at = at


@callable_in_kernels
def hash_exports(machine: Machine, request: int, tokens: int, exported: int, written: int) -> None:
    """Hash the states that a step to `tokens` exports into block `exported` of each group."""
    for group in range(len(machine.groups)):
        if machine.groups[group].kind == LINEAR:
            row = machine.requests[request].slot * len(machine.groups) + group
            hash_export(machine, request, group, tokens, machine.table[row, exported], written)


@called_by_kernels
def hash_export(
    machine: Machine, request: int, group: int, tokens: int, block: int, written: int
) -> None:
    """Hash the block of the state that a step to `tokens` exports, if a hit can end there."""
    record, size = machine.requests[request], machine.state[0].state_tokens
    unit = machine.state[0].alignment_tokens
    exported = last_boundary(machine, tokens, unit)
    kept = exported == last_boundary(machine, record.prompt, unit) or exported == record.junction
    if kept or (exported % size == 0 and ends_segment(machine, group, exported // size - 1)):
        content = content_after(machine, record.slot, group, exported)
        give_content(machine, block, content)
        machine.written[content] = written


@callable_in_kernels
def last_boundary(machine: Machine, tokens: int, unit: int) -> int:
    """Return the last multiple of `unit` before the end of `tokens` tokens where a hit can end.

    The last token is computed again; for a drafter, the last block of a hit is.
    """
    if machine.state[0].draft_tokens > 0:
        return max(0, tokens // unit - 1) * unit
    return (tokens - 1) // unit * unit


@callable_in_kernels
def prefill_end(machine: Machine, request: int) -> int:
    """Return where the prompt of a request ends, or what it computed before its preemption."""
    record = machine.requests[request]
    return max(record.prompt, record.prompt + record.generated - 1)  # type: ignore[no-any-return]


@called_by_kernels
def exports_between(machine: Machine, begin: int, end: int, known: int) -> bool:
    """Return whether the step begin..end can write the last state before `known` tokens, too."""
    state = machine.state[0]
    if state.export_tokens == 0:
        return False
    size, unit = state.state_tokens, state.alignment_tokens
    at = last_boundary(machine, known, unit)
    return (  # type: ignore[no-any-return]
        begin % unit == 0
        and begin + unit <= at < end
        and blocks_for(end, size) - 2 > (begin - 1) // size
        and (at - begin) % state.export_tokens == 0
    )


@callable_in_kernels
def exported_states(machine: Machine, request: int, begin: int, end: int) -> int:
    """Return 1 if the step begin..end takes a block for the state before its last block, else 0.

    Where few states are kept, only the step that ends a prompt does.
    """
    if machine.state[0].segment_tokens == 0 and end < prefill_end(machine, request):
        return 0
    return int(exports_between(machine, begin, end, end))


@callable_in_kernels
def columns(machine: Machine, request: int, group: int) -> int:
    """Return how many blocks of its row a running request has taken or passed in a group."""
    record, layout = machine.requests[request], machine.groups[group]
    ahead, scratch = layout.ahead_tokens, layout.scratch
    if not record.reserves:
        ahead = scratch = 0
    return blocks_for(record.allocated + ahead, layout.block_tokens) + scratch  # type: ignore[no-any-return]


@callable_in_kernels
def unverified(machine: Machine, request: int) -> int:
    """Return how many drafts a step computes beside known tokens, with those of one in progress."""
    record = machine.requests[request]
    return record.drafts + (record.drafted if record.coming > 0 else 0)  # type: ignore[no-any-return]


@called_by_kernels
def blocks_missing(machine: Machine, request: int, begin: int, tokens: int, capped: bool) -> int:
    """Return how many more blocks a running request needs, over all groups, to step begin..tokens.

    `capped`: at most what the request holds at any time, not what it would without freeing.
    """
    missing = 0
    states = 1 + exported_states(machine, request, begin, tokens)
    copies = int(machine.requests[request].copy_at != NONE)
    for group in range(len(machine.groups)):
        layout = machine.groups[group]
        size, linear = layout.block_tokens, layout.kind == LINEAR
        blocks = blocks_for(tokens + layout.ahead_tokens, size) + layout.scratch
        if capped and not linear:
            blocks = min(blocks, layout.most_blocks)
        more = max(0, blocks - columns(machine, request, group))
        missing += copies + min(more, states) if linear else more
    return missing


@callable_in_kernels
def hit_block(machine: Machine, row: int, group: int, at: int, hit: int) -> int:
    """Return a group's cached block `at` of the path in `row`, of which `hit` tokens are a hit.

    Full attention may have more of it, as the last look-up says.
    """
    layout = machine.groups[group]
    if not machine.state[0].hybrid:
        return holder_of(machine, machine.path[row, at])
    cached = machine.specs[0].cached_tokens if layout.kind == FULL else hit
    if (at + 1) * layout.block_tokens <= cached:
        return block_of(machine, content_at(machine, row, group, at))
    return block_of(machine, content_after(machine, row, group, cached))


@callable_in_kernels
def fits(machine: Machine, request: int, hit: int, cached: int, end: int, reserved: int) -> bool:
    """Return whether the pool has the blocks that a waiting request takes for its first `end`.

    Of these tokens `hit` are a hit, and those up to `cached` are loaded; others have `reserved`
    some blocks. With `reserve_full_prompt` so has it for all its tokens, at most what it holds at
    any time. A state that is computed in the step being planned can be read in the next one only:
    no pool is enough. A block in which the hit ends is copied. The state at the end of a hit counts
    also where a later one is loaded.
    """
    state, front = machine.state[0], len(machine.path) - 1
    total, needed, needed_whole = known_tokens(machine, request), reserved, 0
    states = 1 + exported_states(machine, request, cached, end)
    states_whole = 1 + exported_states(machine, request, cached, total)
    for group in range(len(machine.groups)):
        layout = machine.groups[group]
        size = layout.block_tokens
        required, whole, hits = (
            blocks_for(end + layout.ahead_tokens, size),
            blocks_for(total, size),
            blocks_for(hit, size),
        )
        skipped = skipped_blocks(machine, group, cached)
        if layout.kind == LINEAR:
            required = min(required, hits + states) + layout.scratch
            whole = min(whole, hits + states_whole) + layout.scratch
            skipped = skipped_blocks(machine, group, hit)
            if hits > 0:
                written = machine.written[content_after(machine, front, group, hit)]
                if written == planned_step(machine):
                    return False
        else:
            whole = min(whole, layout.most_blocks)
        held = max(skipped, hits)
        taken = int(hit % size > 0)
        for at in range(skipped, hits):
            if machine.blocks[hit_block(machine, front, group, at, hit)].users == 0:
                taken += 1
        needed += max(0, required - held) + taken
        needed_whole += max(0, whole - held) + taken
    enough = not state.reserve_full_prompt or needed_whole <= state.free
    return enough and needed <= state.free  # type: ignore[no-any-return]


@callable_in_kernels
def use_hits(machine: Machine, request: int, hit: int, cached: int) -> None:
    """Pin the cached blocks that a request needs after `cached` tokens; `hit` are a hit."""
    record, state, partial = machine.requests[request], machine.state[0], False
    for group in range(len(machine.groups)):
        row = record.slot * len(machine.groups) + group
        begin, size = skipped_blocks(machine, group, cached), machine.groups[group].block_tokens
        for at in range(begin, blocks_for(hit, size)):
            block = hit_block(machine, record.slot, group, at, hit)
            use(machine, block)
            machine.table[row, at] = block
        partial = partial or hit % size > 0
    record.copy_at = hit // max(1, state.state_tokens) if partial else NONE
    record.allocated = hit
    record.reserves = False
    record.hashed = hit // max(1, state.state_tokens) * max(1, state.state_tokens)
    record.skipped_for = cached
    record.skips_at = 0 if state.hybrid else ALWAYS


@callable_in_kernels
def lose_new_contents(machine: Machine, request: int) -> None:
    """Have the blocks that a request wrote, and no other one uses, lose their content."""
    record, size = machine.requests[request], machine.state[0].block_size
    for at in range(record.hits, record.hashed // size):
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
def last_part(machine: Machine, request: int, finished: bool) -> int:
    """Return the part of a path that its last block is in; of one that is preempted the first."""
    end = columns(machine, request, 0) - 1 if finished else 0
    return int(np.searchsorted(machine.cuts[request], end, side="right"))


@callable_in_kernels
def free_to_lanes(machine: Machine, request: int, finished: bool) -> None:
    """Free all blocks of full attention to the lanes of the policy, the tail first.

    A request that has not finished will be back at once, so none of its blocks are evicted early.
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
    """Free all blocks of a request that runs, group by group, the tail first.

    The new blocks of a turn that the policy does not admit lose their content.
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


@callable_in_kernels
def note_release(machine: Machine, request: int, finished: bool) -> None:
    """Note that a request leaves the pool: the tier still stores the blocks of one that ended.

    What a preempted one has the tier store has to be stored before its blocks are given away.
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
    """Keep the blocks of the `number`th request that ended; those it has left are freed first."""
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
        free_skipped(machine, request, record.computed)


@callable_in_kernels
def cut(machine: Machine, request: int, computed: int, tokens: int) -> int:
    """Return how many of a request's next `tokens` tokens a step computes after `computed` ones.

    With linear attention, steps of a prompt end at a block's end, before the prompt's last token
    and at a junction, where a state is worth keeping; 0 where the budget ends before that. A step
    that exports the last state before a prompt's end need not end there.
    """
    record, state = machine.requests[request], machine.state[0]
    size = state.state_tokens
    if size == 0:
        return tokens
    known, prefilled = known_tokens(machine, request), prefill_end(machine, request)
    if computed >= prefilled:
        return tokens
    end = computed + tokens
    exports = end >= prefilled and exports_between(machine, computed, end, prefilled)
    if end < prefilled:
        aligned = end // size * size
        if aligned > computed or size <= state.max_num_batched_tokens:
            end = aligned
    junction = computed + (record.junction - computed) // size * size
    if not computed < record.junction < end:
        junction = NONE
    block_end = last = prompt_end = NONE
    if not exports:
        if computed % size:
            block_end = (computed // size + 1) * size
        last = last_boundary(machine, known, size)
        prompt_end = last_boundary(machine, record.prompt, state.alignment_tokens)
        if prompt_end < last:
            prompt_end = NONE
    first = end
    for stop in (block_end, last, prompt_end, junction):
        if computed < stop < first:
            first = stop
    return max(0, first - computed)


@callable_in_kernels
def move_contents(machine: Machine, source: int, copy: int) -> None:
    """Have a copy of a state take its hash over; it can be read in the next step only."""
    content = machine.blocks[source].content
    if content != ROOT:
        lose_content(machine, source)
        give_content(machine, copy, content)
        machine.written[content] = planned_step(machine)


@called_by_kernels
def free_copied(machine: Machine) -> None:
    """Free the blocks that the planned step copies, and the copies, where no request has them."""
    groups, copies = machine.groups, machine.copies
    if machine.state[0].alignment_tokens >= machine.state[0].state_tokens:
        return  # no hit ends within a block
    for group in range(len(groups) - 1, -1, -1):  # to the front, as in `free_unhashed`
        for at in range(groups[group].copied - 1, -1, -1):
            if goes_in_front(machine, copies[group, at]):
                give_back(machine, copies[group, at], 0)
    for group in range(len(groups)):
        for at in range(groups[group].copied):
            if not goes_in_front(machine, copies[group, at]):
                give_back(machine, copies[group, at], 0)
        groups[group].copied = 0


@callable_in_kernels
def quiet_until(machine: Machine, request: int, coming: int) -> int:
    """Return how many tokens a request that decodes has computed when its blocks change next.

    Or earlier; it has `coming` tokens on their way before a step. It allocates blocks, hashes some
    or frees some. Where hits end within blocks, and where states are rehashed, the end of a step
    hashes too: NONE.
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
def take_cleared(machine: Machine, again: bool) -> int:
    """Allocate a free block without any hash; `again` as in `take`."""
    block = take(machine, again)
    if machine.state[0].alignment_tokens < machine.state[0].state_tokens:
        forget(machine, block)
    return block


@callable_in_kernels
def copy_block(machine: Machine, request: int, group: int, admitted: bool) -> None:
    """Have the step being planned copy the block of a group in which a hit ends.

    A new request (`admitted`) writes to the copy; one that has computed to the end of its prompt
    keeps the block, and the copy is for later requests.
    """
    record, layout = machine.requests[request], machine.groups[group]
    row = record.slot * len(machine.groups) + group
    source, taken = machine.table[row, record.copy_at], take_cleared(machine, False)
    if admitted:
        machine.table[row, record.copy_at] = taken
        use(machine, taken)
    else:
        move_contents(machine, source, taken)
        use(machine, source)
    machine.copies[group, layout.copied] = source
    machine.copies[group, layout.copied + 1] = taken
    layout.copied += 2


@callable_in_kernels
def pass_states(machine: Machine, request: int, group: int, end: int) -> int:
    """Leave no blocks for states before block `end`; return where the row of the group ends then.

    A drafter's scratch blocks are the last of the row: those before `end` move behind it.
    """
    record, table = machine.requests[request], machine.table
    row, before = record.slot * len(machine.groups) + group, columns(machine, request, group)
    scratch = machine.groups[group].scratch if record.reserves else 0
    length = max(before, end)
    for at in range(before, end):
        table[row, at] = NONE
    for at in range(before - scratch, min(before, end)):
        table[row, length] = table[row, at]
        table[row, at] = NONE
        length += 1
    return length


@called_by_kernels
def allocate(machine: Machine, request: int, tokens: int, admitted: bool) -> None:
    """Allocate blocks in all groups until so many tokens have room, after what has to be copied.

    `admitted` as in `copy_block`.
    """
    record, again = machine.requests[request], False
    record.room = ALWAYS
    states = 1 + exported_states(machine, request, record.computed, tokens)
    for group in range(len(machine.groups)):
        layout = machine.groups[group]
        kind, size, ahead = layout.kind, layout.block_tokens, layout.ahead_tokens
        row = record.slot * len(machine.groups) + group
        if record.copy_at != NONE and (admitted or kind == LINEAR):
            copy_block(machine, request, group, admitted)
        end = blocks_for(max(tokens, record.allocated) + ahead, size)
        first = first_held(machine, request, group)
        begin = max(columns(machine, request, group), first)
        if kind == LINEAR:
            begin = pass_states(machine, request, group, end - states)
        for at in range(begin, end + layout.scratch):
            machine.table[row, at] = take_cleared(machine, again)
            again = True
        if has_tier(machine) and kind != FULL:
            since = 0 if admitted else blocks_for(record.allocated, size)
            note_since(machine, row, since, end, first)
        record.room = min(record.room, end * size - ahead)
    record.allocated = max(tokens, record.allocated)
    record.reserves = True
    record.copy_at = NONE


@callable_in_kernels
def note_since(machine: Machine, row: int, begin: int, end: int, first: int) -> None:
    """Note when a request got its blocks begin..end; those before `first` it has left already."""
    off = machine.offload
    for at in range(begin, end):
        off.since[row, at] = off.state[0].plan if at >= first else NONE


@called_by_kernels
def extend(machine: Machine, request: int, tokens: int) -> bool:
    """Allocate and hash for so many more tokens of a running request; False: too few are free.

    Free what no token looks at any more. A step in progress still looks at the blocks that its
    tokens need.
    """
    record, state = machine.requests[request], machine.state[0]
    if record.computed >= record.skips_at:
        in_flight = state.in_progress > 0 and record.planned_step == state.steps
        settled = record.computed_before if in_flight else record.computed
        if settled >= record.skips_at:
            free_skipped(machine, request, settled)
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

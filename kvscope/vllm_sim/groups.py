"""Requests of a hybrid model: several groups of layers, each with its block table, in one pool.

A block belongs to one group and its content is the pair (group, node): node + group * nodes. Full
attention keeps all blocks of a request; sliding windows and chunks free those that no later token
looks at. Linear attention ("linear") writes one block a step, the state after its last token, and
its steps end where blocks do. A prefix is a hit only where all groups have what they need there.

With a `prefix_match_unit` below the blocks of states, hits end within blocks, at the end of an
earlier prompt: a step ends there, and the block is copied before anything else is written to it,
by the request that goes on as by those that hit it. Such a block is found by what its prompt ends
with (its group's node there), and once it is full by its own end as well.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_coordinator.py (HybridKVCacheCoordinator),
vllm/v1/core/single_type_kv_cache_manager.py (FullAttentionManager, SlidingWindowManager,
ChunkedLocalAttentionManager, MambaManager in mode "align"), vllm/v1/core/kv_cache_manager.py
(allocate_slots), vllm/v1/core/sched/scheduler.py (Scheduler._mamba_block_aligned_split) and
vllm/v1/kv_cache_interface.py (is_mamba_prefill_checkpoint_valid).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.core.jit import callable_in_kernels
from kvscope.vllm_sim.admission import (
    BlockRules,
    blocks_for,
    enter_running,
    note_admission,
)
from kvscope.vllm_sim.group_hits import (
    block_of,
    content_after,
    content_at,
    forget,
    look_up_groups,
    second_of,
)
from kvscope.vllm_sim.pool import give_back, give_content, goes_in_front, lose_content, take, use
from kvscope.vllm_sim.state import (
    ALWAYS,
    CHUNKED,
    FULL,
    LINEAR,
    NONE,
    ROOT,
    SLIDING,
    Machine,
)


@callable_in_kernels
def skipped_blocks(machine: Machine, group: int, tokens: int) -> int:
    """Return how many leading blocks of a group no token after the first `tokens` looks at."""
    layout = machine.groups[group]
    skipped = 0
    if layout.kind == SLIDING:
        skipped = max(0, tokens - layout.window_tokens + 1)
    elif layout.kind == CHUNKED:
        skipped = tokens // layout.window_tokens * layout.window_tokens
    elif layout.kind == LINEAR:
        skipped = max(0, tokens - 1)
    return skipped // layout.block_tokens  # type: ignore[no-any-return]


@callable_in_kernels
def first_held(machine: Machine, request: int, group: int) -> int:
    """Return the first block of a group that a running request has not freed yet."""
    return skipped_blocks(machine, group, machine.requests[request].skipped_for)


@callable_in_kernels
def free_blocks(machine: Machine, request: int, group: int, begin: int, end: int) -> None:
    """Free blocks begin..end of a group, the last one first; linear attention lacks some."""
    row = machine.requests[request].slot * len(machine.groups) + group
    for at in range(begin, end):  # to the front of their queue: the last one freed goes first
        block = machine.table[row, at]
        if block != NONE and goes_in_front(machine, block):
            give_back(machine, block, 0)
    for at in range(end - 1, begin - 1, -1):
        block = machine.table[row, at]
        if block != NONE and not goes_in_front(machine, block):
            give_back(machine, block, 0)


@callable_in_kernels
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
    needed, segment = layout.blocks_for_hit, interval // layout.block_tokens
    return needed >= segment or at % segment >= segment - needed  # type: ignore[no-any-return]


@callable_in_kernels
def is_retained(machine: Machine, request: int, group: int, at: int) -> bool:
    """Return whether a group keeps block `at` of a request for later ones, by the retention."""
    record, layout, state = machine.requests[request], machine.groups[group], machine.state[0]
    if layout.kind not in (SLIDING, LINEAR):
        return True
    needed, size = layout.blocks_for_hit, layout.block_tokens
    if ends_segment(machine, group, at):
        return True
    if not state.keeps_boundaries:
        return False
    for boundary in (record.prompt - 1, record.junction):
        end = boundary // state.alignment_tokens * state.alignment_tokens // size
        if end - needed <= at < end:
            return True
    return False


@callable_in_kernels
def hash_groups(machine: Machine, request: int, tokens: int) -> None:
    """Hash the blocks that `tokens` tokens fill, up to where a hit may end, that groups keep."""
    hash_kept(machine, request, tokens, 1)


@callable_in_kernels
def planned_step(machine: Machine) -> int:
    """Return how a node notes that a block gets its content in the step being planned."""
    return machine.state[0].steps + 2  # type: ignore[no-any-return]


@callable_in_kernels
def note_states(machine: Machine, request: int, at: int, written: int) -> None:
    """Note the states in blocks `at` of a request as `written`, where it holds them."""
    slot = machine.requests[request].slot
    for group in range(len(machine.groups)):
        if machine.groups[group].kind != LINEAR or at < first_held(machine, request, group):
            continue
        if machine.table[slot * len(machine.groups) + group, at] != NONE:
            machine.nodes[content_at(machine, slot, group, at)].written = written


@callable_in_kernels
def hash_kept(machine: Machine, request: int, tokens: int, written: int) -> None:
    """Hash blocks as `hash_groups` does; the contents of states are noted as `written`.

    With `rehashes_states` so is the state before a prompt's end as long as the request holds it.
    """
    record, state = machine.requests[request], machine.state[0]
    alignment = max(state.alignment_tokens, state.state_tokens)
    filled, exported = tokens // alignment * alignment, NONE
    within = state.alignment_tokens < state.state_tokens
    if within and exported_states(machine, request, record.computed, tokens) > 0:
        exported = blocks_for(tokens, state.state_tokens) - 2
    if filled <= record.hashed:
        blocks = filled // max(1, state.state_tokens)
        if state.rehashes_states and blocks == (record.prompt - 1) // max(1, state.state_tokens):
            note_states(machine, request, blocks - 1, written)
    else:
        for group in range(len(machine.groups)):
            size, row = machine.groups[group].block_tokens, record.slot * len(machine.groups)
            begin = max(record.hashed // size, first_held(machine, request, group))
            for at in range(begin, filled // size):
                block = machine.table[row + group, at]
                if at == exported and machine.groups[group].kind == LINEAR:
                    continue
                if block != NONE and is_retained(machine, request, group, at):
                    content = content_at(machine, record.slot, group, at)
                    forget(machine, block)
                    give_content(machine, block, content)
                    if machine.groups[group].kind == LINEAR:
                        machine.nodes[content].written = written
        record.hashed = filled
    if within:
        hash_prompt_end(machine, request, tokens, exported, written)


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
            machine.nodes[content].written = written
            record.copy_at = at


@callable_in_kernels
def hash_export(
    machine: Machine, request: int, group: int, tokens: int, block: int, written: int
) -> None:
    """Hash the block of the state that a step to `tokens` exports, if a hit can end there."""
    record, size = machine.requests[request], machine.state[0].state_tokens
    unit = machine.state[0].alignment_tokens
    exported = (tokens - 1) // unit * unit
    kept = exported == (record.prompt - 1) // unit * unit or exported == record.junction
    if kept or (exported % size == 0 and ends_segment(machine, group, exported // size - 1)):
        content = content_after(machine, record.slot, group, exported)
        give_content(machine, block, content)
        machine.nodes[content].written = written


@callable_in_kernels
def prefill_end(machine: Machine, request: int) -> int:
    """Return where the prompt of a request ends, or what it computed before its preemption."""
    record = machine.requests[request]
    return max(record.prompt, record.prompt + record.generated - 1)  # type: ignore[no-any-return]


@callable_in_kernels
def exports_between(machine: Machine, begin: int, end: int, known: int) -> bool:
    """Return whether the step begin..end can write the last state before `known` tokens, too."""
    state = machine.state[0]
    size, unit = state.state_tokens, state.alignment_tokens
    at = (known - 1) // unit * unit
    return (  # type: ignore[no-any-return]
        state.export_tokens > 0
        and begin % unit == 0
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
def blocks_missing(machine: Machine, request: int, begin: int, tokens: int, capped: bool) -> int:
    """Return how many more blocks a running request needs, over all groups, to step begin..tokens.

    `capped` as in `blocks_to_admit`.
    """
    allocated, missing = machine.requests[request].allocated, 0
    states = 1 + exported_states(machine, request, begin, tokens)
    copies = int(machine.requests[request].copy_at != NONE)
    for group in range(len(machine.groups)):
        layout = machine.groups[group]
        size, linear = layout.block_tokens, layout.kind == LINEAR
        blocks = blocks_for(tokens, size)
        if capped and not linear:
            blocks = min(blocks, layout.most_blocks)
        more = max(0, blocks - blocks_for(allocated, size))
        missing += copies + min(more, states) if linear else more
    return missing


@callable_in_kernels
def hit_block(machine: Machine, row: int, group: int, at: int, hit: int, leading: int) -> int:
    """Return a group's cached block `at` of the path in `row`, of which `hit` tokens are a hit.

    Full attention has `leading` tokens of it.
    """
    layout = machine.groups[group]
    cached = leading if layout.kind == FULL else hit
    end = min(cached, (at + 1) * layout.block_tokens)
    return block_of(machine, content_after(machine, row, group, end))


@callable_in_kernels
def blocks_to_admit(
    machine: Machine, request: int, hit: int, leading: int, cached: int, tokens: int, capped: bool
) -> int:
    """Return how many free blocks a request takes for `tokens` tokens, of which `hit` are a hit.

    Up to `cached` ones are loaded; `leading` as in `hit_block`. `capped`: at most what the request
    holds at any time, not what it would without freeing. A state that is computed in the step being
    planned can be read in the next one only: no pool is enough. A block in which the hit ends is
    copied. The state at the end of a hit counts also where a later one is loaded.
    """
    front, needed = len(machine.path) - 1, 0
    states = 1 + exported_states(machine, request, cached, tokens)
    for group in range(len(machine.groups)):
        layout = machine.groups[group]
        size = layout.block_tokens
        required, hits = blocks_for(tokens, size), blocks_for(hit, size)
        skipped = skipped_blocks(machine, group, cached)
        if layout.kind == LINEAR:
            required = min(required, hits + states)
            skipped = skipped_blocks(machine, group, hit)
            if hits > 0:
                state = machine.nodes[content_after(machine, front, group, hit)]
                if state.written == planned_step(machine):
                    return ALWAYS
        elif capped:
            required = min(required, layout.most_blocks)
        needed += max(0, required - max(skipped, hits)) + int(hit % size > 0)
        for at in range(skipped, hits):
            if machine.blocks[hit_block(machine, front, group, at, hit, leading)].users == 0:
                needed += 1
    return needed


@callable_in_kernels
def use_group_hits(machine: Machine, request: int, hit: int, leading: int, cached: int) -> None:
    """Pin the cached blocks that a request needs after `cached` tokens, of which `hit` are a hit.

    `leading` as in `hit_block`.
    """
    record, partial = machine.requests[request], False
    for group in range(len(machine.groups)):
        row = record.slot * len(machine.groups) + group
        begin, size = skipped_blocks(machine, group, cached), machine.groups[group].block_tokens
        for at in range(begin, blocks_for(hit, size)):
            block = hit_block(machine, record.slot, group, at, hit, leading)
            use(machine, block)
            machine.table[row, at] = block
        partial = partial or hit % size > 0
    state = machine.state[0]
    record.copy_at = hit // max(1, state.state_tokens) if partial else NONE
    record.allocated = hit
    record.hashed = hit // max(1, state.state_tokens) * max(1, state.state_tokens)
    record.skipped_for = cached
    record.skips_at = 0


@callable_in_kernels
def count_group_written(machine: Machine, most: int) -> int:
    """Return how many leading nodes of the front path, at most `most`, full attention ever held.

    Of a model without full attention its first group counts.
    """
    front, group, blocks = len(machine.path) - 1, machine.specs[0].begin, 0
    layout = machine.groups[group]
    while (blocks + 1) * layout.nodes_per_block <= most and machine.nodes[
        content_at(machine, front, group, blocks)
    ].written:
        blocks += 1
    return blocks * layout.nodes_per_block  # type: ignore[no-any-return]


@callable_in_kernels
def release_groups(machine: Machine, request: int, finished: bool) -> None:
    """Free all blocks of a request that runs, group by group, the tail first."""
    record, state = machine.requests[request], machine.state[0]
    for group in range(len(machine.groups)):
        end = blocks_for(record.allocated, machine.groups[group].block_tokens)
        free_blocks(machine, request, group, first_held(machine, request, group), end)
    record.allocated = 0
    record.hashed = 0
    record.copy_at = NONE
    free = len(machine.slots) - state.running - machine.offload.state[0].loading
    machine.slots[free] = record.slot
    record.slot = NONE
    state.running -= 1


@callable_in_kernels
def note_step(machine: Machine, request: int) -> None:
    """Note which step computes for a request next, and how far it is before."""
    record = machine.requests[request]
    record.planned_step = machine.state[0].steps + 1
    record.computed_before = record.computed


@callable_in_kernels
def cut(machine: Machine, request: int, computed: int, tokens: int) -> int:
    """Return how many of a request's next `tokens` tokens a step computes after `computed` ones.

    With linear attention, steps of a prompt end at a block's end, before the prompt's last token
    and at a junction, where a state is worth keeping; 0 where the budget ends before that. A step
    that exports the last state before a prompt's end need not end there.
    """
    record, state = machine.requests[request], machine.state[0]
    size, known = state.state_tokens, record.prompt + record.generated
    prefilled = prefill_end(machine, request)
    if size == 0 or computed >= prefilled:
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
        last = (known - 1) // size * size
        prompt_end = (record.prompt - 1) // state.alignment_tokens * state.alignment_tokens
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
        machine.nodes[content].written = planned_step(machine)


@callable_in_kernels
def free_copied(machine: Machine) -> None:
    """Free the blocks that the planned step copies, and the copies, where no request has them."""
    groups, copies = machine.groups, machine.copies
    for group in range(len(groups) - 1, -1, -1):  # to the front, as in `free_blocks`
        for at in range(groups[group].copied - 1, -1, -1):
            if goes_in_front(machine, copies[group, at]):
                give_back(machine, copies[group, at], 0)
    for group in range(len(groups)):
        for at in range(groups[group].copied):
            if not goes_in_front(machine, copies[group, at]):
                give_back(machine, copies[group, at], 0)
        groups[group].copied = 0


@callable_in_kernels
def quiet_groups_until(machine: Machine, request: int, coming: int) -> int:
    """Return `BlockRules.quiet_until`: a request allocates blocks, hashes some or frees some.

    Where hits end within blocks, and where states are rehashed, the end of a step hashes too.
    """
    record, state = machine.requests[request], machine.state[0]
    alignment = max(state.alignment_tokens, state.state_tokens)
    if state.alignment_tokens < state.state_tokens:
        return NONE
    if state.rehashes_states:
        filled = (record.computed + 1 - coming) // alignment * alignment
        if filled // state.state_tokens <= (record.prompt - 1) // state.state_tokens:
            return NONE
    if record.copy_at != NONE:
        return 0
    hashes_at = (record.hashed // alignment + 1) * alignment - 1 + coming
    return min(record.room, hashes_at, record.skips_at + coming)  # type: ignore[no-any-return]


def group_allocator(take_block: Callable[[Machine, bool], int]) -> Callable[..., None]:
    """Return the function that allocates blocks in all groups until so many tokens have room.

    First the copy of a block in which a hit ends, which a new request writes to (`admitted`); one
    that has computed to the end of its prompt keeps the block, and the copy is for later requests.
    """

    @callable_in_kernels
    def take_cleared(machine: Machine) -> int:
        block = take_block(machine, False)
        forget(machine, block)
        return block

    @callable_in_kernels
    def copy(machine: Machine, request: int, group: int, admitted: bool) -> None:
        record, layout = machine.requests[request], machine.groups[group]
        row = record.slot * len(machine.groups) + group
        source, taken = machine.table[row, record.copy_at], take_cleared(machine)
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
    def allocate(machine: Machine, request: int, tokens: int, admitted: bool) -> None:
        record = machine.requests[request]
        record.room = ALWAYS
        states = 1 + exported_states(machine, request, record.computed, tokens)
        for group in range(len(machine.groups)):
            kind, size = machine.groups[group].kind, machine.groups[group].block_tokens
            row = record.slot * len(machine.groups) + group
            if record.copy_at != NONE and (admitted or kind == LINEAR):
                copy(machine, request, group, admitted)
            end = blocks_for(max(tokens, record.allocated), size)
            begin = max(blocks_for(record.allocated, size), first_held(machine, request, group))
            for at in range(begin, end):
                passed = kind == LINEAR and at < end - states
                machine.table[row, at] = NONE if passed else take_cleared(machine)
            record.room = min(record.room, end * size)
        record.allocated = max(tokens, record.allocated)
        record.copy_at = NONE

    return allocate


def group_extender(allocate: Callable[..., None]) -> Callable[..., bool]:
    """Return the function `extend` of BlockRules, which frees what no token looks at any more.

    A step in progress still looks at the blocks that its tokens need.
    """

    @callable_in_kernels
    def extend(machine: Machine, request: int, tokens: int) -> bool:
        record, state = machine.requests[request], machine.state[0]
        in_flight = state.in_progress > 0 and record.planned_step == state.steps
        settled = record.computed_before if in_flight else record.computed
        if settled >= record.skips_at:
            free_skipped(machine, request, settled)
        wanted = record.computed + tokens
        if wanted > record.room or record.copy_at != NONE:
            if blocks_missing(machine, request, record.computed, wanted, False) > state.free:
                return False
            allocate(machine, request, wanted, False)
        known = record.prompt + record.generated
        hash_kept(machine, request, min(wanted, known), planned_step(machine))
        note_step(machine, request)
        return True

    return extend


def group_admitter(allocate: Callable[..., None]) -> Callable[..., Any]:
    """Return the function `admit` of BlockRules."""

    @callable_in_kernels
    def admit(machine: Machine, request: int, budget: int) -> int:
        record, state = machine.requests[request], machine.state[0]
        size, total = state.block_size, record.prompt + record.generated
        look = record.look if record.hits == NONE else (total - 1) // size
        hit, junction = look_up_groups(machine, look * size, False)
        leading = machine.specs[0].cached_tokens
        record.junction = junction
        tokens = cut(machine, request, hit, min(total - hit, budget))
        if tokens == 0:
            return 0
        if (
            state.reserve_full_prompt
            and blocks_to_admit(machine, request, hit, leading, hit, total, True) > state.free
        ):
            return 0
        needed = blocks_to_admit(machine, request, hit, leading, hit, hit + tokens, False)
        if needed > state.free:
            return 0
        enter_running(machine, request)
        if record.hits == NONE:
            record.kept = look_up_groups(machine, look * size, True)[0] // size
            written = count_group_written(machine, record.look)
            record.written = max(hit // size, record.kept, written)
            note_admission(machine, request, hit // size)
        use_group_hits(machine, request, hit, leading, hit)
        record.computed = hit
        allocate(machine, request, hit + tokens, True)
        hash_kept(machine, request, hit + tokens, planned_step(machine))
        note_step(machine, request)
        return tokens

    return admit


def several_groups() -> BlockRules:
    """Return the rules of a hybrid model's requests; blocks leave in vLLM's own order, LRU."""
    return group_rules(group_allocator(take))


def group_rules(allocate: Callable[..., None]) -> BlockRules:
    """Return the rules of a hybrid model's requests, for which `allocate` allocates."""
    extend, admit = group_extender(allocate), group_admitter(allocate)
    return BlockRules(
        extend, hash_groups, release_groups, admit, cut, free_copied, quiet_groups_until
    )

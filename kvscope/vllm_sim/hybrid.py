"""Blocks of hybrid models: several groups of layers, each with its block table, in one pool.

A block belongs to one group and its content is the pair (group, node): node + group * nodes. Full
attention keeps all blocks of a request; sliding windows and chunks free blocks that no later token
attends to. Linear attention writes one block a step, the state after the step's last token, and its
steps end at block ends. A prefix is a hit only if all groups have the blocks needed at its end.

With a `prefix_match_unit` below the blocks of states, hits end within blocks, at the end of an
earlier prompt: a step ends there, and each request that continues from there (the earlier request,
or one that hits) copies the block before it writes to it. Look-ups find such a block by its group's
node at the prompt's end, and once the block is full by the node at the block's end, too.

A step can also export a state: it writes a second, earlier state into a block of its own, the last
one before the step's end at which a hit can end.

Engines call these functions by their addresses (`GroupFunctions`), so that they are not compiled
for models with layers of one kind, and only once for engines with and without a CPU tier.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_coordinator.py (HybridKVCacheCoordinator),
vllm/v1/core/single_type_kv_cache_manager.py (FullAttentionManager, SlidingWindowManager,
ChunkedLocalAttentionManager, MambaManager in mode "align"),
vllm/v1/core/sched/scheduler.py (Scheduler._mamba_block_aligned_split) and
vllm/v1/kv_cache_interface.py (is_mamba_prefill_checkpoint_valid).
"""

from __future__ import annotations

from typing import Any

from kvscope.core.jit import Function, callable_in_kernels, called_by_kernels
from kvscope.vllm_sim.group_hits import blocks_for, content_after, content_at, was_held
from kvscope.vllm_sim.groups import (
    columns,
    first_held,
    free_blocks,
    known_tokens,
    last_boundary,
    planned_step,
    prefill_end,
    skipped_blocks,
)
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
    GroupFunctions,
    Machine,
    has_tier,
)


def free_skipped(machine: Any, request: int, tokens: int) -> None:
    """Free blocks that no token after the first `tokens` attends to.

    Of the request, `skips_at` becomes the computed tokens at which more can be freed, `skipped_for`
    becomes `tokens`.
    """
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
    """Return whether a hit at the end of a retention interval needs block `at` of a group."""
    layout, interval = machine.groups[group], machine.state[0].segment_tokens
    if interval == 0:
        return False
    needed, segment = layout.blocks_for_hit + layout.drafted, interval // layout.block_tokens
    before = at - layout.drafted  # a drafter's block is the one behind the segment
    return needed >= segment or (before >= 0 and before % segment >= segment - needed)  # type: ignore[no-any-return]


@callable_in_kernels
def is_retained(machine: Machine, request: int, group: int, at: int) -> bool:
    """Return whether to hash a request's block `at` of a group, since later hits may need it.

    True for full and chunked attention; for windows and states, before multiples of
    `segment_tokens` and, with `keeps_boundaries`, before the prompt's end and the junction (STATE).
    """
    record, layout, state = machine.requests[request], machine.groups[group], machine.state[0]
    if layout.kind not in (SLIDING, LINEAR):
        return True
    needed, size = layout.blocks_for_hit + layout.drafted, layout.block_tokens
    if ends_segment(machine, group, at):
        return True
    if not state.keeps_boundaries:
        return False
    dropped = state.alignment_tokens if state.drops else 0
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
def note_states(machine: Machine, request: int, at: int, written: int) -> None:
    """Record `written` as the step that wrote the states in block `at` of the linear groups."""
    slot = machine.requests[request].slot
    for group in range(len(machine.groups)):
        if machine.groups[group].kind != LINEAR or at < first_held(machine, request, group):
            continue
        if machine.table[slot * len(machine.groups) + group, at] != NONE:
            machine.written[content_at(machine, slot, group, at)] = written


@callable_in_kernels
def rehash_state(machine: Machine, request: int, filled: int, written: int) -> None:
    """Record `written` as the step that wrote the last state of a prompt at which a hit can end.

    Only if that state is in the last block of states that the request's first `filled` tokens fill.
    """
    size, prompt = max(1, machine.state[0].state_tokens), machine.requests[request].prompt
    if filled // size == last_boundary(machine, prompt, size) // size:
        note_states(machine, request, filled // size - 1, written)


@callable_in_kernels
def hashed_blocks(machine: Machine, group: int, tokens: int) -> int:
    """Return how many leading blocks of a group are hashed once `tokens` tokens are computed.

    Blocks are hashed up to the last possible end of a hit, a drafter's window one block further.
    """
    layout, alignment = machine.groups[group], machine.state[0].alignment_tokens
    size = layout.block_tokens
    if alignment <= machine.state[0].hash_tokens:
        return tokens // size  # type: ignore[no-any-return]
    aligned = tokens // alignment * alignment
    more = layout.drafted * size if aligned > 0 else 0
    return min(tokens, aligned + more) // size  # type: ignore[no-any-return]


def hash_kept(machine: Any, request: int, tokens: int, written: int) -> None:
    """Hash those blocks of all groups, filled by a request's first `tokens` tokens, that are kept.

    `written` is recorded as the step of the states. With `rehashes_states` (STATE), a later step is
    recorded, too, for the last state of a prompt at which a hit can end.
    """
    record, state = machine.requests[request], machine.state[0]
    filled, exported = tokens // state.hash_tokens * state.hash_tokens, NONE
    within = state.alignment_tokens < state.state_tokens
    elsewhere = within or state.drops  # exports another state than its block would have
    if elsewhere and exported_states(machine, request, record.computed, tokens) > 0:
        exported = blocks_for(tokens, state.state_tokens) - 2
    if filled <= record.hashed:
        if state.rehashes_states:
            rehash_state(machine, request, filled, written)
    else:
        for group in range(len(machine.groups)):
            layout, row = machine.groups[group], record.slot * len(machine.groups) + group
            linear, full = layout.kind == LINEAR, layout.kind == FULL
            begin = hashed_blocks(machine, group, record.hashed)
            begin = max(begin, first_held(machine, request, group))
            for at in range(begin, hashed_blocks(machine, group, filled)):
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
    """Hash the blocks in which hits on a request's prompt can end, after a step up to `tokens`.

    Of full attention it is the block with the last such end. Of linear attention it is block
    `exported` of the request, to which the step writes an earlier state than that at its end; if
    `exported` is NONE, the block with the state at the last such end, but only if the step ends
    there: the request copies this block before it writes on. `written`: the states' step number.
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
    """Hash block `exported` of linear groups, if kept: a step up to `tokens` wrote a state there.

    It is not the state at the step's end, but an earlier one. `written`: the step number to record.
    """
    for group in range(len(machine.groups)):
        if machine.groups[group].kind == LINEAR:
            row = machine.requests[request].slot * len(machine.groups) + group
            hash_export(machine, request, group, tokens, machine.table[row, exported], written)


@called_by_kernels
def hash_export(
    machine: Machine, request: int, group: int, tokens: int, block: int, written: int
) -> None:
    """Hash `block` if its state is kept: the second, earlier one that a step up to `tokens` writes.

    Kept are states at the prompt's last possible end of a hit, at the request's `junction`, and at
    multiples of `segment_tokens` (STATE). `written`: the step number to record.
    """
    record, size = machine.requests[request], machine.state[0].state_tokens
    unit = machine.state[0].alignment_tokens
    exported = last_boundary(machine, tokens, unit)
    kept = exported == last_boundary(machine, record.prompt, unit) or exported == record.junction
    if kept or (exported % size == 0 and ends_segment(machine, group, exported // size - 1)):
        content = content_after(machine, record.slot, group, exported)
        give_content(machine, block, content)
        machine.written[content] = written


def blocks_missing(machine: Any, request: int, begin: int, tokens: int, capped: bool) -> int:
    """Return how many blocks a request lacks for [begin, tokens); see `groups.blocks_missing`."""
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


@called_by_kernels
def exports_between(machine: Machine, begin: int, end: int, known: int) -> bool:
    """Return whether a step over tokens [begin, end) can write a second state, within it.

    It is the last state at which a hit on the request's first `known` tokens can end; the state at
    the step's own end is written in any case.
    """
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
    """Return 1 if a step over [begin, end) takes one more block, for a state before `end`, else 0.

    At a retention interval of 0, only the step that ends a prompt writes a second state.
    """
    if machine.state[0].segment_tokens == 0 and end < prefill_end(machine, request):
        return 0
    return int(exports_between(machine, begin, end, end))


@callable_in_kernels
def hit_block(machine: Machine, row: int, group: int, at: int, hit: int) -> int:
    """Return a group's cached block `at` of the path in `row`, for a hit of `hit` tokens.

    Full attention's block is looked up by its own cached prefix, which may be longer than the hit.
    """
    layout = machine.groups[group]
    cached = machine.specs[0].cached_tokens if layout.kind == FULL else hit
    if (at + 1) * layout.block_tokens <= cached:
        return block_of(machine, content_at(machine, row, group, at))
    return block_of(machine, content_after(machine, row, group, cached))


def fits(machine: Any, request: int, hit: int, cached: int, end: int, reserved: int) -> bool:
    """Return whether the pool has the blocks of a waiting request's first `end` tokens.

    The first `hit` tokens are a hit, tokens up to `cached` are loaded; `reserved` blocks are kept
    for other requests. With `reserve_full_prompt` all known tokens must fit, windows with the
    blocks that they hold at a time. False while the planned step still computes the state at the
    hit's end. A block in which the hit ends takes one more for its copy. The state at the hit's end
    counts even if a later state is loaded.
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


def use_hits(machine: Any, request: int, hit: int, cached: int) -> None:
    """Pin those blocks of a hit (`hit` tokens) that tokens after the first `cached` still read."""
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
    record.skips_at = 0


def cut(machine: Any, request: int, computed: int, tokens: int) -> int:
    """Return how many of a request's next `tokens` tokens a step computes, after `computed` ones.

    Steps of a prompt end at states worth keeping: at a block's end, before the last token, at
    a junction; 0 if `tokens` reach neither a block's end nor the prompt's, unless a block exceeds a
    step's limit. A step that also writes the last state before a prompt's end need not end there.
    """
    record, state = machine.requests[request], machine.state[0]
    size = state.state_tokens
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
    """Move the hash of a state to its copy, which requests can read from the next step on."""
    content = machine.blocks[source].content
    if content != ROOT:
        lose_content(machine, source)
        give_content(machine, copy, content)
        machine.written[content] = planned_step(machine)


def free_copied(machine: Any) -> None:
    """Unpin the blocks that the planned step copies (`copies`), and their copies."""
    groups, copies = machine.groups, machine.copies
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
def take_cleared(machine: Machine, again: bool) -> int:
    """Allocate a block, and remove its hashes; `again`: the pool is as the last call left it."""
    block = take(machine, again)
    if machine.state[0].alignment_tokens < machine.state[0].state_tokens:
        forget(machine, block)
    return block


@callable_in_kernels
def copy_block(machine: Machine, request: int, group: int, admitted: bool) -> None:
    """Plan a copy of a request's block `copy_at`, in which its hit or prompt ends.

    A request `admitted` in this plan will write to the copy. A request at the end of its prompt
    will write to the block itself, whose hash moves to the copy, for later requests.
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
    """Fill a linear group's row with NONE up to block `end`; return the row's new length (blocks).

    A drafter's blocks for states of drafted tokens stay last: those before `end` move behind it.
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


def allocate(machine: Any, request: int, tokens: int, admitted: bool) -> None:
    """Allocate blocks for `tokens` tokens in all groups, and copy the request's block `copy_at`.

    `admitted`: the request was not running before this plan.
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
    """Record this plan's number in the tier's `since` for entries [begin, end) of a `table` row.

    The tier compares it with `taken`: a block that another request has got since is not stored.
    Blocks before `first`, the first one still held, get NONE.
    """
    off = machine.offload
    for at in range(begin, end):
        off.since[row, at] = off.state[0].plan if at >= first else NONE


@callable_in_kernels
def second_of(machine: Machine, block: int) -> int:
    """Return the index in `blocks` of a block's second record (BLOCK), for its second hash."""
    return block + machine.state[0].blocks + machine.state[0].lanes + 1  # type: ignore[no-any-return]


@callable_in_kernels
def block_of(machine: Machine, content: int) -> int:
    """Return the oldest block with a content under either of its two hashes; NONE without one."""
    record, state = holder_of(machine, content), machine.state[0]
    return record if record < state.blocks else record - state.blocks - state.lanes - 1


@callable_in_kernels
def forget(machine: Machine, block: int) -> None:
    """Remove both hashes of a block."""
    if machine.blocks[block].content != ROOT:
        lose_content(machine, block)
    second = second_of(machine, block)
    if second < len(machine.blocks) and machine.blocks[second].content != ROOT:
        lose_content(machine, second)


@callable_in_kernels
def is_cached(machine: Machine, spec: int, depth: int, part: int, ever: bool) -> bool:
    """Return whether all groups of SPEC number `spec` cache a block of request `front` (STATE).

    The block ends at node number `depth` (from 1) of the path. If smaller than a node, it is block
    `part` (from 0) of that node; else `part` is 0. With `ever`, evicted blocks count, too.
    """
    last = machine.path[len(machine.path) - 1, depth - 1]
    for group in range(machine.specs[spec].begin, machine.specs[spec].end):
        layout = machine.groups[group]
        content = last + part * layout.nodes + layout.first_content
        if holder_of(machine, content) == NONE and not (ever and was_held(machine, content)):
            return False
    return True


@callable_in_kernels
def look_up_state(machine: Machine, spec: int, tokens: int, ever: bool) -> int:
    """Return the longest prefix, at most `tokens`, that ends with a state cached now, or `ever`."""
    alignment, size = machine.state[0].alignment_tokens, machine.state[0].block_size
    for end in range(tokens // alignment * alignment, 0, -alignment):
        if is_cached(machine, spec, end // size, 0, ever):
            return end
    return 0


@callable_in_kernels
def look_up_sliding(machine: Machine, spec: int, tokens: int, drops: int, ever: bool) -> int:
    """Return the longest prefix (tokens), at most `tokens`, whose last window is cached.

    A drafter needs `drops` (0 or 1) further cached blocks, which do not count as a hit.
    """
    layout, alignment = machine.groups[machine.specs[spec].begin], machine.state[0].alignment_tokens
    size, parts, run = layout.block_tokens, layout.blocks_per_node, 0
    for at in range(tokens // size - 1, -1, -1):
        depth = (at + 1) * layout.nodes_per_block if parts == 1 else at // parts + 1
        if not is_cached(machine, spec, depth, at % parts if parts > 1 else 0, ever):
            run = 0
        elif run > 0 or (at + 1 - drops) * size % alignment == 0:
            run += 1
            if run >= layout.blocks_for_hit + drops:
                return (at + run - drops) * size  # type: ignore[no-any-return]
    return max(0, run - drops) * size // alignment * alignment  # type: ignore[no-any-return]


@callable_in_kernels
def look_up_leading(machine: Machine, spec: int, tokens: int, ever: bool) -> int:
    """Return the longest cached prefix (tokens), at most `tokens`, of full or chunked attention.

    Chunked attention needs no block before the chunk in which `tokens` lies: these count as cached.
    """
    layout, alignment = machine.groups[machine.specs[spec].begin], machine.state[0].alignment_tokens
    size, at = layout.block_tokens, 0
    if layout.kind == CHUNKED:
        at = tokens // layout.window_tokens * layout.window_tokens // size
    whole, nodes, parts = tokens // size, layout.nodes_per_block, layout.blocks_per_node
    whole //= parts  # all of a node's are cached, or none
    while at < whole and is_cached(machine, spec, (at + 1) * nodes, parts - 1, ever):
        at += 1
    at *= parts
    if alignment < size:  # the block may be cached up to the end of a prompt within it
        last = min(tokens // alignment, (at + 1) * (size // alignment) - 1) * alignment
        for end in range(last, at * size, -alignment):
            if is_cached(machine, spec, end // machine.state[0].block_size, 0, ever):
                return end
    return at * size // alignment * alignment  # type: ignore[no-any-return]


@callable_in_kernels
def whole_tokens(machine: Machine) -> int:
    """Return the known tokens of request `front` (STATE) in whole blocks of `block_size` tokens."""
    record, size = machine.requests[machine.state[0].front], machine.state[0].block_size
    return (record.prompt + record.generated) // size * size  # type: ignore[no-any-return]


@callable_in_kernels
def look_up_spec(machine: Machine, spec: int, tokens: int, dropped: int, ever: bool) -> int:
    """Return the prefix (tokens), at most `tokens`, that is a hit in all groups of a spec.

    If a drafter computes the last block again, `dropped` has the block's tokens (else 0): the
    prefix is that much shorter than what is cached. States ignore it.
    """
    kind = machine.groups[machine.specs[spec].begin].kind
    if kind == SLIDING:
        return look_up_sliding(machine, spec, tokens, int(dropped > 0), ever)
    if kind == LINEAR:
        return look_up_state(machine, spec, tokens, ever)
    return max(0, look_up_leading(machine, spec, tokens, ever) - dropped)


@callable_in_kernels
def note_verified(machine: Machine, spec: int, dropped: bool) -> None:
    """Mark a spec as `verified` if a drafter's block was `dropped` from its hit, else unmark all.

    Later rounds of the look-up drop no second block from the hit of a marked spec. If none was
    dropped, the hit has become shorter, and its own last block is still to be dropped.
    """
    if dropped:
        machine.specs[spec].verified = 1
        return
    for each in range(len(machine.specs)):
        machine.specs[each].verified = 0


def look_up_groups(machine: Any, tokens: int, ever: bool) -> tuple[int, int]:
    """Return the hit of request `front` (STATE), at most `tokens`, and its junction, in tokens.

    The junction is the longest prefix that only some of the groups have cached, 0 if it is no
    longer than the hit. With `ever`, evicted blocks count as cached. The last block of a drafter's
    groups is computed again, so these are looked up one block further.
    """
    specs = machine.specs
    single = len(machine.groups) == 1
    two = len(specs) == 2 and machine.groups[specs[0].begin].kind == FULL
    hit, longest = tokens, 0
    for spec in range(len(specs)):
        specs[spec].cached_tokens, specs[spec].verified = NONE, 0
    while True:
        length = hit
        for spec in range(len(specs)):
            kind = machine.groups[specs[spec].begin].kind
            if (
                kind == FULL and specs[spec].cached_tokens != NONE
            ):  # shorter prefixes are cached too
                length = min(length, specs[spec].cached_tokens)
                continue
            dropped = 0 if specs[spec].verified else specs[spec].dropped_tokens  # once a length
            most = min(length + dropped, whole_tokens(machine)) if dropped > 0 else length
            cached = look_up_spec(machine, spec, most, dropped, ever)
            if dropped > 0 or cached < length:
                note_verified(machine, spec, dropped > 0)
            specs[spec].cached_tokens = length = cached
            longest = max(longest, length)
        shorter = length < hit
        hit = length
        if not shorter or two:
            break
    return hit, (0 if single or longest <= hit else longest)


def group_functions(machine: Machine | None) -> GroupFunctions:
    """Return the functions that kernels call for `machine`; for None, placeholders never called."""
    calls = (
        *(look_up_groups, hash_kept, use_hits, fits, allocate, blocks_missing, cut),
        *(free_skipped, free_copied),
    )
    return GroupFunctions(*Function.each(calls, machine))

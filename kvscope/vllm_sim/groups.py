"""Requests of a hybrid model: several groups of layers, each with its block table, in one pool.

A block belongs to one group and its content is the pair (group, node): node + group * nodes. Full
attention keeps all blocks of a request; sliding windows and chunks free those that no later token
looks at. Linear attention ("linear") writes one block a step, the state after its last token, and
its steps end where blocks do. A prefix is a hit only where all groups have what they need there.

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
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.admission import (
    BlockRules,
    blocks_for,
    enter_running,
    note_admission,
)
from kvscope.vllm_sim.pool import give_back, give_content, taker, use
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
def content_at(machine: Machine, row: int, group: int, at: int) -> int:
    """Return the content of a group's block `at` on the path in `row`."""
    layout = machine.groups[group]
    return machine.path[row, (at + 1) * layout.nodes_per_block - 1] + layout.first_content  # type: ignore[no-any-return]


@callable_in_kernels
def is_cached(machine: Machine, spec: int, at: int, ever: bool) -> bool:
    """Return whether all groups of a spec have block `at` of the front path, or `ever` had it."""
    front = len(machine.path) - 1
    for group in range(machine.specs[spec].begin, machine.specs[spec].end):
        node = machine.nodes[content_at(machine, front, group, at)]
        if node.first == NONE and (not ever or node.written == 0):
            return False
    return True


@callable_in_kernels
def look_up_state(machine: Machine, spec: int, tokens: int, ever: bool) -> int:
    """Return the longest prefix, at most `tokens`, after which a state is cached."""
    layout, alignment = machine.groups[machine.specs[spec].begin], machine.state[0].alignment_tokens
    size = layout.block_tokens
    for at in range(tokens // size - 1, -1, -1):
        if (at + 1) * size % alignment == 0 and is_cached(machine, spec, at, ever):
            return (at + 1) * size  # type: ignore[no-any-return]
    return 0


@callable_in_kernels
def look_up_sliding(machine: Machine, spec: int, tokens: int, ever: bool) -> int:
    """Return the longest prefix, at most `tokens`, before whose end a window is cached."""
    layout, alignment = machine.groups[machine.specs[spec].begin], machine.state[0].alignment_tokens
    size, run = layout.block_tokens, 0
    for at in range(tokens // size - 1, -1, -1):
        if not is_cached(machine, spec, at, ever):
            run = 0
        elif run > 0 or (at + 1) * size % alignment == 0:
            run += 1
            if run >= layout.blocks_for_hit:
                return (at + run) * size  # type: ignore[no-any-return]
    return run * size // alignment * alignment  # type: ignore[no-any-return]


@callable_in_kernels
def look_up_leading(machine: Machine, spec: int, tokens: int, ever: bool) -> int:
    """Return the longest prefix, at most `tokens`, that is cached; of a chunk, from its start."""
    layout, alignment = machine.groups[machine.specs[spec].begin], machine.state[0].alignment_tokens
    size, at = layout.block_tokens, 0
    if layout.kind == CHUNKED:
        at = tokens // layout.window_tokens * layout.window_tokens // size
    while at < tokens // size and is_cached(machine, spec, at, ever):
        at += 1
    return at * size // alignment * alignment  # type: ignore[no-any-return]


@callable_in_kernels
def look_up_groups(machine: Machine, tokens: int, ever: bool) -> tuple[int, int]:
    """Return the tokens of the front path, at most `tokens`, that are a hit, and the junction.

    The junction is the longest prefix that a part of the groups has, 0 if none has more than the
    hit: where prompts part, windows and states are worth keeping. `ever`: as if nothing had been
    evicted.
    """
    specs = machine.specs
    single = len(machine.groups) == 1
    two = len(specs) == 2 and machine.groups[specs[0].begin].kind == FULL
    hit, longest = tokens, 0
    for spec in range(len(specs)):
        specs[spec].cached_tokens = NONE
    while True:
        length = hit
        for spec in range(len(specs)):
            kind = machine.groups[specs[spec].begin].kind
            if (
                kind == FULL and specs[spec].cached_tokens != NONE
            ):  # shorter prefixes are cached too
                length = min(length, specs[spec].cached_tokens)
                continue
            if kind == SLIDING:
                length = look_up_sliding(machine, spec, length, ever)
            elif kind == LINEAR:
                length = look_up_state(machine, spec, length, ever)
            else:
                length = look_up_leading(machine, spec, length, ever)
            specs[spec].cached_tokens = length
            longest = max(longest, length)
        shorter = length < hit
        hit = length
        if not shorter or two:
            break
    return hit, (0 if single or longest <= hit else longest)


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
    blocks, row = machine.blocks, machine.requests[request].slot * len(machine.groups) + group
    for at in range(begin, end):  # to the front of their queue: the last one freed goes first
        block = machine.table[row, at]
        if block != NONE and blocks[block].content == ROOT:
            give_back(machine, block, 0)
    for at in range(end - 1, begin - 1, -1):
        block = machine.table[row, at]
        if block != NONE and blocks[block].content != ROOT:
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
def is_retained(machine: Machine, request: int, group: int, at: int) -> bool:
    """Return whether a group keeps block `at` of a request for later ones, by the retention."""
    record, layout, state = machine.requests[request], machine.groups[group], machine.state[0]
    if layout.kind not in (SLIDING, LINEAR):
        return True
    needed, size = layout.blocks_for_hit, layout.block_tokens
    if state.segment_tokens > 0:
        segment = state.segment_tokens // size
        if needed >= segment or at % segment >= segment - needed:
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
    tokens = tokens // state.alignment_tokens * state.alignment_tokens
    if tokens <= record.hashed:
        blocks = tokens // max(1, state.state_tokens)
        if state.rehashes_states and blocks == (record.prompt - 1) // max(1, state.state_tokens):
            note_states(machine, request, blocks - 1, written)
        return
    for group in range(len(machine.groups)):
        size, row = machine.groups[group].block_tokens, record.slot * len(machine.groups) + group
        begin = max(record.hashed // size, first_held(machine, request, group))
        for at in range(begin, tokens // size):
            block = machine.table[row, at]
            if block != NONE and is_retained(machine, request, group, at):
                content = content_at(machine, record.slot, group, at)
                give_content(machine, block, content, False)
                if machine.groups[group].kind == LINEAR:
                    machine.nodes[content].written = written
    record.hashed = tokens


@callable_in_kernels
def prefill_end(machine: Machine, request: int) -> int:
    """Return where the prompt of a request ends, or what it computed before its preemption."""
    record = machine.requests[request]
    return max(record.prompt, record.prompt + record.generated - 1)  # type: ignore[no-any-return]


@callable_in_kernels
def exports_between(state_tokens: int, begin: int, end: int, at: int) -> bool:
    """Return whether the step begin..end of a prompt can write the state after `at` tokens."""
    return begin % state_tokens == 0 and begin + state_tokens <= at < end


@callable_in_kernels
def exported_states(machine: Machine, request: int, begin: int, end: int) -> int:
    """Return 1 if the step begin..end takes a block for the state before its last block, else 0.

    Where few states are kept, only the step that ends a prompt does.
    """
    state = machine.state[0]
    size = max(1, state.state_tokens)
    if not state.exports_states:
        return 0
    if state.segment_tokens == 0 and end < prefill_end(machine, request):
        return 0
    return int(exports_between(size, begin, end, (end - 1) // size * size))


@callable_in_kernels
def blocks_missing(machine: Machine, request: int, tokens: int) -> int:
    """Return how many more blocks a running request needs for `tokens` tokens, over all groups."""
    allocated, missing = machine.requests[request].allocated, 0
    states = 1 + exported_states(machine, request, machine.requests[request].computed, tokens)
    for group in range(len(machine.groups)):
        size = machine.groups[group].block_tokens
        more = max(0, blocks_for(tokens, size) - blocks_for(allocated, size))
        missing += min(more, states) if machine.groups[group].kind == LINEAR else more
    return missing


@callable_in_kernels
def blocks_to_admit(machine: Machine, request: int, hit: int, tokens: int, capped: bool) -> int:
    """Return how many free blocks a request takes for `tokens` tokens, of which `hit` are a hit.

    `capped`: at most what the request holds at any time, not what it would without freeing. A state
    that is computed in the step being planned can be read in the next one only: no pool is enough.
    """
    front, needed = len(machine.path) - 1, 0
    states = 1 + exported_states(machine, request, hit, tokens)
    for group in range(len(machine.groups)):
        layout = machine.groups[group]
        required, hits = blocks_for(tokens, layout.block_tokens), hit // layout.block_tokens
        if layout.kind == LINEAR:
            required = min(required, hits + states)
            if hits > 0:
                state = machine.nodes[content_at(machine, front, group, hits - 1)]
                if state.written == planned_step(machine):
                    return ALWAYS
        elif capped:
            required = min(required, layout.most_blocks)
        needed += max(0, required - hits)
        for at in range(skipped_blocks(machine, group, hit), hits):
            block = machine.nodes[content_at(machine, front, group, at)].first
            if machine.blocks[block].users == 0:
                needed += 1
    return needed


@callable_in_kernels
def use_group_hits(machine: Machine, request: int, hit: int) -> None:
    """Pin the cached blocks that a request needs after a hit of so many tokens."""
    record = machine.requests[request]
    for group in range(len(machine.groups)):
        row = record.slot * len(machine.groups) + group
        begin = skipped_blocks(machine, group, hit)
        for at in range(begin, hit // machine.groups[group].block_tokens):
            block = machine.nodes[content_at(machine, record.slot, group, at)].first
            use(machine, block)
            machine.table[row, at] = block
    record.allocated = hit
    record.hashed = hit
    record.skipped_for = hit
    record.skips_at = 0


@callable_in_kernels
def count_group_written(machine: Machine, most: int) -> int:
    """Return how many leading nodes of the front path, at most `most`, full attention ever held.

    Of a model without full attention its first group counts.
    """
    front, layout, blocks = len(machine.path) - 1, machine.groups[0], 0
    group = machine.specs[0].begin
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
    machine.slots[state.max_num_seqs - state.running] = record.slot
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
    that exports the state before a prompt's last block need not end there.
    """
    record, state = machine.requests[request], machine.state[0]
    size, known = state.state_tokens, record.prompt + record.generated
    prefilled = prefill_end(machine, request)
    if size == 0 or computed >= prefilled:
        return tokens
    end = computed + tokens
    exports = (
        state.exports_states
        and end >= prefilled
        and exports_between(size, computed, end, (prefilled - 1) // size * size)
    )
    if end < prefilled:
        aligned = end // size * size
        if aligned > computed or size <= state.max_num_batched_tokens:
            end = aligned
    junction = computed + (record.junction - computed) // size * size
    if not computed < record.junction < end:
        junction = NONE
    block_end = (computed // size + 1) * size if computed % size else NONE
    last = NONE if exports else (known - 1) // size * size
    first = end
    for stop in (block_end, last, junction):
        if computed < stop < first:
            first = stop
    return max(0, first - computed)


def group_allocator(take: Callable[[Machine], int]) -> Callable[..., None]:
    """Return the function that allocates blocks in all groups until so many tokens have room."""

    @callable_in_kernels
    def allocate(machine: Machine, request: int, tokens: int) -> None:
        record = machine.requests[request]
        record.room = ALWAYS
        states = 1 + exported_states(machine, request, record.computed, tokens)
        for group in range(len(machine.groups)):
            size, row = machine.groups[group].block_tokens, record.slot * len(machine.groups)
            end = blocks_for(max(tokens, record.allocated), size)
            for at in range(blocks_for(record.allocated, size), end):
                passed = machine.groups[group].kind == LINEAR and at < end - states
                machine.table[row + group, at] = NONE if passed else take(machine)
            record.room = min(record.room, end * size)
        record.allocated = max(tokens, record.allocated)

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
        if wanted > record.room:
            if blocks_missing(machine, request, wanted) > state.free:
                return False
            allocate(machine, request, wanted)
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
        record.junction = junction
        tokens = cut(machine, request, hit, min(total - hit, budget))
        if tokens == 0:
            return 0
        free = state.free - (state.watermark_blocks if state.running > 0 else 0)
        if state.reserve_full_prompt and blocks_to_admit(machine, request, hit, total, True) > free:
            return 0
        if blocks_to_admit(machine, request, hit, hit + tokens, False) > free:
            return 0
        enter_running(machine, request)
        if record.hits == NONE:
            record.written = max(hit // size, count_group_written(machine, record.look))
            record.kept = look_up_groups(machine, look * size, True)[0] // size
            note_admission(machine, request, hit // size)
        use_group_hits(machine, request, hit)
        record.computed = hit
        allocate(machine, request, hit + tokens)
        hash_kept(machine, request, hit + tokens, planned_step(machine))
        note_step(machine, request)
        return tokens

    return admit


def several_groups() -> BlockRules:
    """Return the rules of a hybrid model's requests; blocks leave in vLLM's own order, LRU."""
    allocate = group_allocator(taker(Lru, False))
    extend, admit = group_extender(allocate), group_admitter(allocate)
    return BlockRules(extend, hash_groups, release_groups, admit, cut)

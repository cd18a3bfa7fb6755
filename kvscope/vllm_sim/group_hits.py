"""Contents of blocks, and how much of a prompt all groups of layers have cached.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_coordinator.py (HybridKVCacheCoordinator) and
vllm/v1/core/single_type_kv_cache_manager.py (find_longest_cache_hit of each manager).
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.vllm_sim.pool import holder_of, lose_content
from kvscope.vllm_sim.state import CHUNKED, FULL, LINEAR, NONE, ROOT, SLIDING, Machine


@callable_in_kernels
def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of blocks for so many tokens, the last one perhaps partial."""
    return (tokens + block_size - 1) // block_size


@callable_in_kernels
def content_at(machine: Machine, row: int, group: int, at: int) -> int:
    """Return the content of a group's block `at` on the path in `row`."""
    layout, size = machine.groups[group], machine.groups[group].blocks_per_node
    if size > 1:
        return machine.path[row, at // size] + at % size * layout.nodes + layout.first_content  # type: ignore[no-any-return]
    return machine.path[row, (at + 1) * layout.nodes_per_block - 1] + layout.first_content  # type: ignore[no-any-return]


@callable_in_kernels
def content_after(machine: Machine, row: int, group: int, tokens: int) -> int:
    """Return the content of a group's block that ends after `tokens` of the path in `row`."""
    depth = tokens // machine.state[0].block_size - 1
    return machine.path[row, depth] + machine.groups[group].first_content  # type: ignore[no-any-return]


@callable_in_kernels
def second_of(machine: Machine, block: int) -> int:
    """Return the second record of a block."""
    return block + machine.state[0].blocks + machine.state[0].lanes + 1  # type: ignore[no-any-return]


@callable_in_kernels
def block_of(machine: Machine, content: int) -> int:
    """Return the oldest block with a content."""
    record, state = holder_of(machine, content), machine.state[0]
    return record if record < state.blocks else record - state.blocks - state.lanes - 1


@callable_in_kernels
def forget(machine: Machine, block: int) -> None:
    """Remove all hashes of a block."""
    if machine.blocks[block].content != ROOT:
        lose_content(machine, block)
    second = second_of(machine, block)
    if second < len(machine.blocks) and machine.blocks[second].content != ROOT:
        lose_content(machine, second)


@callable_in_kernels
def was_held(machine: Machine, content: int) -> bool:
    """Return whether a block ever had a content, or a state was written for it."""
    written = len(machine.written) > 0 and machine.written[content] > 0
    return written or machine.holders[content] != 0  # type: ignore[no-any-return]


@callable_in_kernels
def is_cached(machine: Machine, spec: int, depth: int, part: int, ever: bool) -> bool:
    """Return whether all groups of a spec have the front path's block that ends at node `depth`.

    It is the `part`th block of that node, from 0 on. `ever`: or had it.
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
    """Return the longest prefix, at most `tokens`, after which a state is cached."""
    alignment, size = machine.state[0].alignment_tokens, machine.state[0].block_size
    for end in range(tokens // alignment * alignment, 0, -alignment):
        if is_cached(machine, spec, end // size, 0, ever):
            return end
    return 0


@callable_in_kernels
def look_up_sliding(machine: Machine, spec: int, tokens: int, drops: int, ever: bool) -> int:
    """Return the longest prefix, at most `tokens`, before whose end a window is cached.

    With `drops` blocks (of a drafter, 1 or 0) more of them are, which do not count.
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
    """Return the longest prefix, at most `tokens`, that is cached; of a chunk, from its start."""
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
    """Return the tokens of the front request that fill blocks of the trace."""
    record, size = machine.requests[machine.state[0].front], machine.state[0].block_size
    return (record.prompt + record.generated) // size * size  # type: ignore[no-any-return]


@callable_in_kernels
def look_up_spec(machine: Machine, spec: int, tokens: int, dropped: int, ever: bool) -> int:
    """Return how many of `tokens` the groups of a spec have cached, without those `dropped`."""
    kind = machine.groups[machine.specs[spec].begin].kind
    if kind == SLIDING:
        return look_up_sliding(machine, spec, tokens, int(dropped > 0), ever)
    if kind == LINEAR:
        return look_up_state(machine, spec, tokens, ever)
    return max(0, look_up_leading(machine, spec, tokens, ever) - dropped)


@callable_in_kernels
def note_verified(machine: Machine, spec: int, dropped: bool) -> None:
    """Note that a spec has dropped a drafter's block, or that a shorter hit voids all of that."""
    if dropped:
        machine.specs[spec].verified = 1
        return
    for each in range(len(machine.specs)):
        machine.specs[each].verified = 0


@called_by_kernels
def look_up_groups(machine: Machine, tokens: int, ever: bool) -> tuple[int, int]:
    """Return the tokens of the front path, at most `tokens`, that are a hit, and the junction.

    The junction is the longest prefix that a part of the groups has, 0 if none has more than the
    hit: where prompts part, windows and states are worth keeping. `ever`: as if nothing had been
    evicted. Of what a drafter's groups have, the last block is computed again: beside others, they
    look one further.
    """
    specs, hybrid = machine.specs, machine.state[0].hybrid
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
            most = (
                min(length + dropped, whole_tokens(machine)) if dropped > 0 and hybrid else length
            )
            found = look_up_spec(machine, spec, most, dropped, ever)
            if hybrid and (dropped > 0 or found < length):
                note_verified(machine, spec, dropped > 0)
            specs[spec].cached_tokens = length = found
            longest = max(longest, length)
        shorter = length < hit
        hit = length
        if not shorter or two:
            break
    return hit, (0 if single or longest <= hit else longest)


@callable_in_kernels
def count_written(machine: Machine, most: int) -> int:
    """Return how many leading nodes of the front path, at most `most`, full attention ever held.

    Of a model without full attention its first group counts.
    """
    front, group = len(machine.path) - 1, machine.specs[0].begin
    nodes, parts = machine.groups[group].nodes_per_block, machine.groups[group].blocks_per_node
    end = nodes
    while end <= most and was_held(
        machine, content_at(machine, front, group, end // nodes * parts - 1)
    ):
        end += nodes
    return end - nodes  # type: ignore[no-any-return]

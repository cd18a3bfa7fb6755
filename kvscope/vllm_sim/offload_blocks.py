"""What requests above a CPU tier do with blocks of the pool, and which chunks these fill.

For models of one group of layers; `offload_groups` has the same for hybrid models.

Source: vLLM 0.32.0 and 0.33.0, vllm/v1/core/kv_cache_manager.py (KVCacheManager.allocate_slots),
vllm/v1/core/sched/scheduler.py (Scheduler._request_remaining_blocks) and
vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py (_build_store_jobs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvscope.core.jit import callable_in_kernels
from kvscope.vllm_sim.admission import (
    BlockRules,
    allocator,
    blocks_for,
    count_free,
    count_written,
    hash_blocks,
    look_up,
    note_admission,
    one_group,
    use_hits,
)
from kvscope.vllm_sim.chunks import list_range
from kvscope.vllm_sim.offload_state import ANY
from kvscope.vllm_sim.state import NONE, Machine


class TierBlocks(NamedTuple):
    """The blocks and chunks of a request; all functions are callable in kernels.

    `rules` are those of running requests. `look_up(machine, request)` returns the tokens that the
    front request hits on the GPU. `fits(machine, request, hit, cached, end, reserved)` says if what
    it takes until `end` fits, where `cached` tokens are hit or loaded and others have `reserved`
    some blocks; `fits_loaded(machine, request, end)` the same once they are loaded.
    `still_needed(machine, request)` returns the blocks that the rest of a prompt takes.

    `note_first(machine, request, hit)` counts the hits of a new request; `enter(machine, request,
    hit, cached)` pins them. `allocate`, `hash_loaded` and `hash_computed` (machine, request,
    tokens) allocate and hash for so many tokens, the last one for those of the planned step.
    `note_table(machine, request)` notes the blocks of a request that begins, and
    `keep_table(machine, request, number)` keeps those of the `number`th that ended until the plan
    behind.

    `list_loads(machine, request, hit, cached)` and `list_stores(machine, request, row, tokens)`
    write the places of chunks to load and to offer into `offered`, and return their number; `row`
    is a slot, or the number of a request that ended. `advance(machine, request, row)` has the next
    offer begin behind that one. `list_states(machine)` writes the states of
    linear attention to offer into `states`, and returns their number. `fence(machine, request, row,
    place)` notes that a store reads the blocks of a chunk.
    """

    rules: BlockRules
    look_up: Callable[[Machine, int], int]
    fits: Callable[[Machine, int, int, int, int, int], bool]
    fits_loaded: Callable[[Machine, int, int], bool]
    still_needed: Callable[[Machine, int], int]
    note_first: Callable[[Machine, int, int], None]
    enter: Callable[[Machine, int, int, int], None]
    allocate: Callable[[Machine, int, int], None]
    hash_loaded: Callable[[Machine, int, int], None]
    hash_computed: Callable[[Machine, int, int], None]
    note_table: Callable[[Machine, int], None]
    keep_table: Callable[[Machine, int, int], None]
    list_loads: Callable[[Machine, int, int, int], int]
    list_stores: Callable[[Machine, int, int, int], int]
    advance: Callable[[Machine, int, int], None]
    list_states: Callable[[Machine], int]
    fence: Callable[[Machine, int, int, int], None]


@callable_in_kernels
def note_block(machine: Machine, block: int) -> None:
    """Note that a request gets a block, which waits for copies that still read it."""
    off, requests = machine.offload, machine.requests
    off.taken[block] = off.state[0].plan
    entry = off.fence[block]
    while entry >= off.state[0].fences_done:
        fence = off.fences[entry % len(off.fences)]
        if fence.request == ANY or requests[fence.request].finished_s >= 0:  # nan until then
            off.stores[fence.job % len(off.stores)].flush = 1
        entry = fence.older


@callable_in_kernels
def has_ended(machine: Machine, request: int) -> bool:
    """Return whether a request has got its last token."""
    return machine.requests[request].finished_s >= 0  # type: ignore[no-any-return]


@callable_in_kernels
def known_tokens(machine: Machine, request: int) -> int:
    """Return the tokens of a request that are known, prompt and output."""
    record = machine.requests[request]
    return record.prompt + record.generated  # type: ignore[no-any-return]


@callable_in_kernels
def allocated_of(machine: Machine, request: int) -> int:
    """Return what is allocated for a request that runs, or was when it ended."""
    if has_ended(machine, request):
        return machine.offload.members[request].allocated  # type: ignore[no-any-return]
    return machine.requests[request].allocated  # type: ignore[no-any-return]


@callable_in_kernels
def most_to_look_up(machine: Machine, request: int) -> int:
    """Return how many blocks of the front request may be hits."""
    record = machine.requests[request]
    if record.hits == NONE:
        return record.look  # type: ignore[no-any-return]
    return (known_tokens(machine, request) - 1) // machine.state[0].block_size  # type: ignore[no-any-return]


@callable_in_kernels
def fence_block(machine: Machine, request: int, block: int) -> None:
    """Note that the newest store reads a block, which is `request`'s (ANY: until it is taken)."""
    off, state = machine.offload, machine.offload.state[0]
    fence = off.fences[state.fences % len(off.fences)]
    fence.job, fence.request, fence.older = state.stores, request, off.fence[block]
    off.fence[block] = state.fences
    state.fences += 1


@callable_in_kernels
def fence_until_ended(machine: Machine, request: int, block: int) -> None:
    """Note that the newest store reads a block, taken again in this plan if the request ended."""
    off, state = machine.offload, machine.offload.state[0]
    fence_block(machine, request, block)
    if off.taken[block] == state.plan and has_ended(machine, request):
        off.stores[state.stores % len(off.stores)].flush = 1


@callable_in_kernels
def look_up_front(machine: Machine, request: int) -> int:
    """Return the tokens of the front request that are hits."""
    return look_up(machine, most_to_look_up(machine, request)) * machine.state[0].block_size  # type: ignore[no-any-return]


@callable_in_kernels
def fits_blocks(
    machine: Machine, request: int, hit: int, cached: int, end: int, reserved: int
) -> bool:
    """Return `fits` of TierBlocks."""
    state = machine.state[0]
    needed = blocks_for(end, state.block_size) + reserved
    if state.reserve_full_prompt:
        needed = max(needed, blocks_for(known_tokens(machine, request), state.block_size))
    hits = hit // state.block_size
    return needed + count_free(machine, hits) - hits <= state.free  # type: ignore[no-any-return]


@callable_in_kernels
def fits_loaded_blocks(machine: Machine, request: int, end: int) -> bool:
    """Return `fits_loaded` of TierBlocks."""
    state = machine.state[0]
    tokens = known_tokens(machine, request) if state.reserve_full_prompt else end
    blocks = blocks_for(tokens, state.block_size) - machine.requests[request].allocated
    return blocks <= state.free  # type: ignore[no-any-return]


@callable_in_kernels
def blocks_still_needed(machine: Machine, request: int) -> int:
    """Return the blocks that the rest of a prompt takes."""
    blocks = blocks_for(known_tokens(machine, request), machine.state[0].block_size)
    return max(0, blocks - machine.requests[request].allocated)  # type: ignore[no-any-return]


@callable_in_kernels
def note_first_hits(machine: Machine, request: int, hit: int) -> None:
    """Count the hits of a new request."""
    record, hits = machine.requests[request], hit // machine.state[0].block_size
    record.written = max(count_written(machine, record.look), hits)
    record.kept = record.written
    note_admission(machine, request, hits)


@callable_in_kernels
def enter_with_hits(machine: Machine, request: int, hit: int, cached: int) -> None:
    """Pin the hits of a request."""
    use_hits(machine, request, hit // machine.state[0].block_size)


@callable_in_kernels
def note_blocks(machine: Machine, request: int) -> None:
    """Note all blocks of a request that was just admitted."""
    record = machine.requests[request]
    for at in range(record.allocated):
        note_block(machine, machine.table[record.slot, at])


@callable_in_kernels
def keep_blocks(machine: Machine, request: int, number: int) -> None:
    """Keep the blocks of the `number`th request that ended."""
    record, row = machine.requests[request], machine.offload.ended_table[number]
    for at in range(record.allocated):
        row[at] = machine.table[record.slot, at]


@callable_in_kernels
def list_loads(machine: Machine, request: int, hit: int, cached: int) -> int:
    """Write the places of the chunks between hit and cached tokens into `offered`."""
    off, tokens = machine.offload, machine.state[0].block_size * machine.offload.state[0].unit_nodes
    off.next_chunk[request, 0] = cached // tokens
    return list_range(off, hit // tokens, cached // tokens)


@callable_in_kernels
def list_stores(machine: Machine, request: int, row: int, tokens: int) -> int:
    """Write the places of chunks that so many tokens fill, from the next one on, into `offered`."""
    off, size = machine.offload, machine.state[0].block_size
    begin, known = off.next_chunk[request, 0], known_tokens(machine, request)
    blocks = min(tokens // size, allocated_of(machine, request), known // size)
    off.ends[0] = max(begin, blocks // off.state[0].unit_nodes)
    return list_range(off, begin, off.ends[0])


@callable_in_kernels
def advance_chunks(machine: Machine, request: int, row: int) -> None:
    """Have the next offer of a request begin where its last one ended."""
    machine.offload.next_chunk[request, 0] = machine.offload.ends[0]


@callable_in_kernels
def no_states(machine: Machine) -> int:
    """Return 0: attention has no states."""
    return 0


@callable_in_kernels
def fence_chunk(machine: Machine, request: int, row: int, place: int) -> None:
    """Note that the newest store reads the blocks of a chunk."""
    off, size = machine.offload, machine.offload.state[0].unit_nodes
    table = off.ended_table if has_ended(machine, request) else machine.table
    for block in table[row, place * size : (place + 1) * size]:
        fence_until_ended(machine, request, block)


def one_group_blocks(take: Callable[[Machine, bool], int]) -> TierBlocks:
    """Return the blocks of requests whose layers all cache every token, allocated by `take`."""
    allocate_blocks = allocator(take)

    @callable_in_kernels
    def allocate(machine: Machine, request: int, tokens: int) -> None:
        allocate_blocks(machine, request, blocks_for(tokens, machine.state[0].block_size))

    @callable_in_kernels
    def hash_tokens(machine: Machine, request: int, tokens: int) -> None:
        hash_blocks(machine, request, tokens)

    return TierBlocks(
        one_group(take),
        look_up_front,
        fits_blocks,
        fits_loaded_blocks,
        blocks_still_needed,
        note_first_hits,
        enter_with_hits,
        allocate,
        hash_tokens,
        hash_tokens,
        note_blocks,
        keep_blocks,
        list_loads,
        list_stores,
        advance_chunks,
        no_states,
        fence_chunk,
    )

"""The block pool of an engine: blocks in use, their contents, and the queues of free blocks.

A free block keeps its content until it is allocated again. Free blocks without a hash have a queue
of their own, with the last freed block in front and blocks that no request ever took behind it.
Blocks with a hash are in lanes, the policy's queues, with the last freed block at the end. Before
vLLM 0.24 blocks without a hash join the lanes too, once a request has used them. The next block to
allocate is one without a hash, else the head of the lane that scores lowest.

Source: vLLM 0.32.0, vllm/v1/core/block_pool.py (BlockPool, BlockHashToBlockMap) and
vllm/v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue).
"""

from __future__ import annotations

import numpy as np

from kvscope.core.jit import callable_in_kernels, called_by_kernels, lowest_bit
from kvscope.vllm_sim.offload_state import ANY
from kvscope.vllm_sim.state import (
    ALWAYS,
    LOST,
    NONE,
    PARKED,
    PINNED,
    ROOT,
    UNHASHED,
    Machine,
    has_tier,
)

_ONE, _WORD = np.uint64(1), np.uint64(63)


@callable_in_kernels
def head_of(machine: Machine, queue: int) -> int:
    """Return the block at the front of a queue, NONE if it is empty."""
    blocks = machine.state[0].blocks
    block = machine.blocks[blocks + queue].after
    return block if block < blocks else NONE


@callable_in_kernels
def link(machine: Machine, block: int, queue: int, behind: int) -> None:
    """Insert a block into a queue, behind another one or the queue's sentinel."""
    blocks = machine.blocks
    following = blocks[behind].after
    blocks[behind].after = block
    blocks[block].before = behind
    blocks[block].after = following
    blocks[following].before = block
    blocks[block].queue = queue
    if queue != UNHASHED:
        lane = queue - 1
        machine.busy[lane >> 6] |= _ONE << (np.uint64(lane) & _WORD)


@callable_in_kernels
def unlink(machine: Machine, block: int) -> None:
    """Remove a free block from its queue, if it is in one."""
    blocks, freed = machine.blocks, machine.blocks[block]
    if freed.queue >= 0:
        blocks[freed.before].after = freed.after
        blocks[freed.after].before = freed.before
    freed.queue = PINNED


@callable_in_kernels
def park(machine: Machine, block: int) -> None:
    """Take a lane's head out of its queue until no child is cached: leaves are evicted first."""
    unlink(machine, block)
    machine.blocks[block].queue = PARKED


@called_by_kernels
def unpark(machine: Machine, block: int) -> None:
    """Put a block that `park` took out back into its lane, in order of free-sequence numbers."""
    blocks, count = machine.blocks, machine.state[0].blocks
    queue = blocks[block].lane + 1
    behind = count + queue
    following = blocks[behind].after
    while following < count and blocks[following].freed < blocks[block].freed:
        behind = following
        following = blocks[following].after
    link(machine, block, queue, behind)
    machine.state[0].taken_lane = NONE


@callable_in_kernels
def holder_of(machine: Machine, content: int) -> int:
    """Return the oldest block (or its second record, see BLOCK) with a content, else NONE."""
    return max(machine.holders[content], 0) - 1  # type: ignore[no-any-return]


@called_by_kernels
def give_content(machine: Machine, block: int, content: int) -> None:
    """Set a block's hash: look-ups for `content` find this block or an older one with it."""
    blocks, new = machine.blocks, machine.blocks[block]
    new.content = content
    oldest = holder_of(machine, content)
    if oldest == NONE:
        machine.holders[content] = block + 1
        new.twin_after = block
        new.twin_before = block
        if machine.state[0].leaf:
            machine.children[machine.parents[content]] += 1
        return
    youngest = blocks[oldest].twin_before
    blocks[youngest].twin_after = block
    new.twin_before = youngest
    new.twin_after = oldest
    blocks[oldest].twin_before = block
    if (
        machine.state[0].leaf and blocks[oldest].queue == PARKED
    ):  # the new block keeps the children reachable
        unpark(machine, oldest)


@called_by_kernels
def lose_content(machine: Machine, block: int) -> None:
    """Remove a block's hash."""
    blocks, old = machine.blocks, machine.blocks[block]
    content = old.content
    old.content = ROOT
    if old.twin_after != block:
        blocks[old.twin_before].twin_after = old.twin_after
        blocks[old.twin_after].twin_before = old.twin_before
        if holder_of(machine, content) == block:
            machine.holders[content] = old.twin_after + 1
        return
    machine.holders[content] = LOST
    if machine.state[0].leaf:
        parent = machine.parents[content]
        machine.children[parent] -= 1
        above = holder_of(machine, parent)
        if machine.children[parent] == 0 and above != NONE and blocks[above].queue == PARKED:
            unpark(machine, above)


@callable_in_kernels
def has_orphans(machine: Machine, block: int) -> bool:
    """Return whether evicting a block would leave cached child blocks that no look-up can reach."""
    content = machine.blocks[block].content
    single = machine.blocks[block].twin_after == block
    return content != ROOT and single and machine.children[content] > 0  # type: ignore[no-any-return]


@callable_in_kernels
def use(machine: Machine, block: int) -> None:
    """Increment a block's number of users; a free block leaves its queue, with its content."""
    if machine.blocks[block].users == 0:
        unlink(machine, block)
        machine.state[0].free -= 1
    machine.blocks[block].users += 1


@callable_in_kernels
def goes_in_front(machine: Machine, block: int) -> bool:
    """Return whether a block is to be allocated first once freed: it has no hash (vLLM 0.24 on)."""
    return machine.blocks[block].content == ROOT and not machine.state[0].unhashed_last


@callable_in_kernels
def give_back(machine: Machine, block: int, lane: int) -> None:
    """Decrement a block's number of users, and free it to a lane when no user is left."""
    blocks, state, freed = machine.blocks, machine.state[0], machine.blocks[block]
    freed.users -= 1
    if freed.users > 0:
        return
    state.free += 1
    if goes_in_front(machine, block):
        link(machine, block, UNHASHED, state.blocks + UNHASHED)
        return
    state.freed += 1
    freed.freed = state.freed
    freed.freed_s = state.now_s
    freed.lane = lane
    link(machine, block, lane + 1, blocks[state.blocks + lane + 1].before)


@called_by_kernels
def expire(machine: Machine) -> None:
    """Remove the hash of free blocks idle beyond the TTL; they are then allocated first."""
    state = machine.state[0]
    for queue in range(1, state.lanes + 1):
        block = head_of(machine, queue)
        while block != NONE and machine.blocks[block].freed_s < state.now_s - state.ttl_s:
            unlink(machine, block)
            if machine.blocks[block].content != ROOT:
                lose_content(machine, block)
                state.evictions += 1
            link(machine, block, UNHASHED, state.blocks + UNHASHED)
            block = head_of(machine, queue)


@callable_in_kernels
def candidate(machine: Machine, lane: int) -> int:
    """Return the block that a lane evicts first, NONE if it is empty.

    If the policy evicts leaves only, blocks with cached children leave their queue (`park`).
    """
    head = head_of(machine, lane + 1)
    while machine.state[0].leaf and head != NONE and has_orphans(machine, head):
        park(machine, head)
        head = head_of(machine, lane + 1)
    return head


@callable_in_kernels
def leaves_first(worth: float, freed: int, other_worth: float, other_freed: int) -> bool:
    """Return whether a block is evicted before another: worth less, or as much and freed first."""
    return worth < other_worth or (worth == other_worth and freed < other_freed)


@callable_in_kernels
def worth_of(machine: Machine, lane: int, head: int) -> float:
    """Return the worth of a lane's first block."""
    state = machine.state[0]
    if state.lanes == 1:
        return 0.0
    idle_s = state.now_s - machine.blocks[head].freed_s
    return machine.functions.score(lane, idle_s, machine.p, machine.tables.in_force)  # type: ignore[no-any-return]


@called_by_kernels
def choose_victim(machine: Machine) -> int:
    """Return the block to evict: of all lanes' candidates that of lowest worth, else freed first.

    Also record the runner-up's worth and free-sequence number, which `choose_again` compares.
    """
    state = machine.state[0]
    chosen, least_worth, first_freed = NONE, np.inf, ALWAYS
    state.second_worth, state.second_freed = np.inf, ALWAYS
    for word in range(len(machine.busy)):
        busy = machine.busy[word]
        while busy != 0:
            bit = lowest_bit(busy)
            busy ^= _ONE << np.uint64(bit)
            lane = (word << 6) + bit
            head = candidate(machine, lane)
            if head == NONE:
                machine.busy[word] ^= _ONE << np.uint64(bit)
                continue
            worth, freed = worth_of(machine, lane, head), machine.blocks[head].freed
            if leaves_first(worth, freed, least_worth, first_freed):
                state.second_worth, state.second_freed = least_worth, first_freed
                chosen, least_worth, first_freed = head, worth, freed
                state.taken_lane = lane
            elif leaves_first(worth, freed, state.second_worth, state.second_freed):
                state.second_worth, state.second_freed = worth, freed
    return chosen


@callable_in_kernels
def choose_again(machine: Machine) -> int:
    """Return the block to evict, with one comparison if only the last victim's lane has changed."""
    state = machine.state[0]
    if state.taken_lane != NONE:
        head = candidate(machine, state.taken_lane)
        if head != NONE:
            worth, freed = worth_of(machine, state.taken_lane, head), machine.blocks[head].freed
            if leaves_first(worth, freed, state.second_worth, state.second_freed):
                return head
    return choose_victim(machine)


@callable_in_kernels
def take(machine: Machine, again: bool) -> int:
    """Allocate a free block: one without a hash, else the block to evict. Some block must be free.

    `again`: the pool and the time have not changed since the last allocation.
    """
    state = machine.state[0]
    block = head_of(machine, UNHASHED)
    if not again:
        state.taken_lane = NONE
    if block == NONE and state.fresh < state.blocks:
        block = state.fresh
        state.fresh += 1
        machine.blocks[block].queue = PINNED
    else:
        if block == NONE:
            block = choose_again(machine)
            if machine.blocks[block].content != ROOT:
                if machine.blocks[block].twin_after != block:
                    state.taken_lane = NONE  # its twin, at the front of a lane, may have to stay
                lose_content(machine, block)
                state.evictions += 1
        unlink(machine, block)
    machine.blocks[block].users = 1
    state.free -= 1
    if has_tier(machine):
        note_block(machine, block)
    return block


@called_by_kernels
def note_block(machine: Machine, block: int) -> None:
    """Record in `taken` that a request gets a block; the step waits for stores that read it."""
    off, requests = machine.offload, machine.requests
    off.taken[block] = off.state[0].plan
    entry = off.fence[block]
    while entry >= off.state[0].fences_done:
        fence = off.fences[entry % len(off.fences)]
        if fence.request == ANY or requests[fence.request].finished_s >= 0:  # nan until then
            off.stores[fence.job % len(off.stores)].flush = 1
        entry = fence.older

"""The blocks of an engine: which are in use, what they hold, and the queues of free ones.

A free block keeps its content until it is taken. Those without a hash lie in a queue of their own,
the last one freed in front; those with a hash lie in the lanes of the policy, the last one freed at
the end.

Source: vLLM 0.32.0, vllm/v1/core/block_pool.py (BlockPool, BlockHashToBlockMap) and
vllm/v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue).
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels
from kvscope.vllm_sim.state import NONE, PARKED, PINNED, ROOT, UNHASHED, Machine


@callable_in_kernels
def head_of(machine: Machine, queue: int) -> int:
    """The block at the front of a queue, NONE if it is empty."""
    blocks = machine.state[0].blocks
    block = machine.blocks[blocks + queue].after
    return block if block < blocks else NONE


@callable_in_kernels
def link(machine: Machine, block: int, queue: int, behind: int) -> None:
    """Put a block into a queue, behind another one or the queue's sentinel."""
    blocks = machine.blocks
    following = blocks[behind].after
    blocks[behind].after = block
    blocks[block].before = behind
    blocks[block].after = following
    blocks[following].before = block
    blocks[block].queue = queue


@callable_in_kernels
def unlink(machine: Machine, block: int) -> None:
    """Take a free block out of the queue it is in, if it is in one."""
    blocks, gone = machine.blocks, machine.blocks[block]
    if gone.queue >= 0:
        blocks[gone.before].after = gone.after
        blocks[gone.after].before = gone.before
    gone.queue = PINNED


@callable_in_kernels
def park(machine: Machine, block: int) -> None:
    """Set a lane's head aside until it has no cached child any more."""
    unlink(machine, block)
    machine.blocks[block].queue = PARKED


@callable_in_kernels
def unpark(machine: Machine, block: int) -> None:
    """Put a block that was set aside back to its place by age, which is near the front."""
    blocks, count = machine.blocks, machine.state[0].blocks
    queue = blocks[block].lane + 1
    behind = count + queue
    following = blocks[behind].after
    while following < count and blocks[following].freed < blocks[block].freed:
        behind = following
        following = blocks[following].after
    link(machine, block, queue, behind)


@callable_in_kernels
def give_content(machine: Machine, block: int, content: int, leaf: bool) -> None:
    """Hash a block: from now on look-ups for its content find it, or an older one of the same."""
    blocks, nodes, new = machine.blocks, machine.nodes, machine.blocks[block]
    new.content = content
    oldest = nodes[content].first
    if oldest == NONE:
        nodes[content].first = block
        new.twin_after = block
        new.twin_before = block
        if leaf:
            nodes[nodes[content].parent].children += 1
        return
    youngest = blocks[oldest].twin_before
    blocks[youngest].twin_after = block
    new.twin_before = youngest
    new.twin_after = oldest
    blocks[oldest].twin_before = block
    if leaf and blocks[oldest].queue == PARKED:  # the new one does for the children
        unpark(machine, oldest)


@callable_in_kernels
def lose_content(machine: Machine, block: int, leaf: bool) -> None:
    """Take a block's hash away."""
    blocks, nodes, old = machine.blocks, machine.nodes, machine.blocks[block]
    node = nodes[old.content]
    old.content = ROOT
    if old.twin_after != block:
        blocks[old.twin_before].twin_after = old.twin_after
        blocks[old.twin_after].twin_before = old.twin_before
        if node.first == block:
            node.first = old.twin_after
        return
    node.first = NONE
    if leaf:
        above = nodes[node.parent]
        above.children -= 1
        if above.children == 0 and above.first != NONE and blocks[above.first].queue == PARKED:
            unpark(machine, above.first)


@callable_in_kernels
def has_orphans(machine: Machine, block: int) -> bool:
    """Whether cached nodes would lose the way to the root if this block were given up."""
    lonely = machine.blocks[block].twin_after == block
    return lonely and machine.nodes[machine.blocks[block].content].children > 0  # type: ignore[no-any-return]


@callable_in_kernels
def use(machine: Machine, block: int) -> None:
    """One more request uses a block; a free one leaves its queue and keeps its content."""
    if machine.blocks[block].users == 0:
        unlink(machine, block)
        machine.state[0].free -= 1
    machine.blocks[block].users += 1


@callable_in_kernels
def give_back(machine: Machine, block: int, lane: int) -> None:
    """One request less uses a block; if it was the last one the block becomes free."""
    blocks, state, freed = machine.blocks, machine.state[0], machine.blocks[block]
    freed.users -= 1
    if freed.users > 0:
        return
    state.free += 1
    if freed.content == ROOT:
        link(machine, block, UNHASHED, state.blocks + UNHASHED)
        return
    state.freed += 1
    freed.freed = state.freed
    freed.freed_s = state.now_s
    freed.lane = lane
    link(machine, block, lane + 1, blocks[state.blocks + lane + 1].before)


@callable_in_kernels
def expire(machine: Machine, leaf: bool) -> None:
    """Take the content of free blocks that nobody used for the time to live; they go first then."""
    state = machine.state[0]
    for queue in range(1, state.lanes + 1):
        block = head_of(machine, queue)
        while block != NONE and machine.blocks[block].freed_s < state.now_s - state.ttl_s:
            unlink(machine, block)
            lose_content(machine, block, leaf)
            state.evictions += 1
            link(machine, block, UNHASHED, state.blocks + UNHASHED)
            block = head_of(machine, queue)

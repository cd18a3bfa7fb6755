"""What the scheduler does to one request: look it up, let it in, give it blocks, send it away.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_manager.py (KVCacheManager.get_computed_blocks,
allocate_slots, free) and vllm/v1/core/sched/scheduler.py (Scheduler._preempt_request).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvscope.core.jit import callable_in_kernels
from kvscope.core.prefix import write_path
from kvscope.policies.base import ADAPT_EVERY, RECENT, LanePolicy, Turn
from kvscope.replay.structures.recent import note_recent, sort_recent
from kvscope.vllm_sim.eviction import Take
from kvscope.vllm_sim.pool import give_back, give_content, lose_content, use
from kvscope.vllm_sim.state import NONE, ROOT, Machine

Grow: TypeAlias = Callable[[Machine, int, int], None]
Release: TypeAlias = Callable[[Machine, int, bool], None]
LetIn: TypeAlias = Callable[[Machine, int, int], int]


@callable_in_kernels
def blocks_for(tokens: int, block_size: int) -> int:
    """How many blocks so many tokens take, the last one perhaps in part."""
    return (tokens + block_size - 1) // block_size


@callable_in_kernels
def front_of_line(machine: Machine) -> int:
    """The request whose turn it is to be let in, NONE if nobody waits; its path is written out.

    Preempted ones are first, the last one preempted in front; then by arrival. Oversized requests
    are turned away here.
    """
    requests, state = machine.requests, machine.state[0]
    if state.preempted > 0:
        request = machine.preempted[state.preempted - 1]
    else:
        while state.next < state.arrived and requests[state.next].oversized:
            state.next += 1
            state.finished += 1
        if state.next == state.arrived:
            return NONE
        request = state.next
    if state.front != request:
        row = machine.path[len(machine.path) - 1]
        wanted = requests[request]
        write_path(machine.nodes.parent, wanted.leaf, row, 0, wanted.length)
        state.front = request
    return request  # type: ignore[no-any-return]


@callable_in_kernels
def look_up(machine: Machine, most: int) -> int:
    """How many of the first `most` blocks of the front path some block holds."""
    path = machine.path[len(machine.path) - 1]
    found = 0
    while found < most and machine.nodes[path[found]].first != NONE:
        found += 1
    return found


@callable_in_kernels
def count_free(machine: Machine, hits: int) -> int:
    """How many of the blocks that were found are free, so that using them leaves fewer to take."""
    path = machine.path[len(machine.path) - 1]
    free = 0
    for at in range(hits):
        if machine.blocks[machine.nodes[path[at]].first].users == 0:
            free += 1
    return free


@callable_in_kernels
def use_hits(machine: Machine, request: int, hits: int) -> None:
    """Use the blocks that hold the first `hits` nodes of the front path: nobody takes them now."""
    served, path = machine.requests[request], machine.path
    for at in range(path.shape[1]):
        path[served.slot, at] = path[len(path) - 1, at]
    for at in range(hits):
        block = machine.nodes[path[served.slot, at]].first
        use(machine, block)
        machine.table[served.slot, at] = block
    served.held = hits
    served.hashed = hits


@callable_in_kernels
def hash_blocks(machine: Machine, request: int, tokens: int, leaf: bool) -> None:
    """Give content to the blocks that `tokens` tokens fill, so that others find them."""
    served = machine.requests[request]
    full = tokens // machine.state[0].block_size
    for at in range(served.hashed, full):
        block = machine.table[served.slot, at]
        give_content(machine, block, machine.path[served.slot, at], leaf)
    served.hashed = max(served.hashed, full)


def grower(take: Take) -> Grow:
    """The function that takes free blocks until a request has got so many."""

    @callable_in_kernels
    def grow(machine: Machine, request: int, blocks: int) -> None:
        served = machine.requests[request]
        for at in range(served.held, blocks):
            machine.table[served.slot, at] = take(machine)
        served.held = max(served.held, blocks)

    return grow


def releaser(policy: type[LanePolicy], leaf: bool) -> Release:
    """The function that gives back all blocks of a request that runs, the tail first.

    One that has not finished will be back at once, so none of its blocks are given up early. The
    new blocks of a turn that the policy does not admit lose their content.
    """
    admits = callable_in_kernels(policy.admits)
    place = callable_in_kernels(policy.place)

    @callable_in_kernels
    def release(machine: Machine, request: int, finished: bool) -> None:
        blocks, served, state = machine.blocks, machine.requests[request], machine.state[0]
        slot, held = served.slot, served.held
        turn = Turn(
            request,
            served.arrival_s,
            served.history_tokens,
            served.category,
            served.next_prompt_tokens,
        )
        depth, deep, shallow = place(turn, state.block_size, machine.p)
        if not finished:
            depth = held
        elif not admits(turn, machine.p):
            for at in range(served.hits, served.hashed):
                block = machine.table[slot, at]
                if blocks[block].users == 1:
                    lose_content(machine, block, leaf)
        for at in range(held):  # to the front of their queue, where the deepest comes to lie first
            block = machine.table[slot, at]
            if blocks[block].content == ROOT:
                give_back(machine, block, shallow)
        for at in range(held - 1, -1, -1):
            block = machine.table[slot, at]
            if blocks[block].content != ROOT:
                give_back(machine, block, deep if at >= depth else shallow)
        served.held = 0
        served.hashed = 0
        served.slot = NONE
        machine.slots[state.max_num_seqs - state.running] = slot
        state.running -= 1

    return release


def preempter(release: Release) -> Take:
    """The function that sends the youngest running request back to the front of the line."""

    @callable_in_kernels
    def preempt(machine: Machine) -> int:
        state = machine.state[0]
        request = machine.running[state.running - 1]
        release(machine, request, False)
        served = machine.requests[request]
        served.computed = 0
        served.coming = 0
        served.preemptions += 1
        machine.preempted[state.preempted] = request
        state.preempted += 1
        return request  # type: ignore[no-any-return]

    return preempt


def admitter(policy: type[LanePolicy], grow: Grow, leaf: bool) -> LetIn:
    """The function that tries to start the request in front, given a budget of tokens.

    How many tokens it computes in the step being planned; 0 if it has to wait.
    """
    note = noter(policy)

    @callable_in_kernels
    def let_in(machine: Machine, request: int, budget: int) -> int:
        served, state = machine.requests[request], machine.state[0]
        size, total = state.block_size, served.prompt + served.generated
        hits = look_up(machine, served.look if served.hits == NONE else (total - 1) // size)
        tokens = min(total - hits * size, budget)
        blocks = blocks_for(hits * size + tokens, size)
        wanted = blocks_for(total, size) if state.reserve_full_prompt else blocks
        wanted += count_free(machine, hits) - hits
        if state.running > 0:
            wanted += state.watermark_blocks
        if wanted > state.free:
            return 0
        served.slot = machine.slots[state.max_num_seqs - state.running - 1]
        machine.running[state.running] = request
        state.running += 1
        if state.preempted > 0:
            state.preempted -= 1
        else:
            state.next += 1
        use_hits(machine, request, hits)
        grow(machine, request, blocks)
        hash_blocks(machine, request, hits * size + tokens, leaf)
        served.computed = hits * size
        if served.hits == NONE:
            note(machine, request, hits)
        return tokens  # type: ignore[no-any-return]

    return let_in


def noter(policy: type[LanePolicy]) -> Grow:
    """The function that notes a request's hits when it is let in for the first time."""
    adapt = callable_in_kernels(policy.adapt)
    adapts = callable_in_kernels(policy.adapts)
    adaptive = policy.adaptive

    @callable_in_kernels
    def note(machine: Machine, request: int, hits: int) -> None:
        served, state = machine.requests[request], machine.state[0]
        served.hits = hits
        served.let_in_s = state.now_s
        if adaptive and adapts(machine.p):
            note_recent(machine.recent, state.let_in, served.prompt - hits * state.block_size)
            if (state.let_in + 1) % ADAPT_EVERY == 0:
                end = sort_recent(machine.recent, state.let_in + 1)
                adapt(machine.recent[RECENT:end], machine.p)
        state.let_in += 1

    return note

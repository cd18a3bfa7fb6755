"""The chunks of a CPU tier in the order of a policy of kvscope, as its plugin keeps them.

When a request ends, its chunks go to the lanes of the policy. Until then those that it wrote (and
in vLLM 0.33 those that it found) are in a list of their own, worth as much as the most valuable
lane. Ranks are those of vLLM's LRU. Chunks without a held one behind them leave first. Where all
lanes are worth the same, that is vLLM's LRU, whatever is behind a chunk.

Source: kvscope/vllm_plugin/chunk_lanes.py, to which tests hold it equal.
"""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels
from kvscope.policies.base import Turn
from kvscope.vllm_sim.chunks import (
    choose_victims,
    chunk_at,
    commit_accesses,
    is_held,
    move_to_end,
    sentinel,
)
from kvscope.vllm_sim.offload_state import RUNNING, SEEN, Offload
from kvscope.vllm_sim.state import NONE, Machine


@callable_in_kernels
def next_candidate(off: Offload, node: int, place: int, leaves: bool) -> int:
    """Return the first chunk of a list behind `node` that may be evicted, NONE without one.

    Those of the offer in hand and those chosen already may not; with `leaves` only those without a
    held chunk behind them.
    """
    chunks, end, offer = off.chunks, sentinel(off, place), off.state[0].offers
    at = chunks[node].after
    while at != end and (
        chunks[at].users != 0 or chunks[at].offer == offer or (leaves and chunks[at].children > 0)
    ):
        at = chunks[at].after
    return NONE if at == end else at


@callable_in_kernels
def find_candidates(off: Offload, leaves: bool) -> None:
    """Write the first candidate of each list into `cursors`."""
    for place in range(off.state[0].lists):
        off.cursors[place] = next_candidate(off, sentinel(off, place), place, leaves)


@callable_in_kernels
def take_candidate(off: Offload, node: int, leaves: bool) -> None:
    """Choose a candidate; the chunk above it may be the next one."""
    chunks, offer = off.chunks, off.state[0].offers
    chunks[node].offer = offer
    above = chunks[node].above
    chunks[above].children -= 1
    place = chunks[node].place
    if off.cursors[place] == node:
        off.cursors[place] = next_candidate(off, node, place, leaves)
    free = is_held(off, above) and chunks[above].users == 0 and chunks[above].offer != offer
    if leaves and free and chunks[above].children == 0:
        place = chunks[above].place
        first = off.cursors[place]
        if first == NONE or chunks[above].rank < chunks[first].rank:
            off.cursors[place] = above


@callable_in_kernels
def first_to_leave(off: Offload, highest: float) -> int:
    """Return the candidate that scores lowest, NONE without one; running ones score `highest`."""
    chosen, lowest = NONE, 0.0
    for place in range(off.state[0].lists):
        node = off.cursors[place]
        if node == NONE:
            continue
        worth = highest
        if place != RUNNING:
            idle_s = off.state[0].now_s - off.chunks[node].touched_s
            worth = off.functions.score(place - 1, idle_s, off.p, off.tables.in_force)
        older = chosen != NONE and off.chunks[node].rank < off.chunks[chosen].rank
        if chosen == NONE or worth < lowest or (worth == lowest and older):
            chosen, lowest = node, worth
    return chosen


@callable_in_kernels
def choose_by_policy(off: Offload, wanted: int) -> bool:
    """Choose as `choose_chunks` does, by the scores of a policy of kvscope."""
    highest = lowest = off.functions.score(0, 0.0, off.p, off.tables.in_force)
    for lane in range(1, off.state[0].lists - 1):
        worth = off.functions.score(lane, 0.0, off.p, off.tables.in_force)
        highest, lowest = max(highest, worth), min(lowest, worth)
    leaves, count = bool(off.state[0].leaf) and highest > lowest, 0
    find_candidates(off, leaves)
    while count < wanted:
        node = first_to_leave(off, highest)
        if node == NONE and leaves:  # all that may leave have held chunks behind them
            find_candidates(off, False)
            node = first_to_leave(off, highest)
            find_candidates(off, True)
        if node == NONE:
            break
        take_candidate(off, node, leaves)
        off.victims[count] = node
        count += 1
    for at in range(count):
        off.chunks[off.chunks[off.victims[at]].above].children += 1  # it has not left yet
    return count == wanted


@callable_in_kernels
def commit_to_lanes(machine: Machine, request: int, path: Int32s, chunks: int) -> None:
    """Move the chunks of a request that ended to the lanes of a policy of kvscope."""
    off, record = machine.offload, machine.requests[request]
    cuts, size = off.cuts[request], off.state[0].blocks_per_chunk
    tokens = machine.state[0].block_size * size
    for at in range(chunks - 1, -1, -1):
        node = chunk_at(off, path, at)
        if not off.marks[off.members[request].access + at] & SEEN or not is_held(off, node):
            continue
        part = int(np.searchsorted(cuts, (at + 1) * size - 1, side="right"))
        turn = Turn(
            request,
            record.arrival_s,
            record.history_tokens,
            off.category[request] * (len(cuts) + 1) + part,
            record.next_prompt_tokens,
        )
        _, lane = off.functions.place(turn, at + 1, tokens, off.p)
        move_to_end(off, node, lane + 1)


@callable_in_kernels
def choose_chunks(off: Offload, wanted: int) -> bool:
    """Write the next chunks to evict into `victims`; return False where too few may leave."""
    if off.state[0].ordered:
        return choose_by_policy(off, wanted)
    return choose_victims(off, wanted)


@callable_in_kernels
def commit_chunks(machine: Machine, request: int, path: Int32s, chunks: int) -> None:
    """Count what a request that ended did with its first so many chunks."""
    if machine.offload.state[0].ordered:
        commit_to_lanes(machine, request, path, chunks)
    else:
        commit_accesses(machine.offload, request, path, chunks)

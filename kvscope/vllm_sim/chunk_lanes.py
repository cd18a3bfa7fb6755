"""The chunks of a CPU tier in the order of a policy of kvscope, as its plugin keeps them.

When a request ends, its chunks go to the lanes of the policy. Until then those that it wrote (and
in vLLM 0.33 those that it found) are in a list of their own, worth as much as the most valuable
lane. Ranks are those of vLLM's LRU. Chunks without a held one behind them leave first. Where all
lanes are worth the same, that is vLLM's LRU, whatever is behind a chunk.

Source: kvscope/vllm_plugin/chunk_lanes.py, to which tests hold it equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels
from kvscope.policies.base import LanePolicy, Turn
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


class ChunkRules(NamedTuple):
    """What an order of chunks decides.

    `choose` (tier, count) writes the next chunks to evict into `victims`, and returns False where
    too few may leave. `commit` (machine, request, path, chunks) counts what a request that ended
    did with its first so many chunks.
    """

    choose: Callable[[Offload, int], bool]
    commit: Callable[[Machine, int, Int32s, int], None]


def chunk_rules(policy: type[LanePolicy] | None, leaf: bool) -> ChunkRules:
    """Return the rules of a policy, `leaf` as in `Policy.leaves`; without one vLLM's."""
    if policy is None:
        return ChunkRules(choose_victims, _commit_as_vllm)
    return ChunkRules(_chooser(policy, leaf), _committer(policy))


@callable_in_kernels
def _commit_as_vllm(machine: Machine, request: int, path: Int32s, chunks: int) -> None:
    commit_accesses(machine.offload, request, path, chunks)


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


def _chooser(policy: type[LanePolicy], leaf: bool) -> Callable[[Offload, int], bool]:
    score = callable_in_kernels(policy.score)

    @callable_in_kernels
    def first_to_leave(off: Offload, highest: float) -> int:
        chosen, lowest = NONE, 0.0
        for place in range(off.state[0].lists):
            node = off.cursors[place]
            if node == NONE:
                continue
            worth = highest
            if place != RUNNING:
                idle_s = off.state[0].now_s - off.chunks[node].touched_s
                worth = score(place - 1, idle_s, off.p, off.tables.in_force)
            older = chosen != NONE and off.chunks[node].rank < off.chunks[chosen].rank
            if chosen == NONE or worth < lowest or (worth == lowest and older):
                chosen, lowest = node, worth
        return chosen

    @callable_in_kernels
    def choose(off: Offload, wanted: int) -> bool:
        highest = lowest = score(0, 0.0, off.p, off.tables.in_force)
        for lane in range(1, off.state[0].lists - 1):
            worth = score(lane, 0.0, off.p, off.tables.in_force)
            highest, lowest = max(highest, worth), min(lowest, worth)
        leaves, count = leaf and highest > lowest, 0
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

    return choose


def _committer(policy: type[LanePolicy]) -> Callable[[Machine, int, Int32s, int], None]:
    place = callable_in_kernels(policy.place)

    @callable_in_kernels
    def commit(machine: Machine, request: int, path: Int32s, chunks: int) -> None:
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
            _, lane = place(turn, at + 1, tokens, off.p)
            move_to_end(off, node, lane + 1)

    return commit

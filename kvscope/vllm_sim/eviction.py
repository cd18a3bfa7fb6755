"""Which free block an engine takes next, by the rules of a lane policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvscope.core.jit import callable_in_kernels
from kvscope.policies.base import LanePolicy
from kvscope.vllm_sim.pool import has_orphans, head_of, lose_content, park, unlink
from kvscope.vllm_sim.state import NONE, UNHASHED, Machine

Take: TypeAlias = Callable[[Machine], int]


def taker(policy: type[LanePolicy], leaf: bool) -> Take:
    """The function that takes one free block for a request; it may be called while one is free.

    Blocks without a hash first, then the head of the lane that scores lowest, of equals the one
    freed first. `leaf`: a block without which cached ones could not be found is passed over.
    """
    choose = chooser(policy, leaf)

    @callable_in_kernels
    def take(machine: Machine) -> int:
        state = machine.state[0]
        block = head_of(machine, UNHASHED)
        if block == NONE:
            block = choose(machine)
            lose_content(machine, block, leaf)
            state.evictions += 1
        unlink(machine, block)
        machine.blocks[block].users = 1
        state.free -= 1
        return block

    return take


def chooser(policy: type[LanePolicy], leaf: bool) -> Take:
    """The function that names the hashed block that leaves first."""
    score = callable_in_kernels(policy.score)

    @callable_in_kernels
    def choose(machine: Machine) -> int:
        blocks, state = machine.blocks, machine.state[0]
        chosen, lowest = NONE, 0.0
        for lane in range(state.lanes):
            head = head_of(machine, lane + 1)
            while leaf and head != NONE and has_orphans(machine, head):
                park(machine, head)
                head = head_of(machine, lane + 1)
            if head == NONE:
                continue
            worth = 0.0
            if state.lanes > 1:
                idle_s = state.now_s - blocks[head].freed_s
                worth = score(lane, idle_s, machine.p, machine.tables[state.period])
            older = chosen != NONE and blocks[head].freed < blocks[chosen].freed
            if chosen == NONE or worth < lowest or (worth == lowest and older):
                chosen, lowest = head, worth
        return chosen

    return choose

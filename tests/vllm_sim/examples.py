"""Small traces for the engine model, and its steps run uncompiled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.policies.base import LanePolicy
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.scheduler import run_steps
from kvscope.vllm_sim.settings import EngineSettings, StepCost
from kvscope.vllm_sim.state import NONE, PARKED, Machine, idle_machine
from tests.small_traces import built, prompts

SIZE = 4
SECONDS = StepCost(base_s=1.0)  # every step takes a second
FOREVER = 10**6


def asks(path: str, tokens: int, outputs: int = 1, at: float = 0.0) -> Request:
    """Return a request whose blocks are called by the letters of `path`."""
    return Request(input_tokens=tokens, output_tokens=outputs, arrival_s=at, hash_ids=list(path))


def told(*requests: Request) -> Prompts:
    """Return the trace of these requests, in blocks of four tokens."""
    return prompts(built(requests, SIZE))


def engine(
    known: Prompts,
    blocks: int,
    policy: LanePolicy | None = None,
    cost: StepCost = SECONDS,
    **settings: float,
) -> Machine:
    """Return an idle engine that waits for the requests."""
    return idle_machine(known, policy or Lru(), EngineSettings(blocks, **settings), cost)


def run(machine: Machine, steps: int = FOREVER) -> Machine:
    """So many steps, uncompiled."""
    run_steps(machine, steps, FOREVER, math.inf)
    return machine


def served(*requests: Request, blocks: int, **settings: float) -> Machine:
    """Return the engine after all requests."""
    return run(engine(told(*requests), blocks, **settings))


def queue(machine: Machine, number: int) -> list[int]:
    """Return the blocks of one queue, the next to be taken first."""
    blocks, usable = machine.blocks, int(machine.state[0].blocks)
    at, found = int(blocks[usable + number].after), []
    while at < usable:
        found.append(at)
        at = int(blocks[at].after)
    return found + [*range(int(machine.state[0].fresh), usable)] * (number == 0)


def check_books(machine: Machine, leaf: bool) -> None:
    """Every block is where it should be, once, and all counts are what a recount gives."""
    state, holders = machine.state[0], machine.holders
    blocks = machine.blocks[: state.blocks]
    queued = [block for number in range(state.lanes + 1) for block in queue(machine, number)]
    parked = np.flatnonzero(blocks.queue == PARKED).tolist()
    for number in range(1, state.lanes + 1):
        lane = number - 1
        assert machine.busy[lane >> 6] >> np.uint64(lane & 63) & np.uint64(1) or not queue(
            machine, number
        )
    assert sorted(queued + parked) == np.flatnonzero(blocks.users == 0).tolist()
    assert state.free == len(queued) + len(parked)
    assert state.free + np.count_nonzero(blocks.users) == state.blocks
    rows = machine.requests[machine.requests.slot != NONE]
    used = [
        machine.table[row.slot, : -(-row.allocated // state.block_size)].tolist() for row in rows
    ]
    assert blocks.users.tolist() == _counts(used, len(blocks))
    assert all(blocks.content[queue(machine, 0)] == 0)
    held = np.flatnonzero(holders > 0)
    assert sorted(held.tolist()) == sorted(set(blocks.content[blocks.content > 0].tolist()))
    for node in held:
        first = int(holders[node]) - 1
        ring, at = [first], int(blocks[first].twin_after)
        while at != first:
            ring.append(at)
            at = int(blocks[at].twin_after)
        assert sorted(ring) == np.flatnonzero(blocks.content == node).tolist()
    if leaf:
        assert machine.children.tolist() == _counts([machine.parents[held].tolist()], len(holders))
        above = machine.parents[held]
        assert all((above == 0) | (holders[above] > 0))


def _counts(lists: Sequence[list[int]], length: int) -> list[int]:
    every = [one for members in lists for one in members]
    return np.bincount(np.array(every, dtype=np.int64), minlength=length).tolist()

"""kvscope's model of the engine, stepped as vLLM's side is, and its order of free blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvscope.policies.base import LanePolicy
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.vllm_sim.replay import lane_class, machine_for
from kvscope.vllm_sim.scheduler import stepper
from kvscope.vllm_sim.settings import EngineSettings, StepCost
from kvscope.vllm_sim.state import Machine
from tests.conformance.conversations import Asked, prompts_of

ONE_EACH = StepCost(base_s=1.0)
ALWAYS = 2**31


class Model:
    """The model of an engine that serves `asked`; every step takes one second."""

    def __init__(
        self,
        asked: list[Asked],
        size: int,
        policy: LanePolicy,
        settings: EngineSettings,
        kinds: Sequence[str] | None = None,
        tables: Tables = NO_TABLES,
    ) -> None:
        prompts = prompts_of(asked, size)
        if kinds is not None:
            met = list(dict.fromkeys(kinds))
            category = np.array([met.index(kind) for kind in kinds], dtype=np.int32)
            prompts = replace(prompts, category=category, categories=tuple(met))
        self.machine: Machine = machine_for(prompts, policy, settings, ONE_EACH, tables=tables)
        self.settings = settings
        self.run = stepper(lane_class(policy), policy.evicts == "leaf")

    def step(self) -> bool:
        """As `VllmScheduler.step`."""
        return bool(self.run(self.machine, 1, ALWAYS))

    def finish(self, requests: int) -> None:
        """Step on until that many requests have been served."""
        self.run(self.machine, ALWAYS, requests)

    def running(self) -> list[int]:
        """The requests that run, in order of admission."""
        return self.machine.running[: self.machine.state[0].running].tolist()

    def free_blocks(self) -> list[tuple[int, int]]:
        """(number, content) of every free block, the next to be taken first; lanes in order."""
        queues = range(self.machine.state[0].lanes + 1)
        return [block for queue in queues for block in _walk(self.machine, queue)]


def _walk(machine: Machine, queue: int) -> list[tuple[int, int]]:
    usable = int(machine.state[0].blocks)
    after, content = machine.blocks.after, machine.blocks.content
    at, found = int(after[usable + queue]), []
    while at < usable:
        found.append((at, int(content[at])))
        at = int(after[at])
    return found

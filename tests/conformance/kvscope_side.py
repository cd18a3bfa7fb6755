"""Step kvscope's model of the engine as vLLM's side, and read its order of free blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from kvscope.policies.base import LanePolicy
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.vllm_sim.engine import engine_function, runner
from kvscope.vllm_sim.settings import EngineSettings, StepCost
from kvscope.vllm_sim.state import Machine, idle_machine
from tests.conformance.conversations import TokenRequest, prompts_of

ONE_EACH = StepCost(base_s=1.0)
ALWAYS = 2**31


class Model:
    """The model of an engine that serves `trace`; every step takes one second."""

    def __init__(
        self,
        trace: list[TokenRequest],
        size: int,
        policy: LanePolicy,
        settings: EngineSettings,
        kinds: Sequence[str] | None = None,
        tables: Tables = NO_TABLES,
    ) -> None:
        drafts = settings.ahead_tokens.prefilling > 0
        prompts = prompts_of(trace, size, int(drafts and not settings.drops_blocks))
        if kinds is not None:
            names = list(dict.fromkeys(kinds))
            category = np.array([names.index(kind) for kind in kinds], dtype=np.int32)
            prompts = replace(prompts, category=category, categories=tuple(names))
        self.machine: Machine = idle_machine(prompts, policy, settings, ONE_EACH, tables=tables)
        self.settings = settings
        self.run = runner(self.machine)

    def in_python(self) -> None:
        """Run it uncompiled."""
        self.run = partial(engine_function(self.machine), self.machine)

    def step(self) -> bool:
        """Take one step, as `VllmScheduler.step`."""
        return bool(self.run(1, ALWAYS, math.inf))

    def finish(self, requests: int) -> None:
        """Step on until that many requests have been served."""
        self.run(ALWAYS, requests, math.inf)

    def running(self) -> list[int]:
        """Return the running requests, in order of admission."""
        return self.machine.running[: self.machine.state[0].running].tolist()

    def free_blocks(self) -> list[tuple[int, int]]:
        """Return (number, content) of every free block, the next to be taken first."""
        queues = range(self.machine.state[0].lanes + 1)
        return [block for queue in queues for block in _walk(self.machine, queue)]


def _walk(machine: Machine, queue: int) -> list[tuple[int, int]]:
    usable = int(machine.state[0].blocks)
    after, content = machine.blocks.after, machine.blocks.content
    at, blocks = int(after[usable + queue]), []
    while at < usable:
        blocks.append((at, int(content[at])))
        at = int(after[at])
    fresh = range(int(machine.state[0].fresh), usable) if queue == 0 else ()
    return blocks + [(block, 0) for block in fresh]

"""What runs an engine, above a CPU tier or without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.core.jit import kernel, once
from kvscope.vllm_sim.offload import run_above_tier
from kvscope.vllm_sim.scheduler import run_steps
from kvscope.vllm_sim.state import Machine, has_tier


def engine_kernel(machine: Machine) -> Callable[..., Any]:
    """Return the kernel that runs `machine`, which it takes as `Referenced`: as `run_steps`."""
    return run_kernel(engine_runner(machine))


def engine_runner(machine: Machine) -> Callable[..., Any]:
    """Return the function in that kernel, which others may call with a machine by reference."""
    return run_above_tier if has_tier(machine) else run_steps


@once
def run_kernel(run_engine: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of a function that runs an engine."""

    @kernel
    def run(machine: Machine, steps: int, finished: int, until_s: float) -> bool:
        return run_engine(machine, steps, finished, until_s)  # type: ignore[no-any-return]

    return run

"""What runs an engine, by what it consists of: a function, and a kernel of that alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.vllm_sim.offload import offloaded_runner
from kvscope.vllm_sim.scheduler import run_kernel, runner
from kvscope.vllm_sim.state import Machine


def engine_kernel(machine: Machine) -> Callable[..., Any]:
    """Return the kernel that runs `machine`, which it takes as `Referenced`."""
    return run_kernel(engine_runner(machine))


def engine_runner(machine: Machine) -> Callable[..., Any]:
    """Return the function in that kernel, which others may call: see `runner`."""
    hybrid = len(machine.groups) > 0
    return offloaded_runner(hybrid) if len(machine.offload.members) > 0 else runner(hybrid)

"""The compiled step loop of an engine, above a CPU tier or without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvscope.core.jit import Function, Opaque, kernel
from kvscope.vllm_sim.offload import run_above_tier
from kvscope.vllm_sim.scheduler import run_steps
from kvscope.vllm_sim.state import Machine, has_tier


def runner(machine: Machine) -> Callable[[int, int, float], bool]:
    """Return a callable (steps, finished, until_s) that runs `machine`; False: no request can run.

    It ends after `steps` steps, once `finished` requests in all are done, or at `until_s` (s).
    """
    return partial(_run, engine_function(machine), Opaque(machine))


def engine_function(machine: Machine) -> Function:
    """Return the compiled step loop for machines with the array types of `machine`."""
    return Function(run_above_tier if has_tier(machine) else run_steps, _contract, machine)


def _contract(machine: Any, steps: int, finished: int, until_s: float) -> bool:
    """Declare the types of the step loop's arguments and result, for `Function`; never called."""
    raise NotImplementedError


@kernel
def _run(engine: Function, machine: Opaque, steps: int, finished: int, until_s: float) -> bool:
    return engine(machine, steps, finished, until_s)  # type: ignore[no-any-return]

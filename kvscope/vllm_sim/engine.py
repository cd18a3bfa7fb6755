"""What runs an engine, by what it consists of: a function, and a kernel of that alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.offload import Storage, offloaded_runner
from kvscope.vllm_sim.scheduler import run_kernel, runner
from kvscope.vllm_sim.state import Machine, lane_class


def engine_kernel(
    policy: Policy, machine: Machine, chunk_policy: Policy | None = None
) -> Callable[..., Any]:
    """Return the kernel that runs `machine` with `policy`; UsageError as in `lane_class`.

    `chunk_policy` orders the chunks of a CPU tier, as `OffloadSettings.policy`.
    """
    return run_kernel(engine_runner(policy, machine, chunk_policy))


def engine_runner(
    policy: Policy, machine: Machine, chunk_policy: Policy | None = None
) -> Callable[..., Any]:
    """Return the function in that kernel, which others may call: see `runner`."""
    above_tier = len(machine.offload.members) > 0
    if len(machine.groups) > 0:
        if above_tier:
            return offloaded_runner(Lru, leaf=False, hybrid=True)
        return runner(Lru, leaf=False, hybrid=True)
    if above_tier:
        leaf = policy.evicts == "leaf"
        own = lane_class(chunk_policy) if chunk_policy else None
        leaf_chunks = chunk_policy is not None and chunk_policy.evicts == "leaf"
        storage: Storage = "read" if machine.offload.state[0].storage else "none"
        if len(machine.offload.fetches) > 0:
            storage = "prefetched"
        return offloaded_runner(lane_class(policy), leaf, own, leaf_chunks, storage)
    return runner(lane_class(policy), policy.evicts == "leaf")

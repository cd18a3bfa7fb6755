"""The kernel that runs an engine, by what it consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.offload import Storage, offloaded_stepper
from kvscope.vllm_sim.scheduler import stepper
from kvscope.vllm_sim.state import Machine, lane_class


def engine_kernel(
    policy: Policy, machine: Machine, chunk_policy: Policy | None = None
) -> Callable[..., Any]:
    """Return the kernel that runs `machine` with `policy`; UsageError as in `lane_class`.

    `chunk_policy` orders the chunks of a CPU tier, as `OffloadSettings.policy`.
    """
    above_tier = len(machine.offload.members) > 0
    if len(machine.groups) > 0:
        if above_tier:
            return offloaded_stepper(Lru, leaf=False, hybrid=True)
        return stepper(Lru, leaf=False, hybrid=True)
    if above_tier:
        leaf = policy.evicts == "leaf"
        own = lane_class(chunk_policy) if chunk_policy else None
        leaf_chunks = chunk_policy is not None and chunk_policy.evicts == "leaf"
        storage: Storage = "read" if machine.offload.state[0].storage else "none"
        if len(machine.offload.fetches) > 0:
            storage = "prefetched"
        return offloaded_stepper(lane_class(policy), leaf, own, leaf_chunks, storage)
    return stepper(lane_class(policy), policy.evicts == "leaf")

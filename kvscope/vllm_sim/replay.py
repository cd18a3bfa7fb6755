"""A trace on an engine: what each request finds in the cache while others run beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import UsageError
from kvscope.core.trace import Prompts
from kvscope.policies.base import LanePolicy, Policy
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.vllm_sim.paths import engine_traffic
from kvscope.vllm_sim.scheduler import stepper
from kvscope.vllm_sim.settings import EngineSettings, StepCost
from kvscope.vllm_sim.state import Machine, idle_machine

SLICE_STEPS = 100_000  # between two looks at the keyboard


@dataclass(frozen=True, slots=True)
class EngineReplay:
    """What an engine did with R requests; every array has R entries.

    `hit_blocks` were found when a request was first let in, as vLLM counts its hits. `queue_s` is
    the time from its arrival until then, `ttft_s` until its first token. `oversized` requests need
    more than all blocks: they were turned away, have no hits, and nan for times. `steps` counts
    those that computed something.
    """

    policy: str
    params: Mapping[str, float]
    settings: EngineSettings
    hit_blocks: NDArray[np.int32]
    queue_s: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    preemptions: NDArray[np.int32]
    oversized: NDArray[np.bool_]
    evictions: int
    steps: int


def replay_engine(
    prompts: Prompts,
    policy: Policy,
    settings: EngineSettings,
    cost: StepCost,
    *,
    rate_scale: float = 1.0,
    tables: Tables = NO_TABLES,
) -> EngineReplay:
    """What vLLM's scheduler and cache manager make of a trace, blocks leaving as `policy` says.

    Requests come at their arrival times, `rate_scale` times as fast, and overlap by the time that
    `cost` gives each step. `tables` are for policies that read them. Raises UsageError for a policy
    without lanes.

    Source: vLLM 0.32.0, see `scheduler` and `pool`.
    """
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise UsageError(f"rate scale {rate_scale}", remedy="give a number above 0, such as 2")
    machine = machine_for(prompts, policy, settings, cost, rate_scale=rate_scale, tables=tables)
    run = stepper(lane_class(policy), policy.evicts == "leaf")
    while run(machine, SLICE_STEPS, len(machine.requests) + 1):
        pass
    requests, state = machine.requests, machine.state[0]
    return EngineReplay(
        policy=policy.name,
        params=policy.values,
        settings=settings,
        hit_blocks=np.maximum(requests.hits, 0).astype(np.int32),
        queue_s=requests.let_in_s - requests.arrival_s,
        ttft_s=requests.first_token_s - requests.arrival_s,
        finish_s=requests.finished_s.copy(),
        preemptions=requests.preemptions.astype(np.int32),
        oversized=requests.oversized > 0,
        evictions=int(state.evictions),
        steps=int(state.steps),
    )


def machine_for(
    prompts: Prompts,
    policy: Policy,
    settings: EngineSettings,
    cost: StepCost,
    *,
    rate_scale: float = 1.0,
    tables: Tables = NO_TABLES,
) -> Machine:
    """An idle engine that waits for the trace's first request; arguments as in `replay_engine`."""
    kind = lane_class(policy)
    tables = tables.chosen(policy, settings.usable_blocks)
    known = tables.seen(engine_traffic(prompts, rate_scale))
    if kind.learner and tables.values.shape[1] <= known.category.max(initial=0):
        raise ValueError(f"{policy.name} needs a row of its table for every category")
    return idle_machine(
        known,
        settings,
        cost,
        tables.values.shape[1] if kind.by_category else kind.lanes,
        p=policy.settings(),
        tables=tables.values,
        since=tables.since,
        ttl_s=float(policy.values.get("ttl_s", math.inf)),
    )


def lane_class(policy: Policy) -> type[LanePolicy]:
    """The class of a policy that an engine's queues can follow."""
    if not isinstance(policy, LanePolicy):
        raise UsageError(
            f"{policy.name} cannot order the blocks of an engine",
            where="--capacity-model engine",
            remedy="take a policy of recency queues, such as lru or tlru",
        )
    return type(policy)

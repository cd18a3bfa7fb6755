"""What the capacity of a cache means: blocks kept between requests, tiers of them, or an engine's.

- `cache`: requests come one after the other, and capacity bounds what is kept between them.
- the same in tiers (kvscope.replay.tiers): what is read from the lower ones takes its time.
- `engine` (kvscope.vllm_sim): vLLM's block pool, of which running requests take theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import UsageError
from kvscope.core.hits import KVCACHE_SIMULATOR, LIBCACHESIM, HitDefinition, standard
from kvscope.core.runs import RunSetting, TierOutcome
from kvscope.policies.base import Policy, QueuePolicy
from kvscope.replay.replay import replay
from kvscope.replay.summary import Served, serve
from kvscope.replay.tiers import run_tiers
from kvscope.vllm_sim import EngineSettings, StepCost, replay_engine

if TYPE_CHECKING:
    from kvscope.replay.workload import Asked, Workload

_ENGINE = EngineSettings(1)  # for its defaults, which are vLLM's
MAX_NUM_SEQS = _ENGINE.max_num_seqs
MAX_NUM_BATCHED_TOKENS = _ENGINE.max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a cache served every request, and what else is told of it; fields as in `Run`."""

    served: Served
    evictions: int
    tiers: tuple[TierOutcome, ...] = ()
    preemptions: int | None = None
    turned_away: int | None = None


def replayed(workload: Workload, asked: Asked) -> Replayed:
    """Replay what is asked in the capacity model of the workload's setting."""
    if asked.tiers:
        return _in_tiers(workload, asked)
    return (_in_engine if workload.setting.capacity_model == "engine" else _in_cache)(
        workload, asked
    )


def refuse_unlike_engine(setting: RunSetting) -> None:
    """Raise UsageError where an engine cannot be replayed as `setting` says."""
    definition = setting.definition
    if replace(definition, warmup=0.0) != standard():
        raise UsageError(
            f"an engine does not count as {definition.name} with outputs {definition.outputs}",
            where="--capacity-model engine",
            remedy="leave out --compat and --outputs",
        )
    if not setting.exact:
        raise UsageError(
            "part of the requests make another load",
            where="--capacity-model engine",
            remedy="leave out --sample and --coarsen",
        )


def _in_cache(workload: Workload, asked: Asked) -> Replayed:
    anchor, capacity = workload.anchor, asked.capacity_blocks
    definition = workload.setting.definition
    done = replay(
        workload.traffic,
        asked.policy,
        anchor.sample.capacity(capacity) if anchor else capacity,
        past=workload.history,
        tables=workload.tables(asked.policy),
        mandatory=_mandatory(definition, asked.policy),
    )
    served = _served(workload, _by_request(workload, done.hit_blocks))
    if workload.setting.sample_rate != 1:  # part of the requests make shorter queues than all
        served = replace(served, queued_ttft_s=None)
    return Replayed(served, int(done.evictions))


def _mandatory(definition: HitDefinition, policy: Policy) -> bool:
    """Whether the tool with that definition makes room before it inserts, under that policy.

    libCacheSim cannot refuse a block. kvcache-simulator's fifo cannot either; its lru and its
    optimum can.
    """
    if definition.name == KVCACHE_SIMULATOR.name:
        return isinstance(policy, QueuePolicy)
    return definition.name == LIBCACHESIM.name


def _in_tiers(workload: Workload, asked: Asked) -> Replayed:
    setting = workload.setting
    found = run_tiers(
        workload, asked.tiers, setting.tier_mode or "exclusive", block_bytes=setting.block_bytes
    )
    left = sum(tier.evictions - tier.demotions for tier in found.tiers)
    return Replayed(found.served, left, found.tiers)


def _in_engine(workload: Workload, asked: Asked) -> Replayed:
    setting = workload.setting
    refuse_unlike_engine(setting)
    done = replay_engine(
        workload.prompts,
        asked.policy,
        EngineSettings(
            asked.capacity_blocks,
            setting.max_num_seqs or MAX_NUM_SEQS,
            setting.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        ),
        StepCost.of(workload.profile),
        rate_scale=setting.rate_scale,
        tables=workload.tables(asked.policy),
    )
    served = _served(workload, done.hit_blocks)
    if served.queued_ttft_s is not None:  # the engine's own line, not one prefill after the other
        served = replace(served, queued_ttft_s=done.ttft_s)
    counted = slice(served.first, None)
    return Replayed(
        served,
        done.evictions,
        preemptions=int(done.preemptions[counted].sum()),
        turned_away=int(done.oversized[counted].sum()),
    )


def _served(workload: Workload, hit_blocks: NDArray[np.int32]) -> Served:
    setting = workload.setting
    return serve(
        workload.prompts,
        setting.definition,
        hit_blocks,
        workload.profile,
        rate_scale=setting.rate_scale,
    )


def _by_request(workload: Workload, hit_blocks: NDArray[np.int32]) -> NDArray[np.int32]:
    """Hits by request: in a flat cache every access was replayed as a request of its own."""
    if not workload.setting.definition.flat:
        return hit_blocks
    accesses = workload.turns.length + workload.turns.anonymous
    request = np.repeat(np.arange(len(accesses)), accesses)
    return np.bincount(request, hit_blocks, minlength=len(accesses)).astype(np.int32)

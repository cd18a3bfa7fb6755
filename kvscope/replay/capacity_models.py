"""What the capacity of a cache means: blocks kept between requests, tiers of them, or an engine's.

- `cache`: requests come one after the other, and capacity bounds what is cached between them.
- the same in tiers (kvscope.replay.tiers): reads from the lower ones take time.
- `engine` (kvscope.vllm_sim): vLLM's block pool, which also holds the blocks of running requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import UsageError
from kvscope.core.hits import KVCACHE_SIMULATOR, LIBCACHESIM, HitDefinition
from kvscope.core.runs import TierOutcome
from kvscope.policies.base import Policy, QueuePolicy
from kvscope.replay.metrics import ServedRequests, serve
from kvscope.replay.parameter_estimates import Estimates, bind
from kvscope.replay.policy_options import Variant
from kvscope.replay.replay import replay
from kvscope.replay.settings import engine_setting
from kvscope.replay.tier_spec import parse_tiers
from kvscope.replay.tiers import replay_tiers, tier_outcomes, transfer_s
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.vllm_sim import EngineSettings, StepCost, fits, replay_engine


@dataclass(frozen=True, slots=True)
class ServedReplay:
    """How a replay served every request, and its other results; fields as in `Run`."""

    served: ServedRequests
    evictions: int
    tiers: tuple[TierOutcome, ...] = ()
    preemptions: int | None = None
    turned_away: int | None = None


def serve_replay(workload: Workload, request: ReplayRequest) -> ServedReplay:
    """Replay a request in the capacity model of the workload's setting.

    Raises UsageError where the capacity model cannot run it.
    """
    if request.tiers:
        return _serve_tiers(workload, request)
    if workload.setting.capacity_model == "engine":
        return _serve_engine(workload, request)
    return _serve_cache(workload, request)


def tier_request(workload: Workload, policy: Policy, estimates: Estimates) -> ReplayRequest:
    """Return the request to replay the tiers of the setting, with `policy` where they name none."""
    setting = workload.setting
    tiers = parse_tiers(
        setting.tiers,
        block_bytes=setting.block_bytes,
        bind=lambda kind: policy if kind is type(policy) else bind(Variant(kind), estimates),
        default=type(policy),
    )
    return ReplayRequest(policy, sum(tier.capacity_blocks for tier in tiers), tiers)


def _serve_cache(workload: Workload, request: ReplayRequest) -> ServedReplay:
    anchor, capacity = workload.anchor, request.capacity_blocks
    done = replay(
        workload.traffic,
        request.policy,
        anchor.sample.capacity(capacity) if anchor else capacity,
        history=workload.history,
        tables=workload.tables(request.policy),
        mandatory=_mandatory(workload.setting.definition, request.policy),
    )
    served = _served(workload, _by_request(workload, done.hit_blocks))
    if workload.setting.sample_rate != 1:  # part of the requests make shorter queues than all
        served = replace(served, queued_ttft_s=None)
    return ServedReplay(served, int(done.evictions))


def _mandatory(definition: HitDefinition, policy: Policy) -> bool:
    """Return whether the tool with that definition makes room before it inserts.

    libCacheSim cannot refuse a block. kvcache-simulator's fifo cannot either; its lru and its
    optimum can.
    """
    if definition.name == KVCACHE_SIMULATOR.name:
        return isinstance(policy, QueuePolicy)
    return definition.name == LIBCACHESIM.name


def _serve_tiers(workload: Workload, request: ReplayRequest) -> ServedReplay:
    setting = workload.setting
    for wrong, what, remedy in (
        (workload.anchor is not None, "tiers are not replayed on a sample", "leave out --sample"),
        (setting.definition.flat, "a flat cache has no tiers", "take another definition"),
    ):
        if wrong:
            raise UsageError(what, where="--tiers", remedy=remedy)
    mode = setting.tier_mode or "exclusive"
    done = replay_tiers(workload.traffic, request.tiers, mode, history=workload.history)
    served = _served(workload, done.hit_blocks, transfer_s(done, setting.block_bytes))
    outcomes = tier_outcomes(done, served, setting.block_bytes)
    return ServedReplay(served, sum(tier.evictions - tier.demotions for tier in outcomes), outcomes)


def _serve_engine(workload: Workload, request: ReplayRequest) -> ServedReplay:
    setting, usual = workload.setting, EngineSettings(request.capacity_blocks)
    engine_setting(setting)  # refuses what an engine cannot replay
    done = replay_engine(
        workload.prompts,
        request.policy,
        replace(
            usual,
            max_num_seqs=setting.max_num_seqs or usual.max_num_seqs,
            max_num_batched_tokens=setting.max_num_batched_tokens or usual.max_num_batched_tokens,
        ),
        StepCost.of(workload.profile),
        rate_scale=setting.rate_scale,
        tables=workload.tables(request.policy, fits(workload.traffic, usual.usable_blocks)),
    )
    served = _served(workload, done.hit_blocks)
    if served.queued_ttft_s is not None:  # the engine's own queue, not one prefill after the other
        served = replace(served, queued_ttft_s=done.ttft_s)
    counted = slice(served.first, None)
    return ServedReplay(
        served,
        done.evictions,
        preemptions=int(done.preemptions[counted].sum()),
        turned_away=int(done.oversized[counted].sum()),
    )


def _served(
    workload: Workload, hit_blocks: Int32s, transfer_s: Float64s | None = None
) -> ServedRequests:
    setting = workload.setting
    return serve(
        workload.prompts,
        setting.definition,
        hit_blocks,
        workload.profile,
        rate_scale=setting.rate_scale,
        transfer_s=transfer_s,
    )


def _by_request(workload: Workload, hit_blocks: Int32s) -> Int32s:
    """Return hits by request: in a flat cache every access is replayed as a request."""
    if not workload.setting.definition.flat:
        return hit_blocks
    accesses = workload.request_traffic.length + workload.request_traffic.anonymous
    request = np.repeat(np.arange(len(accesses)), accesses)
    return np.bincount(request, hit_blocks, minlength=len(accesses)).astype(np.int32)

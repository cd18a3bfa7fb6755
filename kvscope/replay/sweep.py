"""Runs over one workload, on all cores, each returned as soon as it is finished.

The workload's capacity model determines what a capacity bounds:

- `cache`: requests come one after the other, and capacity bounds the blocks cached between them.
- `cache` on SGLang (kvscope.sglang_sim): its pool, which also holds blocks of running requests.
- `engine` (kvscope.vllm_sim): vLLM's block pool, which also holds the blocks of running requests,
  with the tiers of its OffloadingConnector below (kvscope.replay.tiers) or alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from threading import Event
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core import memory
from kvscope.core.arrays import Bools, Float64s, Int32s
from kvscope.core.executor import Executor, threads_for
from kvscope.core.hits import KVCACHE_SIMULATOR, LIBCACHESIM, HitDefinition
from kvscope.core.runs import Misses, Outcome, Run, RunSetting, TierOutcome
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.base import Policy, QueuePolicy
from kvscope.policies.lru import Lru
from kvscope.replay.footprint import replay_bytes
from kvscope.replay.metrics import ServedRequests, by_category, over_time, serve, summarize
from kvscope.replay.misses import reasons
from kvscope.replay.replay import replay
from kvscope.replay.sampling import with_drift
from kvscope.replay.settings import engine_setting
from kvscope.replay.tier_spec import Tier
from kvscope.replay.tiers import TieredReplay, read_s, tier_outcomes, transfer_s, write_s
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.vllm_sim import EngineReplay, EngineSettings, StepCost, fits, replay_engine
from kvscope.vllm_sim.offload_spec import OffloadSpec
from kvscope.vllm_sim.settings import NO_LIMIT, OffloadSettings, StorageSettings, Transfers

WINDOWS = 24  # that results over time are cut into, at most


def make_run(workload: Workload, request: ReplayRequest) -> Run:
    """Return the run of one policy at one capacity: its replay, measured.

    Raises UsageError where the capacity model cannot run the policy.
    """
    policy, setting = request.policy, workload.setting
    workload.prepare([policy])
    done = serve_replay(workload, request)
    served = done.served
    outcome = summarize(served, setting.slo_s)
    outcome, error = _estimated(workload, outcome, served.hit_blocks, request)
    return Run(
        policy=policy.name,
        leaves=policy.evicts,
        params={name: float(value) for name, value in policy.values.items()},
        hindsight=policy.hindsight,
        capacity_blocks=request.capacity_blocks,
        setting=setting,
        outcome=outcome,
        evictions=done.evictions,
        misses=_misses(workload, served.hit_blocks, served.first),
        parts=(
            *by_category(served, setting.slo_s),
            *over_time(served, workload.windows, setting.slo_s),
        ),
        hit_rate_error=error,
        tiers=done.tiers,
        preemptions=done.preemptions,
        turned_away=done.turned_away,
    )


def sweep(
    workload: Workload,
    requests: Sequence[ReplayRequest],
    *,
    executor: Executor | None = None,
    stop: Event | None = None,
) -> Iterator[Run]:
    """Yield the run of every request, in the order in which they finish.

    By default, threads execute the runs: one per core, or as many as fit in memory; kernels run
    without the interpreter lock. Once `stop` is set no further run starts, and the sweep ends with
    the running ones. Raises OutOfMemoryError if no run fits.
    """
    policies = [request.policy for request in requests]
    each_bytes = replay_bytes(workload.traffic)
    if requests:
        memory.require(each_bytes, f"a replay of {len(workload.traffic.leaf):,} requests")
    workload.prepare(policies)
    executor = executor or threads_for(each_bytes)
    shared = executor.shared(workload, workload.learned)
    runs = executor.results(make_run, requests, shared, stop=stop, each_bytes=each_bytes)
    for _, run in runs:
        yield run


def _estimated(
    workload: Workload, outcome: Outcome, hit_blocks: Int32s, request: ReplayRequest
) -> tuple[Outcome, float | None]:
    """Return the outcome with the whole trace's hit rate, and its error; None without a sample."""
    if workload.anchor is None:
        return outcome, None
    estimate = workload.anchor.estimate(hit_blocks, request.capacity_blocks)
    if workload.parts:
        smaller = [
            part.anchor.estimate(
                serve_replay(part, request).served.hit_blocks, request.capacity_blocks
            )
            for part in workload.parts
            if part.anchor is not None
        ]
        estimate = with_drift(estimate, workload.anchor.sample.rate, smaller)
    changed: dict[str, Any] = {f"{workload.setting.definition.weight}_hit_rate": estimate.rate}
    return dataclasses.replace(outcome, **changed), estimate.error


def _misses(workload: Workload, hit_blocks: Int32s, first: int) -> Misses | None:
    if workload.novelty is None:
        return None
    why = reasons(workload.prompts, workload.novelty, hit_blocks, 0, first)
    return Misses(**{name: getattr(why, name) for name in Misses.__struct_fields__})


class ServedReplay(Struct, frozen=True):
    """How a replay served every request, and its other results.

    `evictions` is a number of blocks; `tiers` is empty for a pool alone. `preemptions` and
    `turned_away`, the number of rejected requests, are over the counted requests, None without a
    simulated engine. `engine` is the replay of a simulated vLLM, else None; `rejected` is a mask of
    the requests (R) that a simulated SGLang rejects, else None.
    """

    served: ServedRequests
    evictions: int
    tiers: tuple[TierOutcome, ...] = ()
    preemptions: int | None = None
    turned_away: int | None = None
    engine: EngineReplay | None = None
    rejected: Bools | None = None


def serve_replay(workload: Workload, request: ReplayRequest) -> ServedReplay:
    """Return the replay of `request` in the capacity model of the workload's setting.

    Raises UsageError where the capacity model cannot run it.
    """
    if workload.setting.capacity_model == "engine":
        return _serve_engine(workload, request)
    if workload.on_tree(request.policy):
        return _serve_tree(workload, request)
    return _serve_cache(workload, request)


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


def _serve_tree(workload: Workload, request: ReplayRequest) -> ServedReplay:
    """Return the replay of a request on a simulated SGLang, with a host tier if it has one."""
    policy, blocks = request.policy, request.capacity_blocks
    pool, host = request.tiers or (Tier("hbm", blocks), workload.host_tier(blocks))
    done = workload.serve_tree(workload.traffic, policy, pool.capacity_blocks, host)
    served = replace(_served(workload, done.hit_blocks), stored_blocks=done.stored_blocks)
    if served.queued_ttft_s is not None:
        queued_s = done.token_s - workload.prompts.arrival_s
        served = replace(served, queued_ttft_s=queued_s, tpot_s=done.tpot_s)
    counted, rejected = slice(served.first, None), np.isnan(done.token_s)
    tiers: tuple[TierOutcome, ...] = ()
    if host is not None:
        hits = np.stack([done.hit_blocks - done.loaded_blocks, done.loaded_blocks], axis=1)
        evictions = done.evictions, done.host_evictions
        tiered = TieredReplay((pool, host), (policy.name, Lru.name), hits, evictions)
        tiers = tier_outcomes(tiered, served, workload.setting.block_bytes)
    return ServedReplay(
        served,
        done.evictions,
        tiers,
        preemptions=int(done.retractions[counted].sum()),
        turned_away=int(rejected[counted].sum()),
        rejected=rejected,
    )


def _mandatory(definition: HitDefinition, policy: Policy) -> bool:
    """Return whether the tool behind this definition makes room before it inserts a block.

    libCacheSim cannot refuse a block, nor can kvcache-simulator's fifo; its lru and optimum can.
    """
    if definition.name == KVCACHE_SIMULATOR.name:
        return isinstance(policy, QueuePolicy)
    return definition.name == LIBCACHESIM.name


def _serve_engine(workload: Workload, request: ReplayRequest) -> ServedReplay:
    setting = workload.setting
    engine_setting(setting)  # refuses what an engine cannot replay
    pool = request.tiers[0].capacity_blocks if request.tiers else request.capacity_blocks
    engine = engine_of(setting, pool, workload.prompts.block_size, request.tiers)
    done = replay_engine(
        workload.prompts,
        request.policy,
        engine,
        StepCost.of(workload.profile),
        tables=workload.tables(request.policy, fits(workload.traffic, engine)),
    )
    tiered = None
    served = _served(workload, done.hit_blocks)
    if done.loaded_blocks is not None:
        tiered = _tiered(request, done, engine.offload.eviction_policy if engine.offload else "")
        times = transfer_s(tiered, setting.block_bytes)
        served = _served(workload, tiered.hit_blocks, times)
    if served.queued_ttft_s is not None:  # the engine's own queue, not one prefill after the other
        outside_s = workload.profile.request_s  # HTTP and tokenizer: no part of the steps
        served = replace(served, queued_ttft_s=done.ttft_s + outside_s, tpot_s=done.tpot_s)
    if engine.offload is not None:
        chunk = chunk_blocks(engine, workload.prompts.block_size)
        served = replace(served, stored_blocks=done.stored_chunks * chunk)
    counted = slice(served.first, None)
    return ServedReplay(
        served,
        done.evictions,
        tier_outcomes(tiered, served, setting.block_bytes) if tiered else (),
        preemptions=int(done.preemptions[counted].sum()),
        turned_away=int(done.oversized[counted].sum()),
        engine=done,
    )


def chunk_blocks(engine: EngineSettings, block_size: int) -> int:
    """Return the number of trace blocks (of `block_size` tokens) in a chunk of the offload tier."""
    size = engine.groups.block_tokens if engine.groups else block_size
    return (engine.offload.blocks_per_chunk if engine.offload else 0) * size // block_size


def _tiered(request: ReplayRequest, done: EngineReplay, below: str) -> TieredReplay:
    """Return an engine's hits, reads and evictions by tier; `below` is the CPU tier's policy."""
    loaded, read = cast("Int32s", done.loaded_blocks), cast("Int32s", done.read_blocks)
    copied, count = cast("Int32s", done.copied_blocks), len(request.tiers)
    hits, reads = (
        np.stack([done.hit_blocks, blocks - read, read][:count], axis=1)
        for blocks in (loaded, copied)
    )
    evictions = done.evictions, done.chunk_evictions, 0
    policies = request.policy.name, below, request.policy.name
    return TieredReplay(request.tiers, policies[:count], hits, evictions[:count], reads)


def offload_settings(
    offload: str, tiers: tuple[Tier, ...], blocks_each: int, block_bytes: int | None
) -> OffloadSettings:
    """Return the settings of the CPU tier named in `offload`, and of the files below it.

    A block of the engine is `blocks_each` blocks of the trace, of `block_bytes` each. Raises
    UsageError where `block_bytes` is needed and unknown.
    """
    files = len(tiers) > 1
    spec = OffloadSpec.parse(offload, files=files)
    chunk = spec.blocks_per_chunk
    loads, stores = (
        [
            Transfers(tier.read.latency_s, copy_s(tier, chunk * blocks_each, block_bytes))
            for tier in tiers
        ]
        for copy_s in (read_s, write_s)
    )
    storage = None
    if files:
        storage = StorageSettings(tiers[1].capacity_blocks // chunk, loads[1], stores[1])
        if (pool := tiers[1].pool) is not None:
            every_s = chunk * blocks_each * (block_bytes or 0) / pool.bytes_per_s
            storage = replace(
                storage, shared=True, evicts=pool.evicts, pool_read_s=every_s, pool_write_s=every_s
            )
    return spec.settings(tiers[0].capacity_blocks // blocks_each, loads[0], stores[0], storage)


def blocks_each(groups: KvGroups | None, block_size: int) -> int:
    """Return the number of trace blocks (of `block_size` tokens) in a block of an engine."""
    return 1 if groups is None else max(1, groups.block_tokens // block_size)


def engine_of(
    setting: RunSetting, capacity_blocks: int, block_size: int, tiers: tuple[Tier, ...] = ()
) -> EngineSettings:
    """Return the engine of a setting with a pool of `capacity_blocks` blocks of the trace.

    Such a block has `block_size` tokens. `tiers`: the pool and the tiers below; (): a pool alone.
    """
    usual = EngineSettings(1)
    groups = KvGroups.parse(setting.kv_groups) if setting.kv_groups else None
    each, offload = blocks_each(groups, block_size), None
    own_tokens = block_size if groups is None else groups.block_tokens
    if tiers and setting.tier_mode is not None:
        offload = offload_settings(setting.tier_mode, tiers[1:], each, setting.block_bytes)
    settings = EngineSettings(
        min(max(1, capacity_blocks * block_size // own_tokens), NO_LIMIT),
        max_num_seqs=setting.max_num_seqs or usual.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens or usual.max_num_batched_tokens,
        groups=groups,
        offload=offload,
    )
    return settings.in_version(parse_engine(setting.engine)) if setting.engine else settings


def _served(
    workload: Workload, hit_blocks: Int32s, transfer_s: Float64s | None = None
) -> ServedRequests:
    setting = workload.setting
    return serve(
        workload.prompts,
        setting.definition,
        hit_blocks,
        workload.profile,
        transfer_s=transfer_s,
    )


def _by_request(workload: Workload, hit_blocks: Int32s) -> Int32s:
    """Return the hit blocks of each request; a flat cache replays every access as a request."""
    if not workload.setting.definition.flat:
        return hit_blocks
    accesses = workload.request_traffic.length + workload.request_traffic.anonymous
    request = np.repeat(np.arange(len(accesses)), accesses)
    return np.bincount(request, hit_blocks, minlength=len(accesses)).astype(np.int32)

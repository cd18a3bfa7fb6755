"""Replay of a trace on the simulated engine: hits and latency of requests that run together."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core import memory
from kvscope.core.arrays import Bools, Float64s, Int32s, Records
from kvscope.core.errors import UsageError
from kvscope.core.trace import Prompts
from kvscope.deployment.engines import Engine
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.vllm_sim.engine import runner
from kvscope.vllm_sim.settings import NO_LIMIT, EngineSettings, StepCost
from kvscope.vllm_sim.state import (
    BLOCK,
    Machine,
    blocks_needed,
    engine_traffic,
    hits_within_blocks,
    idle_machine,
)

_BLOCK_BYTES = 2 * BLOCK.itemsize  # while its tables are set up
SLICE_STEPS = 100_000  # between two checks for an interrupt


class EngineReplay(Struct, frozen=True):
    """What an engine did with R requests; every array has R entries, blocks are the trace's.

    `hit_blocks` were cached when a request was first admitted, as vLLM counts hits;
    `written_blocks` leading ones had been cached by then, and `kept_blocks` would have been hits
    had nothing been evicted: fewer where a hybrid model keeps no window. `queue_s` is the time from
    arrival to first admission, `ttft_s` to the first token, `tpot_s` the time per later output
    token, nan without any; `finish_s` is in trace time. `oversized` requests need more than all
    blocks: they were rejected, have no hits, and nan for times.

    With a CPU tier (else None), `loaded_blocks` follow the hits and were loaded from the tier at
    first admission, `read_blocks` of them from storage below it. `copied_blocks` were copied for
    it: the loaded ones, but for a hybrid model the chunks of all groups, each counted as if its
    blocks were of the smallest size of any group. The tier stored `stored_chunks` and evicted
    `chunk_evictions`. At least one prompt token is computed.
    """

    hit_blocks: Int32s
    kept_blocks: Int32s
    written_blocks: Int32s
    queue_s: Float64s
    ttft_s: Float64s
    tpot_s: Float64s
    finish_s: Float64s
    preemptions: Int32s
    oversized: Bools
    evictions: int
    loaded_blocks: Int32s | None = None
    copied_blocks: Int32s | None = None
    chunk_evictions: int = 0
    stored_chunks: int = 0
    read_blocks: Int32s | None = None


def replay_engine(
    prompts: Prompts,
    policy: Policy,
    settings: EngineSettings,
    cost: StepCost,
    *,
    tables: Tables = NO_TABLES,
) -> EngineReplay:
    """Run a trace through vLLM's scheduler and cache manager, with `policy` to evict blocks.

    Requests come at their arrival times; each step takes the time of `cost`, so they overlap.
    `tables` are those of a policy that has learned some, each in force from one of the requests on.
    Raises UsageError for a policy without lanes.

    Source: vLLM 0.32.0, see `scheduler` and `pool`.
    """
    machine = idle_machine(prompts, policy, settings, cost, tables=tables)
    run = runner(machine)
    while run(SLICE_STEPS, len(machine.requests) + 1, math.inf):
        pass
    return replayed(machine)


def replay_in_flight(
    prompts: Prompts,
    policy: Policy,
    settings: EngineSettings,
    cost: StepCost,
    in_flight: int,
    *,
    between_s: float = 0.0,
    tables: Tables = NO_TABLES,
) -> EngineReplay:
    """Run a trace as clients that keep `in_flight` requests on the engine.

    Requests come in the trace's order, each `between_s` seconds after a finished request makes
    room, and never before the previous turn of its conversation has finished. The trace's arrival
    times only decide which policy table of `tables` applies.
    """
    machine = idle_machine(prompts, policy, settings, cost, tables=tables)
    run = runner(machine)
    requests, state = machine.requests, machine.state[0]
    requests.arrival_s = np.inf
    rejected = np.append(0, np.cumsum(requests.oversized))  # those need no room
    sent = 0
    while state.finished < len(requests):
        served = state.finished - rejected[state.next]
        while sent < len(requests) and sent - rejected[sent] - served < in_flight:
            parent = prompts.parent[sent]
            if parent >= 0 and not (
                requests[parent].oversized or math.isfinite(requests[parent].finished_s)
            ):
                break
            requests[sent].arrival_s = state.now_s + between_s if sent else 0.0
            sent += 1
        run(SLICE_STEPS, state.finished + 1, math.inf)
    return replayed(machine)


def hits_without_eviction(
    prompts: Prompts, groups: KvGroups, engine: Engine | None = None
) -> Int32s:
    """Return each request's hits, in blocks of the trace, if a hybrid model's pool evicts nothing.

    Requests run one at a time. Hits are fewer than with full attention: the retention interval of
    `groups` keeps windows at some places only, and a drafter may shorten hits.
    """
    known = engine_traffic(prompts)
    ample = EngineSettings.one_at_a_time(NO_LIMIT, groups)
    if engine is not None:
        ample = replace(ample, drafter=engine.drafter, drops_blocks=engine.shortens_hits)
    # The blocks of each group for each node, and those of one request that fill no whole block.
    blocks = len(known.block_parent) + int(blocks_needed(known, ample).max(initial=1))
    blocks += len(known.leaf) * hits_within_blocks(ample)  # copies of what ends with a prompt
    blocks += ample.ahead_tokens.prefilling  # for states of drafted tokens
    settings = replace(ample, usable_blocks=blocks * groups.contents(known.block_size))
    memory.require(_BLOCK_BYTES * settings.usable_blocks, "a replay in an ample pool")
    return replay_engine(prompts, Lru(), settings, StepCost(base_s=1e-9)).hit_blocks


def never_start(requests: int, where: str = "--tiers") -> UsageError:
    """Return the error for a CPU tier too small for `requests` requests ever to start."""
    return UsageError(
        f"{requests:,} requests never start, in vLLM as here: the CPU tier has not room for all"
        " chunks that they read from the tier below it, and drops some for others without end",
        where=where,
        remedy="give the CPU tier room for the longest prompts that run at once",
    )


def loaded_blocks(requests: Records, members: Records, block_size: int) -> Int32s:
    """Return how many blocks each request loaded after its hits, before its last prompt token."""
    blocks = np.maximum(members.external, 0) // block_size
    most = (requests.prompt - 1) // block_size - np.maximum(requests.hits, 0)
    return np.asarray(np.minimum(blocks, most), dtype=np.int32)


def replayed(machine: Machine) -> EngineReplay:
    """Return what an engine did with its requests; UsageError if some of them never start."""
    requests, state, offload = machine.requests, machine.state[0], machine.offload
    loaded = copied = read = None
    if offload.state[0].stuck:
        raise never_start(len(requests) - int(state.finished))
    if len(offload.members):
        loaded = loaded_blocks(requests, offload.members, int(state.block_size))
        read = np.minimum(offload.members.read, loaded).astype(np.int32)
        copied = loaded
        if state.hybrid:
            each = offload.state[0].blocks_per_chunk * int(machine.groups.block_tokens.min())
            copied = (offload.members.chunks * each // state.block_size).astype(np.int32)
    return EngineReplay(
        hit_blocks=np.maximum(requests.hits, 0).astype(np.int32),
        kept_blocks=requests.kept.astype(np.int32),
        written_blocks=requests.written.astype(np.int32),
        queue_s=requests.admitted_s - requests.arrival_s,
        ttft_s=requests.first_token_s - requests.arrival_s,
        tpot_s=np.where(
            requests.outputs > 1,
            (requests.finished_s - requests.first_token_s) / np.maximum(requests.outputs - 1, 1),
            np.nan,
        ),
        finish_s=requests.finished_s.copy(),
        preemptions=requests.preemptions.astype(np.int32),
        oversized=requests.oversized > 0,
        evictions=int(state.evictions),
        loaded_blocks=loaded,
        copied_blocks=copied,
        chunk_evictions=int(offload.state[0].evictions),
        stored_chunks=int(offload.state[0].stored - offload.state[0].read_chunks),
        read_blocks=read,
    )

"""Replay traffic on a simulated SGLang: what each request hits, and when it is served."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s, Records
from kvscope.core.errors import UsageError
from kvscope.core.prefix import paths
from kvscope.deployment.engines import (
    SGLANG_NUM_SEQS,
    WAITING_ORDERS,
    WaitingOrder,
    WritePolicy,
)
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.base import GUARD, TTL, Policy
from kvscope.policies.tlru import NEXT_PROMPT_TOKENS, XI_PERCENTILE, XI_TOKENS
from kvscope.replay.traffic import Traffic, with_named_blocks
from kvscope.sglang_sim.requests import REQUEST
from kvscope.sglang_sim.scheduler import COSTS, empty_queues, serve
from kvscope.sglang_sim.tree import (
    FIFO,
    LFU,
    LRU,
    NONE,
    PRIORITY,
    SLRU,
    TLRU,
    PrefixTree,
    empty_tree,
)
from kvscope.vllm_sim.settings import StepCost

CHUNK_TOKENS = 8192
"""Most prompt tokens of a batch, as SGLang chooses on GPUs of 60 to 90 GiB (chunked prefill)."""
_POLICIES = {
    "lru": LRU, "fifo": FIFO, "lfu": LFU, "slru": SLRU, "tlru": TLRU, "priority": PRIORITY
}  # fmt: skip
_STORE_HITS: dict[WritePolicy, int] = {
    "write_through": 1,
    "write_through_selective": 2,
    "write_back": 0,
}
"""Insertions after which a node is stored on the host."""
_ABSENT = {TTL.name: math.inf, GUARD.name: 0.0, XI_PERCENTILE.name: 0.0}
"""Parameters that SGLang does not have, and their values that do nothing."""


def sglang_has(policy: Policy) -> bool:
    """Return whether SGLang offers the policy with these parameter values."""
    return policy.name in _POLICIES and all(
        policy.values.get(name, nothing) == nothing for name, nothing in _ABSENT.items()
    )


class HostTier(NamedTuple):
    """A tier in host memory: its blocks, when they are written, and seconds per block copied."""

    blocks: int
    write_policy: WritePolicy = "write_through"
    copy_block_s: float = 0.0


class TreeService(Struct, frozen=True):
    """Hits and times of R requests on a server with SGLang's cache.

    Of `hit_blocks`, `loaded_blocks` were on the host alone. The first batch of a request begins at
    `begin_s`, its first token comes at `token_s` and its last at `end_s`, in trace time (s);
    `tpot_s` is the time per output token after the first, nan without a second token. Rejected
    requests have nan for all times. Each request was retracted `retractions` times. In total, the
    GPU evicted `evictions` blocks and the host `host_evictions`, `stored_blocks` were copied to the
    host, and `batches` ran.
    """

    hit_blocks: Int32s
    loaded_blocks: Int32s
    begin_s: Float64s
    token_s: Float64s
    end_s: Float64s
    tpot_s: Float64s
    retractions: Int32s
    evictions: int
    host_evictions: int
    stored_blocks: int
    batches: int


def empty_server(
    traffic: Traffic,
    policy: Policy,
    capacity_blocks: int,
    host: HostTier | None = None,
) -> tuple[PrefixTree, Records]:
    """Return an empty cache of `capacity_blocks` blocks, and records (REQUEST) of the requests.

    Raises UsageError for a policy that SGLang lacks.
    """
    if not sglang_has(policy):
        raise UsageError(f"SGLang has no {policy.name} of these parameters")
    traffic, values = with_named_blocks(traffic), policy.values
    host = host or HostTier(0)
    tree = empty_tree(
        traffic.block_parent,
        paths(traffic.block_parent, traffic.leaf, traffic.length),
        min(capacity_blocks + host.blocks, len(traffic.block_parent)) + 1,
        policy=_POLICIES[policy.name],
        block_size=traffic.block_size,
        capacity=capacity_blocks,
        protected_uses=values.get("protected_uses", 0.0),
        xi_tokens=values.get(XI_TOKENS.name, 0.0),
        next_prompt_tokens=values.get(NEXT_PROMPT_TOKENS.name, 0.0),
        host_capacity=host.blocks,
        store_hits=_STORE_HITS[host.write_policy],
        write_back=host.write_policy == "write_back",
    )
    requests = np.zeros(len(traffic.leaf), dtype=REQUEST).view(np.recarray)
    requests.prompt, requests.node = traffic.input_tokens, NONE
    requests.end = np.maximum(traffic.input_tokens, traffic.history_tokens - 1)
    requests.outputs = requests.end - requests.prompt + 1
    requests.look, requests.blocks = traffic.look, traffic.length
    return tree, requests


def serve_tree(
    traffic: Traffic,
    policy: Policy,
    capacity_blocks: int,
    profile: LatencyProfile,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    most_running: int = SGLANG_NUM_SEQS,
    order: WaitingOrder = "fcfs",
    paged: bool = False,
    host: HostTier | None = None,
) -> TreeService:
    """Serve traffic with SGLang's cache of `capacity_blocks` blocks, which running requests share.

    Module `scheduler` batches requests, at most `most_running` at once; `order` sorts the waiting
    queue. Loads from the `host` overlap the batch's computation; `write_back` copies to the host
    delay the batch. A block is one page if `paged`, else each of its tokens is a page. The time of
    a request outside of batches delays no other request. Requests whose outputs SGLang would
    truncate, as the cache is too small, are rejected. UsageError for a policy that SGLang lacks.
    """
    tree, requests = empty_server(traffic, policy, capacity_blocks, host)
    size = traffic.block_size
    requests.arrival_s = traffic.arrival_s
    requests.begin_s = requests.token_s = requests.end_s = np.nan
    needed = (-(-requests.prompt // size) + 1) * size + requests.outputs + 1
    requests.rejected = needed > capacity_blocks * size
    page, cost = size if paged else 1, StepCost.of(profile)
    queues = empty_queues(
        len(requests),
        order=WAITING_ORDERS.index(order),
        page=page,
        chunk=max(chunk_tokens // page, 1) * page,
        most_running=most_running,
        copy_block_s=host.copy_block_s if host else 0.0,
        **{
            name: cost.base_s if (value := getattr(cost, name)) is None else value
            for name in COSTS  # decode_base_s may be None
        },
    )
    serve(tree, requests, queues)
    outside_s, later = profile.request_s, requests.outputs - 1
    hit_blocks, loaded, retractions = (
        requests[name].astype(np.int32) for name in ("hit", "loaded", "retractions")
    )
    begin_s, token_s, end_s = (requests[name].copy() for name in ("begin_s", "token_s", "end_s"))
    tpot_s = np.where(later > 0, (end_s - token_s) / np.maximum(later, 1), np.nan)
    return TreeService(
        hit_blocks,
        loaded,
        begin_s,
        token_s + outside_s,
        end_s + outside_s,
        tpot_s,
        retractions,
        evictions=int(tree.state[0].evictions),
        host_evictions=int(tree.state[0].host_evictions),
        stored_blocks=int(tree.state[0].written),
        batches=int(queues.state[0].made),
    )

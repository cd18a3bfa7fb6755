"""NVIDIA Dynamo's KV router: prefill and decode load in blocks, less what is cached."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import EVENT_LAG, MemorySizes, Prompt, Router, View, draw, new_dice

SCALE, CREDIT, DECAY, REQUEST_WEIGHT, TEMPERATURE = range(5)
_FINE = 1 << 30

PARAMETERS = (
    Parameter(
        "prefill_load_scale",
        1.0,
        "cost of a block to prefill, in blocks to decode",
        search=(0.5, 1, 2, 4, 8, 16, 32),
    ),
    Parameter("overlap_score_credit", 1.0, "credit of a cached block, in blocks to prefill"),
    Parameter(
        "overlap_score_credit_decay",
        0.0,
        "how fast that credit falls as a replica's prefill load grows; 0: never",
    ),
    Parameter("decode_active_request_weight", 0.0, "cost of a request in flight, in blocks"),
    Parameter(
        "temperature", 0.0, "0: the lowest cost wins; above: the higher, the more often others do"
    ),
)


class DynamoMemory(NamedTuple):
    """The cost (blocks) of each of N replicas for the current request, and random state."""

    costs: Float64s
    dice: Int64s


def cost(prompt: Prompt, view: View, replica: int, overlap_blocks: int, p: Float64s) -> float:
    """Return the cost, in blocks, of a request on a replica with `overlap_blocks` of it cached."""
    own, block_size = view.own, view.block_size
    prefill_tokens = own.uncached_tokens[replica] + prompt.input_tokens
    credit = p[CREDIT]
    if p[DECAY] > 0.0:
        lightest = own.uncached_tokens[0]
        for other in range(1, view.replicas):
            lightest = min(lightest, own.uncached_tokens[other])
        excess_blocks = (own.uncached_tokens[replica] - lightest) / block_size
        credit /= 1.0 + p[DECAY] * excess_blocks / -(-prompt.input_tokens // block_size)
    prefill_blocks = max(prefill_tokens / block_size - credit * overlap_blocks, 0.0)
    decode_blocks = own.used_blocks[replica] + view.truth.new_blocks[replica]
    if prompt.blocks * block_size < prompt.input_tokens:
        decode_blocks += 1  # a tail that the trace does not list
    request_blocks = p[REQUEST_WEIGHT] * own.in_flight[replica]
    return float(p[SCALE] * prefill_blocks + decode_blocks + request_blocks)


def pick(costs: Float64s, temperature: float, dice: Int64s) -> int:
    """Return the replica of the lowest of N `costs`; above `temperature` 0 draw it by a softmax.

    The lower a cost, the more often its replica is drawn; equal costs are drawn evenly.
    """
    lowest, highest, ties, best = costs[0], costs[0], 0, 0
    for replica in range(len(costs)):
        lowest, highest = min(lowest, costs[replica]), max(highest, costs[replica])
    if temperature == 0.0:
        for replica in range(len(costs)):
            if costs[replica] == lowest:
                ties += 1
                if ties == 1 or draw(dice, ties) == 0:
                    best = replica
        return best
    if highest == lowest:
        return draw(dice, len(costs))
    scale = 1.0 / ((highest - lowest) * temperature)
    total = 0.0
    for replica in range(len(costs)):
        total += math.exp((lowest - costs[replica]) * scale)
    rest = draw(dice, _FINE) / _FINE * total
    for replica in range(len(costs)):
        rest -= math.exp((lowest - costs[replica]) * scale)
        if rest <= 0.0:
            return replica
    return len(costs) - 1


class Dynamo(Router):
    """Send each request to the replica of the least cost, caches known from KV events.

    cost = prefill_load_scale * max(0, (prefill tokens / B) - credit * cached blocks) + blocks in
    use + decode_active_request_weight * requests in flight; B is the block size. Prefill tokens
    are all tokens of this prompt, plus the uncached tokens of the replica's earlier requests
    without a first token: of each as many as events reported when it was sent. Blocks in use are
    distinct and include this prompt's. credit = overlap_score_credit / (1 +
    overlap_score_credit_decay * prefill blocks beyond the least loaded replica's / blocks of the
    prompt). Equal costs: drawn evenly. Events come at once unless `event_lag_s` is set, as in
    Dynamo's own simulator (kv_event_lag_ms). Left out: output blocks and entries for prompts that
    were sent but not yet reported (--router-predicted-ttl-secs), both off by default, and host and
    disk caches. Left out too, and off by default: the router's queue (--router-queue-threshold,
    deprecated in 1.6), in which requests wait, first come, first served, while every replica has
    more prefill tokens than this threshold times max_num_batched_tokens.
    Source: ai-dynamo 1.6.1, lib/kv-router/src/scheduling/selector/default.rs (worker_logit,
    minimum_cost_index, softmax_sample_index); defaults of KvRouterConfig in ai-dynamo-runtime
    1.6.1.
    """

    name = "dynamo@1.6"
    aliases = ("dynamo",)
    summary = "least prefill and decode load, less what is cached"
    source = "ai-dynamo 1.6.1"
    sees = "truth"
    draws = True
    counts_blocks = True
    parameters: ClassVar[tuple[Parameter, ...]] = (*PARAMETERS, EVENT_LAG)

    def memory(self, sizes: MemorySizes, seed: int) -> DynamoMemory:
        """Return a zero cost for each replica, and the state of random numbers."""
        return DynamoMemory(np.zeros(sizes.replicas), new_dice(seed))

    def among(self, memory: DynamoMemory, replicas: int, seed: int) -> DynamoMemory:
        """Return the memory with the costs of the first `replicas` only."""
        return memory._replace(costs=memory.costs[:replicas])

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: DynamoMemory, p: Float64s) -> int:
        """Return the replica of the least cost."""
        for replica in range(view.replicas):
            overlap_blocks = view.reported_blocks[replica]
            memory.costs[replica] = cost(prompt, view, replica, overlap_blocks, p)
        chosen = pick(memory.costs, p[TEMPERATURE], memory.dice)
        view.expected_blocks[0] = view.reported_blocks[chosen]
        return chosen

    def flags(self) -> tuple[str, ...]:
        """Return the options of dynamo.frontend."""
        return ("--router-mode kv", *options(self.values))


def options(values: dict[str, float]) -> tuple[str, ...]:
    """Return the options of dynamo.frontend whose values differ from its defaults."""
    names = {
        "prefill_load_scale": "--router-prefill-load-scale",
        "overlap_score_credit": "--router-kv-overlap-score-credit",
        "overlap_score_credit_decay": "--router-kv-overlap-score-credit-decay",
        "decode_active_request_weight": "--router-decode-active-request-weight",
        "temperature": "--router-temperature",
    }
    return tuple(
        f"{names[known.name]} {values[known.name]:g}"
        for known in PARAMETERS
        if values[known.name] != known.default
    )


_TTL = len(PARAMETERS)


class SentBlocks(NamedTuple):
    """When each block of the trie was last sent to each of N replicas, and random state.

    `sent_s` (N x blocks) has the time in seconds, minus infinity for a block never sent to the
    replica. `overlap_blocks` (N) counts the current request's leading blocks that a replica is
    taken to hold, `costs` (N) is what the request would cost there.
    """

    sent_s: Float64s
    overlap_blocks: Int32s
    costs: Float64s
    dice: Int64s


class DynamoApprox(Router):
    """`dynamo@1.6` that assumes a block to stay cached for `ttl_s` after it was sent to a replica.

    A request's prefill load is its uncached tokens by this assumption. Nothing limits the number of
    blocks: the limit of earlier releases, 2^20, cut to 80 %, is not in 1.6.1. Left out:
    --router-approximate-cache-policy lru, which replaces the time to live (experimental), and the
    router's queue.
    Source: ai-dynamo 1.6.1, lib/kv-router/src/indexer/pruning.rs (WorkerPruneManager, PruneConfig),
    scheduling/queue.rs (admit_one), selector/default.rs.
    """

    name = "dynamo-approx@1.6"
    aliases = ("dynamo-approx",)
    summary = "the same without KV events: a prompt stays 2 min"
    source = "ai-dynamo 1.6.1"
    sees = "load"
    draws = True
    counts_blocks = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        *PARAMETERS,
        Parameter(
            "ttl_s",
            120.0,
            "how long a block is taken to be cached after it was sent",
            search=(30, 60, 120, 300, 600, 1800),
        ),
    )

    def memory(self, sizes: MemorySizes, seed: int) -> SentBlocks:
        """Return a memory in which no block was sent."""
        sent_s = np.full((sizes.replicas, sizes.blocks), -np.inf)
        overlap_blocks = np.zeros(sizes.replicas, dtype=np.int32)
        return SentBlocks(sent_s, overlap_blocks, np.zeros(sizes.replicas), new_dice(seed))

    def among(self, memory: SentBlocks, replicas: int, seed: int) -> SentBlocks:
        """Forget the blocks sent to replicas that left."""
        memory.sent_s[replicas:] = -np.inf
        return memory._replace(costs=memory.costs[:replicas])

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: SentBlocks, p: Float64s) -> int:
        """Return the replica of the least cost, and note the blocks sent to it."""
        sent_s, alive_s = memory.sent_s, prompt.now_s - p[_TTL]
        for replica in range(view.replicas):
            overlap_blocks = 0
            while (
                overlap_blocks < prompt.full_blocks
                and sent_s[replica, path[overlap_blocks]] > alive_s
            ):
                overlap_blocks += 1
            memory.overlap_blocks[replica] = overlap_blocks
            memory.costs[replica] = cost(prompt, view, replica, overlap_blocks, p)
        chosen = pick(memory.costs, p[TEMPERATURE], memory.dice)
        view.expected_blocks[0] = memory.overlap_blocks[chosen]
        for depth in range(prompt.full_blocks):
            sent_s[chosen, path[depth]] = prompt.now_s
        return chosen

    def flags(self) -> tuple[str, ...]:
        """Return the options of dynamo.frontend."""
        ttl = f"--router-ttl-secs {self.values['ttl_s']:g}"
        return ("--router-mode kv", "--no-router-kv-events", ttl, *options(self.values))

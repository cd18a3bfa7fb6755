"""NVIDIA Dynamo's KV router without KV events: caches guessed from what was sent where."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import MemorySizes, Prompt, Router, View, new_dice
from kvscope.routers.dynamo import PARAMETERS, TEMPERATURE, cost, options, pick

_TTL = len(PARAMETERS)


class SentBlocks(NamedTuple):
    """When (s) each block of the trie was last sent to each of N replicas, and dice.

    `overlap_blocks` and `costs` (N) are of the request at hand.
    """

    sent_s: Float64s
    overlap_blocks: Int32s
    costs: Float64s
    dice: Int64s


class DynamoApprox(Router):
    """`dynamo@1.6` that takes a block to be cached for ttl_s after it was sent to a replica.

    A request's prefill load is what its replica computes if its cache is as taken. Nothing limits
    the number of blocks: the limit of earlier releases, 2^20, cut to 80 %, is not in 1.6.1. Left
    out: --router-approximate-cache-policy lru, which replaces ttl_s (experimental), and the queue.
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
        """Return a memory of nothing sent."""
        sent_s = np.full((sizes.replicas, sizes.blocks), -np.inf)
        overlap_blocks = np.zeros(sizes.replicas, dtype=np.int32)
        return SentBlocks(sent_s, overlap_blocks, np.zeros(sizes.replicas), new_dice(seed))

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: SentBlocks, p: Float64s) -> int:
        """Return the replica of the least cost, and note what is sent to it."""
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

"""Why prompts' tokens had to be computed, at one capacity under LRU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.facts import HitDefinition
from kvscope.jit import kernel
from kvscope.simulate.distances import LruDistances, lru_distances, walk
from kvscope.store.prompts import Prompts


@dataclass(frozen=True, slots=True)
class MissReasons:
    """What became of all input tokens at one capacity; the five parts add up to `input_tokens`.

    `evicted`: the blocks were cached once and had been dropped. `diverged`: never seen, where the
    conversation's previous turn had other blocks at the same place (an edited or compacted
    history). `cold`: never seen otherwise. `tail`: what no prefix cache can hit: the partial last
    block, the last token, prompts without hashes.
    """

    capacity_blocks: int
    input_tokens: int
    hit_tokens: int
    evicted_tokens: int
    diverged_tokens: int
    cold_tokens: int
    tail_tokens: int


def miss_reasons(
    prompts: Prompts,
    definition: HitDefinition,
    capacities_blocks: list[int],
    distances: LruDistances | None = None,
) -> tuple[MissReasons, ...]:
    """Why tokens missed at each capacity; full blocks, the whole trace.

    `definition` tells whether outputs are carried; its weight, warm-up and partial do not matter.
    """
    runs = distances or lru_distances(prompts, definition)
    steps = walk(prompts, definition)
    size = prompts.block_size
    seen = int(runs.blocks.sum(dtype=np.int64))
    looked = int(steps.look.sum(dtype=np.int64))
    warm = np.zeros(len(steps.leaf), dtype=np.int32)
    np.maximum.at(warm, runs.request, runs.depth + runs.blocks)
    diverged = int(
        _diverged(prompts.block_parent, prompts.parent, steps.leaf, steps.length, steps.look, warm)
    )
    total = int(prompts.input_tokens.sum(dtype=np.int64))
    reasons = []
    for capacity in capacities_blocks:
        hit = int(np.clip(capacity - runs.distance + 1, 0, runs.blocks).sum())
        reasons.append(
            MissReasons(
                capacity_blocks=capacity,
                input_tokens=total,
                hit_tokens=hit * size,
                evicted_tokens=(seen - hit) * size,
                diverged_tokens=diverged * size,
                cold_tokens=(looked - seen - diverged) * size,
                tail_tokens=total - looked * size,
            )
        )
    return tuple(reasons)


@kernel
def _diverged(
    block_parent: NDArray[np.int32],
    parent: NDArray[np.int32],
    leaf: NDArray[np.int32],
    length: NDArray[np.int32],
    look: NDArray[np.int32],
    warm: NDArray[np.int32],
) -> int:
    """Blocks never seen before at a place where the previous turn's path had another block.

    `warm` is how many leading blocks of each prompt had been seen.
    """
    count = 0
    for request in range(len(leaf)):
        before = parent[request]
        if before < 0:
            continue
        end = min(length[before], look[request])
        if end <= warm[request]:
            continue
        own = leaf[request]
        for _ in range(length[request] - end):
            own = block_parent[own]
        other = leaf[before]
        for _ in range(length[before] - end):
            other = block_parent[other]
        # Paths part once and for all: climb from the end until they are one.
        at = end
        while at > warm[request] and own != other:
            own, other = block_parent[own], block_parent[other]
            at -= 1
        count += end - at
    return count

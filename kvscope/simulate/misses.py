"""Why prompts' tokens had to be computed: from the blocks that each request hit, of any policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.facts import HitDefinition
from kvscope.jit import kernel
from kvscope.prefix import ancestor
from kvscope.simulate.distances import LruDistances, lru_distances, walk
from kvscope.simulate.ideal import ideal_blocks
from kvscope.store.prompts import PromptPaths


@dataclass(frozen=True, slots=True)
class MissReasons:
    """What became of all input tokens at one capacity; the five parts add up to `input_tokens`.

    `evicted`: the blocks had been written once and were not kept (dropped, or never let in).
    `diverged`: never seen, where the conversation's previous turn had other blocks at the same
    place (an edited or compacted history). `cold`: never seen otherwise. `tail`: what no prefix
    cache can hit: the partial last block, the last token, prompts without hashes.
    """

    capacity_blocks: int
    input_tokens: int
    hit_tokens: int
    evicted_tokens: int
    diverged_tokens: int
    cold_tokens: int
    tail_tokens: int


@dataclass(frozen=True, slots=True)
class Novelty:
    """What was new in each of R prompts, whatever the cache: all in blocks from the head.

    Blocks before `seen` had been written by earlier requests; what is looked up from there on to
    `look` is new, and [`diverged_from`, `diverged_to`) of it stands where the conversation's
    previous turn had other blocks.
    """

    seen: NDArray[np.int32]
    look: NDArray[np.int32]
    diverged_from: NDArray[np.int32]
    diverged_to: NDArray[np.int32]


def novelty(prompts: PromptPaths, definition: HitDefinition) -> Novelty:
    """What was new in each prompt, as `definition` looks blocks up; its weight does not matter."""
    steps, seen = walk(prompts, definition), ideal_blocks(prompts, definition)
    start, stop = seen.copy(), seen.copy()
    _find_diverged(
        prompts.block_parent,
        prompts.parent,
        steps.leaf,
        steps.length,
        steps.look,
        seen,
        start,
        stop,
    )
    return Novelty(seen, steps.look, start, stop)


def reasons(
    prompts: PromptPaths,
    new: Novelty,
    hit_blocks: NDArray[np.int32],
    capacity_blocks: int,
    first: int = 0,
) -> MissReasons:
    """Why the tokens of the requests from `first` on missed, `hit_blocks` being what each hit."""
    counted = slice(first, None)
    inputs = prompts.input_tokens[counted].astype(np.int64)

    def tokens(blocks: NDArray[np.int32]) -> int:
        """Tokens in so many leading blocks of each prompt; a partial last one holds fewer."""
        held = np.minimum(blocks[counted].astype(np.int64) * prompts.block_size, inputs)
        return int(held.sum())

    hit, seen, look = tokens(hit_blocks), tokens(new.seen), tokens(new.look)
    diverged = tokens(new.diverged_to) - tokens(new.diverged_from)
    total = int(inputs.sum())
    return MissReasons(
        capacity_blocks=capacity_blocks,
        input_tokens=total,
        hit_tokens=hit,
        evicted_tokens=seen - hit,
        diverged_tokens=diverged,
        cold_tokens=look - seen - diverged,
        tail_tokens=total - look,
    )


def lru_hit_blocks(runs: LruDistances, requests: int, capacity_blocks: int) -> NDArray[np.int32]:
    """The leading blocks that each request hits in an LRU cache, read off its distances."""
    hits = np.clip(capacity_blocks - runs.distance + 1, 0, runs.blocks)
    return np.bincount(runs.request, hits, minlength=requests).astype(np.int32)


def miss_reasons(
    prompts: PromptPaths,
    definition: HitDefinition,
    capacities_blocks: list[int],
    distances: LruDistances | None = None,
) -> tuple[MissReasons, ...]:
    """Why tokens missed at each capacity under LRU, over the whole trace."""
    runs = distances or lru_distances(prompts, definition)
    new = novelty(prompts, definition)
    return tuple(
        reasons(prompts, new, lru_hit_blocks(runs, len(prompts.leaf), capacity), capacity)
        for capacity in capacities_blocks
    )


@kernel
def _find_diverged(
    block_parent: NDArray[np.int32],
    parent: NDArray[np.int32],
    leaf: NDArray[np.int32],
    length: NDArray[np.int32],
    look: NDArray[np.int32],
    seen: NDArray[np.int32],
    start: NDArray[np.int32],
    stop: NDArray[np.int32],
) -> None:
    """Fill from where to where a path has new blocks beside others of its previous turn's path.

    Where it has none, `start` and `stop` stay what they are.
    """
    for request in range(len(leaf)):
        before = parent[request]
        if before < 0:
            continue
        end = min(length[before], look[request])
        if end <= seen[request]:
            continue
        own = ancestor(block_parent, leaf[request], length[request] - end)
        other = ancestor(block_parent, leaf[before], length[before] - end)
        # Paths part once and for all: climb from the end until they are one.
        at = end
        while at > seen[request] and own != other:
            own, other = block_parent[own], block_parent[other]
            at -= 1
        start[request] = at
        stop[request] = end

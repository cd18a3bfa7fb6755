"""Why each input token missed: every missed token of every request has one cause.

From its head on, a prompt consists of stretches: what hit, what earlier requests had written, what
was new, and what no prefix cache can hit. All boundaries are token positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor, write_path
from kvscope.core.trace import PromptPaths
from kvscope.replay.misses import lru_hit_blocks
from kvscope.replay.stack_distances import LruDistances
from kvscope.replay.traffic import Walk, walk

Cause = Literal[
    "evicted",
    "diverged",
    "output-changed",
    "growth",
    "cold",
    "last-token",
    "below-block",
    "no-hash",
    "rejected",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order in which they appear in a prompt.

- evicted: written by an earlier request, and no longer cached.
- diverged: new, where the previous turn's prompt had other blocks.
- output-changed: new, where the previous turn's output had stood.
- growth: new, after a prefix that was written before. cold: new from the first block on.
- last-token: full blocks that hold the prompt's last token. below-block: a partial last block.
- no-hash: the trace has no hashes for these tokens. rejected: longer than the whole pool.
"""

NO_REQUEST = -1


@dataclass(frozen=True, slots=True)
class Lookups:
    """What a cache held of each of R prompts, in blocks from the head, and since when.

    The first `hit` blocks hit, the first `seen` had been written before. `shared_with` last touched
    the deepest of those that were written, and `last_use` the first one that was evicted (-1:
    none). `written_blocks` were written since then. With `needed_blocks`, LRU would have kept all
    that was written (0: all hit, or not known).
    """

    hit: Int32s
    seen: Int32s
    shared_with: Int32s
    last_use: Int32s
    needed_blocks: Int64s
    written_blocks: Int64s


def look_up(
    prompts: PromptPaths,
    definition: HitDefinition,
    hit_blocks: Int32s,
    distances: LruDistances | None = None,
) -> Lookups:
    """Return what was written of each prompt before, given the blocks that each hit (R entries).

    `distances` are LRU's, for `needed_blocks`.
    """
    steps = walk(prompts, definition)
    requests = len(steps.leaf)
    seen = np.zeros(requests, dtype=np.int32)
    shared_with, last_use = np.full((2, requests), NO_REQUEST, dtype=np.int32)
    owner = np.full(len(steps.block_parent), NO_REQUEST, dtype=np.int32)
    path = np.empty(int(steps.length.max(initial=0)) + 1, dtype=np.int32)
    _look_up(steps, hit_blocks.astype(np.int32), owner, path, seen, shared_with, last_use)
    fresh = steps.length - np.minimum(hit_blocks, steps.length) + steps.anonymous
    written = np.concatenate([[0], np.cumsum(fresh, dtype=np.int64)])
    since = np.where(
        last_use >= 0, written[np.arange(requests)] - written[np.maximum(last_use, 0) + 1], 0
    )
    needed = np.zeros(requests, dtype=np.int64)
    if distances is not None:
        missed = (seen > hit_blocks)[distances.request]
        deepest = seen[distances.request] - 1 - distances.depth
        ends = missed & (deepest >= 0) & (deepest < distances.blocks)
        needed[distances.request[ends]] = distances.distance[ends] + deepest[ends]
    return Lookups(hit_blocks, seen, shared_with, last_use, needed, since)


def lru_look_up(
    prompts: PromptPaths,
    definition: HitDefinition,
    distances: LruDistances,
    capacity_blocks: int | None,
) -> Lookups:
    """Return what an LRU cache of this capacity held of each prompt; None: an infinite one."""
    capacity = distances.live if capacity_blocks is None else capacity_blocks
    hit_blocks = lru_hit_blocks(distances, len(prompts.leaf), capacity)
    return look_up(prompts, definition, hit_blocks, distances)


@kernel
def _look_up(
    steps: Walk,
    hit: Int32s,
    owner: Int32s,
    path: Int32s,
    seen: Int32s,
    shared_with: Int32s,
    last_use: Int32s,
) -> None:
    """Fill `seen`, `shared_with` and `last_use`; `owner` ends as each block's last request."""
    block_parent, leaf, length, look, _ = steps
    for request in range(len(leaf)):
        end = length[request]
        write_path(block_parent, leaf[request], path, 0, end)
        at = 0
        while at < end and owner[path[at]] >= 0:
            at += 1
        written = min(at, look[request])
        seen[request] = written
        if written > 0:
            shared_with[request] = owner[path[written - 1]]
        if hit[request] < written:
            last_use[request] = owner[path[hit[request]]]
        for depth in range(end):
            owner[path[depth]] = request


@dataclass(frozen=True, slots=True)
class Attribution:
    """The causes of all missed tokens of R requests, R entries an array, all in tokens.

    `tokens` of each cause add up to what missed: `input_tokens` less `hit_tokens`. The first
    `shared_tokens` of a prompt were written before. The first
    `common_tokens` are those of the previous turn too (-1: no previous turn).
    """

    input_tokens: Int64s
    hit_tokens: Int64s
    shared_tokens: Int64s
    common_tokens: Int64s
    tokens: Mapping[Cause, Int64s]
    lookups: Lookups

    @property
    def missed_tokens(self) -> Int64s:
        """The missed tokens of each request."""
        return self.input_tokens - self.hit_tokens


def attribute(
    prompts: PromptPaths,
    definition: HitDefinition,
    lookups: Lookups,
    *,
    rejected: Bools | None = None,
) -> Attribution:
    """Return the cause of every missed token. `rejected` requests were never computed."""
    steps, size = walk(prompts, definition), prompts.block_size
    inputs = prompts.input_tokens.astype(np.int64)

    def tokens(blocks: Int32s) -> Int64s:
        """Return the tokens in that many leading blocks; a partial last one holds fewer."""
        return np.minimum(blocks.astype(np.int64) * size, inputs)

    hit = tokens(lookups.hit)
    shared = np.maximum(hit, tokens(lookups.seen))
    looked = np.maximum(shared, tokens(steps.look))
    cacheable = prompts.blocks if definition.partial else prompts.full_blocks
    hashed = np.maximum(looked, tokens(cacheable))
    causes: dict[Cause, Int64s] = {
        "evicted": shared - hit,
        "last-token": hashed - looked,
    }

    common, before = _common_blocks(steps, prompts.parent), prompts.parent
    previous = np.where(before >= 0, (steps.length + steps.anonymous)[before], 0)
    changed = np.minimum(tokens(previous), looked) - np.maximum(shared, tokens(common))
    changed = np.where(before >= 0, np.maximum(changed, 0), 0)
    in_prompt = common < prompts.full_blocks[before]
    causes["diverged"] = np.where(in_prompt, changed, 0)
    causes["output-changed"] = changed - causes["diverged"]
    new = looked - shared - changed
    causes["growth"] = np.where(shared > 0, new, 0)
    causes["cold"] = new - causes["growth"]
    hashes_end = prompts.blocks < inputs // size
    causes["no-hash"] = np.where(hashes_end, inputs - hashed, 0)
    causes["below-block"] = inputs - hashed - causes["no-hash"]
    if rejected is not None and rejected.any():
        causes = {cause: np.where(rejected, 0, values) for cause, values in causes.items()}
        causes["rejected"] = np.where(rejected, inputs - hit, 0)
    none = np.zeros_like(inputs)
    return Attribution(
        input_tokens=inputs,
        hit_tokens=hit,
        shared_tokens=shared,
        common_tokens=np.where(before >= 0, tokens(common), NO_REQUEST),
        tokens={cause: causes.get(cause, none) for cause in CAUSES},
        lookups=lookups,
    )


def _common_blocks(steps: Walk, parent: Int32s) -> Int32s:
    """Return the leading blocks that each path shares with that of its previous turn, else 0."""
    common = np.zeros(len(parent), dtype=np.int32)
    _find_common(steps, parent, common)
    return common


@kernel
def _find_common(steps: Walk, parent: Int32s, common: Int32s) -> None:
    """Climb both paths from the end of the shorter one until they meet."""
    block_parent, leaf, length, _, _ = steps
    for request in range(len(leaf)):
        before = parent[request]
        if before < 0:
            continue
        at = min(length[before], length[request])
        own = ancestor(block_parent, leaf[request], length[request] - at)
        other = ancestor(block_parent, leaf[before], length[before] - at)
        while own != other:
            own, other = block_parent[own], block_parent[other]
            at -= 1
        common[request] = at

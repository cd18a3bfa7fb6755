"""Causes of misses of whole prompts, from the blocks that each request hit."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Int32s
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor
from kvscope.core.trace import PromptLengths, PromptPaths
from kvscope.replay.curve import HitCurve, first_counted, looked_up, weighted
from kvscope.replay.stack_distances import LruDistances
from kvscope.replay.traffic import Walk, walk, walk_lengths


def ideal_blocks(prompts: PromptPaths, definition: HitDefinition) -> Int32s:
    """Return the leading blocks that each request looks up and earlier ones had written (R)."""
    return np.minimum(written_blocks(prompts, definition), walk_lengths(prompts, definition).look)


def written_blocks(prompts: PromptPaths, definition: HitDefinition) -> Int32s:
    """Return the leading blocks of each path that earlier requests had written (R entries).

    All blocks in front of a written block were written too, so look-ups by prefix and block by
    block have the same result. Only the definition's `partial` and `outputs` matter.
    """
    steps = walk(prompts, definition)
    blocks = np.zeros(len(steps.leaf), dtype=np.int32)
    written = np.zeros(len(prompts.block_parent), dtype=np.bool_)
    _climb(steps, written, blocks)
    return blocks


def ideal_rate_of(prompts: PromptLengths, definition: HitDefinition, blocks: Int32s) -> float:
    """Return the hit rate (0–1) of an infinite cache, without computing a curve.

    `blocks` are the `ideal_blocks`; weight and window of their definition may differ.
    """
    counted = slice(first_counted(prompts, definition), None)
    total = int(looked_up(prompts, definition)[counted].sum())
    hits = int(weighted(prompts, definition, blocks)[counted].sum())
    return hits / total if total else 0.0


@kernel
def _climb(steps: Walk, written: Bools, blocks: Int32s) -> None:
    """Fill `blocks` with written leading blocks: climb each path until a block was written before.

    Each block of the trie costs one step, however often it is reused.
    """
    block_parent, leaf, length = steps.block_parent, steps.leaf, steps.length
    for request in range(len(leaf)):
        block, depth = leaf[request], length[request]
        while depth > 0 and not written[block]:
            written[block] = True
            block = block_parent[block]
            depth -= 1
        blocks[request] = depth


class MissReasons(Struct, frozen=True):
    """Hits and causes of misses at one capacity; the five parts add up to `input_tokens`.

    `evicted`: the blocks had been written once and were not kept (dropped, or never admitted).
    `diverged`: new blocks where the conversation's previous turn had others at the same depth (an
    edited or compacted history). `cold`: all other new blocks. `tail`: tokens that no prefix cache
    can hit: the partial last block, the last token, prompts without hashes.
    """

    capacity_blocks: int
    input_tokens: int
    hit_tokens: int
    evicted_tokens: int
    diverged_tokens: int
    cold_tokens: int
    tail_tokens: int


class Novelty(Struct, frozen=True):
    """New blocks of each of R prompts, whatever the cache; all fields are in blocks from the head.

    Blocks before `seen` had been written by earlier requests. Blocks from there to `look` are new;
    of these, [`diverged_from`, `diverged_to`), maybe empty, stand where the previous turn had
    others.
    """

    seen: Int32s
    look: Int32s
    diverged_from: Int32s
    diverged_to: Int32s


def novelty(prompts: PromptPaths, definition: HitDefinition, seen: Int32s | None = None) -> Novelty:
    """Return the new blocks of each prompt, looked up as in `definition`, whatever its weight.

    `seen` are the `ideal_blocks` of that definition, where they are known.
    """
    steps = walk(prompts, definition)
    seen = ideal_blocks(prompts, definition) if seen is None else seen
    return Novelty(seen, steps.look, *diverged(steps, prompts.parent, seen))


def diverged(steps: Walk, parent: Int32s, seen: Int32s) -> tuple[Int32s, Int32s]:
    """Return the depths from and to which new blocks replace the previous turn's in each path.

    Blocks before depth `seen` are not new; where none replaces another, both are equal. `parent` is
    the previous turn, -1 where there is none.
    """
    end = np.minimum(steps.length[parent], steps.look)
    new = (parent >= 0) & (end > seen)
    start = np.clip(common_blocks(steps, parent), seen, end)
    return np.where(new, start, seen), np.where(new, end, seen)


def common_blocks(steps: Walk, parent: Int32s) -> Int32s:
    """Return the leading blocks that each path shares with that of its previous turn, else 0."""
    common = np.zeros(len(parent), dtype=np.int32)
    _find_common(steps, parent, common)
    return common


def reasons(
    prompts: PromptLengths, new: Novelty, hit_blocks: Int32s, capacity_blocks: int, first: int = 0
) -> MissReasons:
    """Return why tokens of the requests from `first` on missed, given the blocks that each hit."""
    counted = slice(first, None)
    inputs = prompts.input_tokens[counted].astype(np.int64)

    def tokens(blocks: Int32s) -> int:
        """Return the tokens in the first `blocks` of all counted prompts; a last can be partial."""
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


def lru_hit_blocks(runs: LruDistances, requests: int, capacity_blocks: int) -> Int32s:
    """Return the leading blocks that each request hits in an LRU cache, from stack distances."""
    hits = np.clip(capacity_blocks - runs.distance + 1, 0, runs.blocks)
    return np.bincount(runs.request, hits, minlength=requests).astype(np.int32)


def at_capacity(known: MissReasons, curve: HitCurve, capacity_blocks: int) -> MissReasons:
    """Return `known` at another capacity: hits and evicted tokens change, their sum does not.

    `curve` has the tokens that hit, for the same requests and definition.
    """
    hits = round(float(curve.rate(capacity_blocks)) * known.input_tokens)
    reusable = known.hit_tokens + known.evicted_tokens
    return replace(
        known,
        capacity_blocks=capacity_blocks,
        hit_tokens=hits,
        evicted_tokens=reusable - hits,
    )


@kernel
def _find_common(steps: Walk, parent: Int32s, common: Int32s) -> None:
    """Fill `common`: climb each path and its previous turn's from equal depth until they meet."""
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

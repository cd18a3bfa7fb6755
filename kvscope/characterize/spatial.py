"""Reuse by position in the prompt: hits if only a part of each prompt is cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.characterize.distributions import HeatMap, Rates, Summary, Turns
from kvscope.characterize.history import History, SizeSummaries
from kvscope.core.arrays import Bools, Int32s, Int64s, UInt32s, unsigned
from kvscope.core.background import in_background
from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor
from kvscope.core.trace import PromptPaths, Trace
from kvscope.store.db import Store
from kvscope.store.traces import load_prompts


class PrefixDepth(Struct, frozen=True):
    """Depth of hits in an infinite cache: leading blocks, and their share of the input tokens."""

    turns: Turns
    requests: int
    hit_blocks: Summary
    prompt_share: Summary


class Spatial(Struct, frozen=True):
    """Ideal block hit rates, [offset][stride], if requests cache only that part of the prompt.

    A part of length `stride` begins at `offset`, as shares of the prompt. None without lookups.
    """

    offsets: Rates
    strides: Rates
    overall: HeatMap | None
    single_turn: HeatMap | None
    multi_turn: HeatMap | None
    prefix_depth: tuple[PrefixDepth, ...]


DECILES = 10
_MASKS = 1 << DECILES

CountDeciles = Callable[[Bools], Int64s]
"""A function that returns the counts of `decile_histogram`, given which requests are follow-ups."""


def start_spatial(
    store: Store,
    trace: Trace,
    count_deciles: CountDeciles | None,
    sizes: Sequence[SizeSummaries],
    history: History,
) -> Future[Spatial | None]:
    """Return a future of hit rates if requests cache only [offset, offset + stride) of a prompt.

    Rates are of blocks in an infinite cache. A position is depth / full blocks of the request that
    caches the block. Every full block of a prompt is looked up on its own, whether or not blocks
    before it hit, but the last token is recomputed; outputs are left out. Offset + stride beyond
    100 % equals 100 %. `count_deciles` counts look-ups, for a caller with the paths; None: they are
    loaded from the store before this returns. `sizes` give the result's `prefix_depth`, `history`
    the follow-up turns. None without hashes. Source: KVCache Cache in the Wild (ATC'25), section 3,
    Figure 16.
    """
    if not trace.has_hashes:
        return in_background(lambda: None)
    count_deciles = count_deciles or partial(trace_deciles, load_prompts(store, trace))
    depths = tuple(
        PrefixDepth(kind.turns, kind.requests, kind.hit_blocks, kind.prompt_share) for kind in sizes
    )
    return in_background(_spatial, count_deciles, history.later_turn, depths)


def _spatial(
    count_deciles: CountDeciles, multi_turn: Bools, depths: tuple[PrefixDepth, ...]
) -> Spatial | None:
    counts = count_deciles(multi_turn)
    return Spatial(
        offsets=tuple(decile / DECILES for decile in range(DECILES)),
        strides=tuple((decile + 1) / DECILES for decile in range(DECILES)),
        overall=heat_map(counts.sum(axis=0)),
        single_turn=heat_map(counts[0]),
        multi_turn=heat_map(counts[1]),
        prefix_depth=depths,
    )


def heat_map(counts: Int64s) -> HeatMap | None:
    """Return hit rates, offset × stride, from lookups by decile mask; None without lookups."""
    lookups = int(counts.sum())
    if not lookups:
        return None
    masks = np.arange(_MASKS)

    def hit_rate(offset: int, stride: int) -> float:
        end = min(offset + stride, DECILES)
        cached = (1 << end) - (1 << offset)
        return int(counts[(masks & cached) != 0].sum()) / lookups

    return tuple(
        tuple(hit_rate(offset, stride) for stride in range(1, DECILES + 1))
        for offset in range(DECILES)
    )


def trace_deciles(paths: PromptPaths, multi_turn: Bools) -> Int64s:
    """Return the `decile_histogram` of a whole trace; `multi_turn` (R) are the follow-up turns."""
    hittable = (paths.input_tokens - 1) // paths.block_size
    return decile_histogram(
        paths.block_parent, paths.leaf, paths.blocks, paths.full_blocks, hittable, multi_turn
    )


def decile_histogram(
    block_parent: Int32s,
    leaf: Int32s,
    blocks: Int32s,
    full_blocks: Int32s,
    hittable: Int32s,
    multi_turn: Bools,
    first: Int32s | None = None,
) -> Int64s:
    """Count lookups of full blocks by the deciles of prompts in which earlier requests had them.

    All but `block_parent` (blocks + 1) have an entry per request. Returns counts by (single-turn,
    multi-turn) × 1024 masks: bit k means that some earlier request had the block in its k-th tenth.
    Lookups at a depth of `hittable` or more have mask 0, as the last-token rule recomputes them.

    To count a part of each path, pass its end as `blocks` and its begin as `first` (default: the
    whole path); `full_blocks` stays that of the whole prompt, which is divided into tenths.
    """
    counts = np.zeros((2, _MASKS), dtype=np.int64)
    written = np.zeros(len(block_parent), dtype=np.uint16)
    first = np.zeros_like(blocks) if first is None else first
    above, end = unsigned(block_parent), unsigned(leaf)
    _count_by_decile(above, end, blocks, full_blocks, hittable, multi_turn, first, written, counts)
    return counts


@kernel
def _count_by_decile(
    block_parent: UInt32s,
    leaf: UInt32s,
    blocks: Int32s,
    full_blocks: Int32s,
    hittable: Int32s,
    multi_turn: Bools,
    first: Int32s,
    written: NDArray[np.uint16],
    counts: Int64s,
) -> None:
    """Fill `counts`, and `written`, the decile mask of each block."""
    for request in range(len(leaf)):
        full = np.int64(full_blocks[request])
        row = counts[1] if multi_turn[request] else counts[0]
        end = min(full, np.int64(blocks[request]))
        # past the partial last block, if there is one
        block = ancestor(block_parent, leaf[request], blocks[request] - end)
        depth = end - 1
        for decile in range(9, -1, -1):
            begin = max((decile * full + 9) // 10, np.int64(first[request]))
            bit = np.uint16(1 << decile)
            while depth >= begin:
                mask = written[block]
                row[mask if depth < hittable[request] else 0] += 1
                written[block] = mask | bit
                block = block_parent[block]
                depth -= 1

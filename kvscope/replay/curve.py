"""LRU's exact hit-rate curve: every capacity at once, under any definition of a hit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import PromptLengths, PromptPaths
from kvscope.replay.stack_distances import LruDistances, flat_distances, lru_distances

SMALLEST_SHARE = 0.01  # of the largest capacity

Events = tuple[Int64s, Int64s, Int64s]


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Hits as a function of capacity: exact at every whole number of blocks.

    `hits` (weighted as `definition` says, of `total`) at the capacities `knots`, both int64 and
    ascending; between two knots the curve is a straight line, before the first it is 0.
    """

    definition: HitDefinition
    knots: Int64s
    hits: Int64s
    total: int

    def rate(self, capacity_blocks: Int64s | int) -> Float64s:
        """Return the hit rate (0–1) at each capacity."""
        if not self.total:
            return np.zeros(np.shape(capacity_blocks))
        return np.asarray(np.interp(capacity_blocks, self.knots, self.hits) / self.total)

    @property
    def ideal(self) -> float:
        """The hit rate of an infinite cache (0–1)."""
        return float(self.hits[-1]) / self.total if self.total else 0.0

    def capacity_for(self, rate: float) -> int:
        """Return the least capacity, in blocks, with at least this hit rate.

        A rate above the ideal one gives the capacity where the ideal one is reached.
        """
        wanted = min(rate * self.total, float(self.hits[-1]))
        at = int(np.searchsorted(self.hits, wanted - 1e-9))
        if at == 0:
            return int(self.knots[0])
        low, high = self.knots[at - 1], self.knots[at]
        slope = (self.hits[at] - self.hits[at - 1]) / (high - low)
        return int(low + math.ceil((wanted - self.hits[at - 1]) / slope - 1e-9))

    def capacities(self, points: int) -> list[int]:
        """Return capacities in blocks, up to the least one with the ideal hit rate.

        There are `points` of them, fewer where that is small; they grow by a constant factor from a
        hundredth of it.
        """
        largest = max(self.capacity_for(self.ideal), 1)
        smallest = max(largest * SMALLEST_SHARE, 1.0) if points > 1 else largest
        grid = np.geomspace(smallest, largest, points).round().astype(np.int64)
        return [int(capacity) for capacity in np.unique(grid)]


def lru_curve(
    prompts: PromptPaths, definition: HitDefinition, distances: LruDistances | None = None
) -> HitCurve:
    """Return LRU's hits at every capacity, as `definition` counts them.

    `distances` may be given where several weights or windows are asked of the same cache, as for
    `curve_of`.
    """
    if distances is None:
        distances = (flat_distances if definition.flat else lru_distances)(prompts, definition)
    return curve_of(prompts, definition, distances)


def curve_of(
    prompts: PromptLengths, definition: HitDefinition, distances: LruDistances
) -> HitCurve:
    """Return the curve that follows from stack distances.

    They must have been made for a definition with the same `partial`, `last_token_rule`, `outputs`
    and `flat`.
    """
    events = _events(prompts, definition, distances)
    knots, hits = _accumulate(*events)
    total = int(looked_up(prompts, definition)[first_counted(prompts, definition) :].sum())
    return HitCurve(definition, knots, hits, total)


def _events(prompts: PromptLengths, definition: HitDefinition, distances: LruDistances) -> Events:
    """Return runs of hits: from which capacity on, for how many blocks, each of what weight."""
    counted = distances.request >= first_counted(prompts, definition)
    weigh = {"token": _token_events, "block": _block_events, "request": _request_events}
    return weigh[definition.weight](prompts, distances, counted)


def first_counted(prompts: PromptLengths, definition: HitDefinition) -> int:
    """Return the first request that is counted, after the warm-up."""
    return int(len(prompts.blocks) * definition.warmup)


def _block_events(prompts: PromptLengths, runs: LruDistances, counted: Bools) -> Events:
    distance, blocks = runs.distance[counted], runs.blocks[counted].astype(np.int64)
    return distance, blocks, np.ones_like(blocks)


def _token_events(prompts: PromptLengths, runs: LruDistances, counted: Bools) -> Events:
    """Weigh a block by its tokens; a partial last one weighs less and is split off."""
    distance, blocks = runs.distance[counted], runs.blocks[counted].astype(np.int64)
    size = prompts.block_size
    deepest = runs.depth[counted] + blocks - 1
    last_tokens = prompts.input_tokens[runs.request[counted]] - deepest * size
    partial = last_tokens < size
    tails = distance[partial] + blocks[partial] - 1
    return (
        np.concatenate([distance, tails]),
        np.concatenate([blocks - partial, np.ones_like(tails)]),
        np.concatenate([np.full_like(blocks, size), last_tokens[partial]]),
    )


def _request_events(prompts: PromptLengths, runs: LruDistances, counted: Bools) -> Events:
    """Count a request as hit if its first block is."""
    distance = runs.distance[counted & (runs.depth == 0)]
    ones = np.ones_like(distance)
    return distance, ones, ones


def _accumulate(distance: Int64s, blocks: Int64s, weight: Int64s) -> tuple[Int64s, Int64s]:
    """Sum runs that each give `weight` more from capacity d to d + blocks - 1."""
    kept = blocks > 0
    distance, blocks, weight = distance[kept], blocks[kept], weight[kept]
    at = np.concatenate([[0], distance - 1, distance + blocks - 1])
    # Sums of whole numbers: exact below 2^53.
    steepening = np.bincount(at, weights=np.concatenate([[0], weight, -weight]))
    bends = steepening != 0
    bends[0] = True
    knots = np.flatnonzero(bends)
    slope = np.cumsum(steepening[knots])
    rise = slope[:-1] * np.diff(knots)
    return knots, np.concatenate([[0], np.cumsum(rise)]).astype(np.int64)


def looked_up(prompts: PromptLengths, definition: HitDefinition) -> Int64s:
    """Return what each request looks up, in the definition's weight (R entries)."""
    if definition.weight == "request":
        return np.ones(len(prompts.blocks), dtype=np.int64)
    blocks = prompts.blocks if definition.partial else prompts.full_blocks
    return (prompts.input_tokens if definition.weight == "token" else blocks).astype(np.int64)


def weighted(prompts: PromptLengths, definition: HitDefinition, hit_blocks: Int32s) -> Int64s:
    """Return what each request hits, in the same weight; a partial last block weighs less."""
    if definition.weight == "request":
        return (hit_blocks > 0).astype(np.int64)
    blocks = hit_blocks.astype(np.int64)
    if definition.weight == "block":
        return blocks
    return np.minimum(blocks * prompts.block_size, prompts.input_tokens)

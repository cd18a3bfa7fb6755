"""LRU's exact hit-rate curve: every capacity at once, under any definition of a hit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import PromptLengths, PromptPaths
from kvscope.replay.stack_distances import LruDistances, flat_distances, lru_distances

SMALLEST_SHARE = 0.01  # of the largest capacity

Events = tuple[Int64s, Int64s, Int64s]
"""Runs that hit block by block as the capacity grows: distance, blocks and weight of each.

Block i of a run (from 0) hits at capacities of distance + i blocks or more, and adds the weight.
"""


class HitCurve(Struct, frozen=True):
    """LRU's hits as a function of capacity: exact at every whole number of blocks.

    Of `total` look-ups (in the definition's weight), `hits` hit at the capacities `knots` in
    blocks; both int64 and ascending from 0. Between two knots the curve is a straight line.
    """

    definition: HitDefinition
    knots: Int64s
    hits: Int64s
    total: int

    def rate(self, capacity_blocks: Int64s | int) -> Float64s:
        """Return the hit rate (0–1) at each capacity."""
        if not self.total:
            return np.zeros(np.shape(capacity_blocks))
        at = np.searchsorted(self.knots, np.atleast_1d(capacity_blocks), side="right")
        around = np.clip(np.concatenate([[0], at - 1, at]), 0, len(self.knots) - 1)
        near = np.unique(around)  # the others may be on disk
        hits = np.interp(capacity_blocks, self.knots[near], self.hits[near])
        return np.asarray(hits / self.total)

    @property
    def ideal(self) -> float:
        """The hit rate of an infinite cache (0–1)."""
        return float(self.hits[-1]) / self.total if self.total else 0.0

    def capacity_for(self, rate: float) -> int:
        """Return the least capacity, in blocks, with at least this hit rate.

        A rate above the ideal one returns the least capacity with the ideal rate.
        """
        wanted = min(rate * self.total, float(self.hits[-1]))
        at = int(np.searchsorted(self.hits, math.ceil(wanted - 1e-9)))
        if at == 0:
            return int(self.knots[0])
        low, high = self.knots[at - 1], self.knots[at]
        slope = (self.hits[at] - self.hits[at - 1]) / (high - low)
        return int(low + math.ceil((wanted - self.hits[at - 1]) / slope - 1e-9))

    def capacities(self, points: int) -> list[int]:
        """Return up to `points` capacities in blocks, spaced by a constant factor.

        They range from a hundredth of the least capacity with the ideal hit rate to that capacity.
        """
        largest = max(self.capacity_for(self.ideal), 1)
        smallest = max(largest * SMALLEST_SHARE, 1.0) if points > 1 else largest
        grid = np.geomspace(smallest, largest, points).round().astype(np.int64)
        return [int(capacity) for capacity in np.unique(grid)]


def lru_curve(
    prompts: PromptPaths, definition: HitDefinition, distances: LruDistances | None = None
) -> HitCurve:
    """Return LRU's hits at every capacity, as `definition` counts them.

    `distances` saves computing stack distances again for another weight or window (`curve_of`).
    """
    if distances is None:
        distances = (flat_distances if definition.flat else lru_distances)(prompts, definition)
    return curve_of(prompts, definition, distances)


def curve_of(
    prompts: PromptLengths, definition: HitDefinition, distances: LruDistances
) -> HitCurve:
    """Return the hit curve that follows from stack distances.

    `distances` must be of a definition with equal `partial`, `last_token_rule`, `outputs`, `flat`.
    """
    first = first_counted(prompts, definition)
    at, weight = bends(prompts, definition, distances, first)
    # Sums of whole numbers: exact below 2^53.
    ((knots, hits),) = bent([np.bincount(at, weight, minlength=1)])
    return HitCurve(definition, knots, hits, int(looked_up(prompts, definition)[first:].sum()))


def bends(
    prompts: PromptLengths, definition: HitDefinition, distances: LruDistances, first: int
) -> tuple[Int64s, Int64s]:
    """Return the capacities (blocks) at which the slope of the hit curve changes, and the changes.

    Changes are in hits (of the definition's weight) per block, for `bent` to add up. Only hits of
    requests from number `first` on count; a capacity may occur several times.
    """
    weigh = {"token": _token_events, "block": _block_events, "request": _request_events}
    counted = distances.request >= first
    distance, blocks, weight = weigh[definition.weight](prompts, distances, counted)
    some = blocks > 0
    distance, blocks, weight = distance[some], blocks[some], weight[some]
    at = np.concatenate([distance - 1, distance + blocks - 1])
    return at, np.concatenate([weight, -weight])


def bent(steepening: Iterable[NDArray[Any]]) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the knots (blocks) of a hit curve and the hits at these, range of capacities by range.

    `steepening` has the change of the curve's slope at each capacity, cut into ranges, from 0 on.
    """
    begin = last = hits = slope = 0
    for each in steepening:
        bend = np.flatnonzero(each)
        if not begin and (not len(bend) or bend[0]):
            bend = np.append(0, bend)
        knots = begin + bend
        slopes = slope + np.cumsum(each[bend]).astype(np.int64)
        rise = np.append(slope, slopes[:-1]) * np.diff(knots, prepend=last)
        at = hits + np.cumsum(rise)
        yield knots, at
        if len(knots):
            last, hits, slope = int(knots[-1]), int(at[-1]), int(slopes[-1])
        begin += len(each)


def first_counted(prompts: PromptLengths, definition: HitDefinition) -> int:
    """Return the number of the first request after the warm-up: it and later ones are counted."""
    return int(len(prompts.blocks) * definition.warmup)


def _block_events(prompts: PromptLengths, runs: LruDistances, counted: Bools) -> Events:
    """Return distance, number of blocks, and weight 1 per block, of the runs in mask `counted`."""
    distance, blocks = runs.distance[counted], runs.blocks[counted].astype(np.int64)
    return distance, blocks, np.ones_like(blocks)


def _token_events(prompts: PromptLengths, runs: LruDistances, counted: Bools) -> Events:
    """Return the events of the runs in the mask `counted`, weighted by the tokens of a block.

    A partial last block is an event of its own, with fewer tokens.
    """
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
    """Return an event of one block and weight 1 for each request whose first block is reused.

    Such a request hits if that block hits. Only runs in the mask `counted` are taken.
    """
    distance = runs.distance[counted & (runs.depth == 0)]
    ones = np.ones_like(distance)
    return distance, ones, ones


def looked_up(prompts: PromptLengths, definition: HitDefinition) -> Int64s:
    """Return the amount that each request looks up: tokens, blocks or 1, by the weight (R)."""
    if definition.weight == "request":
        return np.ones(len(prompts.blocks), dtype=np.int64)
    blocks = prompts.blocks if definition.partial else prompts.full_blocks
    return (prompts.input_tokens if definition.weight == "token" else blocks).astype(np.int64)


def weighted(prompts: PromptLengths, definition: HitDefinition, hit_blocks: Int32s) -> Int64s:
    """Return the hits of each request in the definition's weight; a partial block weighs less."""
    if definition.weight == "request":
        return (hit_blocks > 0).astype(np.int64)
    blocks = hit_blocks.astype(np.int64)
    if definition.weight == "block":
        return blocks
    return np.minimum(blocks * prompts.block_size, prompts.input_tokens)

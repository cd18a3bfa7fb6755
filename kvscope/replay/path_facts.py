"""Facts that an analysis derives from the paths of a trace, wherever its prefix trie is stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.characterize.spatial import trace_deciles
from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import PromptLengths, PromptPaths
from kvscope.ingest.reuse import ReusedRuns, touches
from kvscope.replay.curve import HitCurve, curve_of
from kvscope.replay.misses import (
    MissReasons,
    at_capacity,
    ideal_rate_of,
    novelty,
    reasons,
    written_blocks,
)
from kvscope.replay.stack_distances import LruDistances, distances, flat_distances
from kvscope.replay.traffic import walk, walk_lengths

LENGTHS = ("input_tokens", "parent", "blocks", "full_blocks", "cached_blocks", "carried_blocks")
"""The names of the fields of `PromptLengths` that have an entry per request."""


def walked(definition: HitDefinition) -> HitDefinition:
    """Return the definition without name, weight and window; equal ones share a pass over paths."""
    return replace(definition, name="", weight="block", warmup=0.0)


def by_token(definition: HitDefinition) -> HitDefinition:
    """Return the same definition, weighted by token and over the whole trace."""
    return replace(definition, weight="token", warmup=0.0)


def _writing(definition: HitDefinition) -> HitDefinition:
    """Return a dict's key, equal for definitions under which requests cache the same blocks."""
    return replace(walked(definition), flat=False, last_token_rule=False)


class Followed(Protocol):
    """Curves, ideal rates and causes of misses from one pass over all paths of a trace."""

    def curve(self, definition: HitDefinition) -> HitCurve:
        """Return LRU's hits at every capacity."""

    def ideal_rate(self, definition: HitDefinition) -> float:
        """Return the hit rate (0-1) of an infinite cache, where `flat` makes no difference."""

    def misses(
        self, definition: HitDefinition, capacities_blocks: list[int]
    ) -> tuple[MissReasons, ...]:
        """Return why tokens missed at each capacity under LRU, over the whole trace."""


class PathFacts(Protocol):
    """The paths of R requests, for curves, rates and deciles; the trie may be stored in parts."""

    @property
    def block_size(self) -> int:
        """The tokens of a block."""

    def follow(
        self, curves: Collection[HitDefinition], ideals: Collection[HitDefinition] = ()
    ) -> Followed:
        """Return curves and misses under the definitions `curves`, ideal rates under `ideals`."""

    def deciles(self, multi_turn: Bools) -> Int64s:
        """Return counts of block look-ups (2 x 1024) by place of the block in earlier prompts.

        Row 1 is of the follow-up turns, a mask `multi_turn` of the R requests, row 0 of the others.
        Bit k of the column says that an earlier prompt had the block in its k-th tenth (see
        `decile_histogram` of kvscope.characterize.spatial).
        """

    def in_order(self, order: Int64s) -> PathFacts:
        """Return these facts with the requests in another order of arrival, numbered anew."""


def lengths_in_order(lengths: PromptLengths, order: Int64s) -> dict[str, Int32s]:
    """Return the columns LENGTHS of `lengths` by name, with the requests in another order.

    `order` has the present numbers of the requests in the new order; `parent` gets new numbers.
    """
    number = np.full(len(order) + 1, -1, dtype=np.int32)  # the last entry: no parent
    number[order] = np.arange(len(order), dtype=np.int32)
    columns = {name: getattr(lengths, name)[order] for name in LENGTHS}
    return columns | {"parent": number[columns["parent"]]}


class FollowedTrace:
    """Curves, ideal rates and misses of a trace with a single trie; each is computed on first use.

    `touched` are the reused runs of all blocks that requests leave cached, outputs included; None
    if they have to be computed.
    """

    def __init__(self, prompts: PromptPaths, touched: ReusedRuns | None = None) -> None:
        self._prompts = prompts
        self._carried = touched
        self._distances = dict[HitDefinition, LruDistances]()
        self._written = dict[HitDefinition, Int32s]()
        self._curves = dict[HitDefinition, HitCurve]()

    def curve(self, definition: HitDefinition) -> HitCurve:
        """Return LRU's hits at every capacity."""
        if definition not in self._curves:
            distances = self._distances_of(definition)
            self._curves[definition] = curve_of(self._prompts, definition, distances)
        return self._curves[definition]

    def ideal_rate(self, definition: HitDefinition) -> float:
        """Return the hit rate (0-1) of an infinite cache."""
        return ideal_rate_of(self._prompts, definition, self._ideal_blocks(definition))

    def misses(
        self, definition: HitDefinition, capacities_blocks: list[int]
    ) -> tuple[MissReasons, ...]:
        """Return why tokens missed at each capacity under LRU, over the whole trace."""
        new = novelty(self._prompts, definition, self._ideal_blocks(definition))
        curve = self.curve(by_token(definition))
        known = reasons(self._prompts, new, new.seen, int(curve.knots[-1]))
        return tuple(at_capacity(known, curve, each) for each in capacities_blocks)

    def _ideal_blocks(self, definition: HitDefinition) -> Int32s:
        key = _writing(definition)
        if key not in self._written:
            self._written[key] = written_blocks(self._prompts, key)
        return np.minimum(self._written[key], walk_lengths(self._prompts, definition).look)

    def _distances_of(self, definition: HitDefinition) -> LruDistances:
        key = walked(definition)
        if key not in self._distances and key.flat:
            self._distances[key] = flat_distances(self._prompts, key)
        elif key not in self._distances:
            steps = walk(self._prompts, key)
            runs = self._carried if key.outputs == "carried" else None
            if runs is None:
                runs = touches(steps.block_parent, steps.leaf, steps.length)
            self._written[_writing(key)] = runs.counts(len(steps.leaf))
            self._distances[key] = distances(runs, steps.length + steps.anonymous, steps.look)
        return self._distances[key]


class TracePaths(Struct, frozen=True):
    """The paths of a trace with a single trie.

    `touched` are the reused runs of all blocks that requests leave cached, outputs included; None
    if they have to be computed.
    """

    lengths: PromptPaths
    touched: ReusedRuns | None = None

    @property
    def block_size(self) -> int:
        """The tokens of a block."""
        return self.lengths.block_size

    def follow(
        self, curves: Collection[HitDefinition], ideals: Collection[HitDefinition] = ()
    ) -> FollowedTrace:
        """Return the trace's curves, rates and misses; each definition is computed on first use."""
        return FollowedTrace(self.lengths, self.touched)

    def deciles(self, multi_turn: Bools) -> Int64s:
        """Return counts of block look-ups (2 x 1024), as `PathFacts.deciles` does."""
        return trace_deciles(self.lengths, multi_turn)

    def in_order(self, order: Int64s) -> TracePaths:
        """Return these facts with the requests in another order of arrival, numbered anew."""
        prompts = self.lengths
        return TracePaths(
            PromptPaths(
                block_size=prompts.block_size,
                leaf=prompts.leaf[order],
                carried_leaf=prompts.carried_leaf[order],
                block_parent=prompts.block_parent,
                **lengths_in_order(prompts, order),
            )
        )

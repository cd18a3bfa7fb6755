"""What an analysis takes from the paths of a trace, wherever its prefix trie lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvscope.characterize.spatial import trace_deciles
from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import PromptLengths, PromptPaths
from kvscope.replay.misses import Novelty, ideal_blocks, novelty
from kvscope.replay.stack_distances import LruDistances, flat_distances, lru_distances

LENGTHS = ("input_tokens", "parent", "blocks", "full_blocks", "cached_blocks", "carried_blocks")
"""The columns of `PromptLengths`."""


class PathFacts(Protocol):
    """The facts of R requests that follow from their paths; a trie may lie in several parts."""

    @property
    def lengths(self) -> PromptLengths:
        """The lengths of the prompts."""

    def distances(self, definition: HitDefinition) -> LruDistances:
        """Return LRU's stack distances, of a flat cache where the definition is."""

    def ideal_blocks(self, definition: HitDefinition) -> Int32s:
        """Return the leading blocks of each prompt that earlier requests had written (R)."""

    def novelty(self, definition: HitDefinition) -> Novelty:
        """Return what was new in each prompt."""

    def deciles(self, multi_turn: Bools) -> Int64s:
        """Return what `decile_histogram` counts, given which requests are later turns (R)."""

    def in_order(self, order: Int64s) -> PathFacts:
        """Return the same of the requests in another order of arrival, numbered anew in it."""


def lengths_in_order(lengths: PromptLengths, order: Int64s) -> dict[str, Int32s]:
    """Return the columns of lengths of the requests in another order, numbered anew in it."""
    number = np.full(len(order) + 1, -1, dtype=np.int32)  # the last entry: no parent
    number[order] = np.arange(len(order), dtype=np.int32)
    columns = {name: getattr(lengths, name)[order] for name in LENGTHS}
    return columns | {"parent": number[columns["parent"]]}


@dataclass(frozen=True, slots=True)
class TracePaths:
    """The facts of a trace whose trie is one."""

    lengths: PromptPaths

    def distances(self, definition: HitDefinition) -> LruDistances:
        """Return LRU's stack distances, of a flat cache where the definition is."""
        return (flat_distances if definition.flat else lru_distances)(self.lengths, definition)

    def ideal_blocks(self, definition: HitDefinition) -> Int32s:
        """Return the leading blocks of each prompt that earlier requests had written (R)."""
        return ideal_blocks(self.lengths, definition)

    def novelty(self, definition: HitDefinition) -> Novelty:
        """Return what was new in each prompt."""
        return novelty(self.lengths, definition)

    def deciles(self, multi_turn: Bools) -> Int64s:
        """Return what `decile_histogram` counts, given which requests are later turns (R)."""
        return trace_deciles(self.lengths, multi_turn)

    def in_order(self, order: Int64s) -> TracePaths:
        """Return the same of the requests in another order of arrival, numbered anew in it."""
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

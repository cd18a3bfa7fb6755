"""The facts of a dataset's paths, put together from its shards: equal to those of one trie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvscope.characterize.spatial import DECILES, decile_histogram
from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import PromptLengths
from kvscope.datasets.shards import Carriers, ShardPaths, clipped, load_shard, merge_runs
from kvscope.replay.misses import Novelty, diverged, ideal_blocks
from kvscope.replay.path_facts import lengths_in_order
from kvscope.replay.stack_distances import LruDistances, distances, touches
from kvscope.replay.traffic import walk, walk_lengths


@dataclass(frozen=True, slots=True)
class DatasetPaths:
    """The paths of R requests, in shards of which one at a time is in memory.

    `carriers` say whose prompt each one's cached path is in. What is found in a shard
    holds from the depth on at which the shard begins; what lies above is found in the trunk's.
    """

    lengths: PromptLengths
    carriers: Carriers
    folders: tuple[Path, ...]
    number: Int32s | None = None  # of each request, where that is not the trace's

    def _shards(self) -> Iterator[ShardPaths]:
        known = self.lengths, self.carriers, self.number
        return (load_shard(folder, *known) for folder in self.folders)

    def in_order(self, order: Int64s) -> DatasetPaths:
        """Return the same of the requests in another order of arrival, numbered anew in it."""
        number = np.empty(len(order), dtype=np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        columns = lengths_in_order(self.lengths, order)
        lengths = PromptLengths(block_size=self.lengths.block_size, **columns)
        carriers = Carriers.of(number[self.carriers.carrier[order]])
        return DatasetPaths(lengths, carriers, self.folders, number)

    def distances(self, definition: HitDefinition) -> LruDistances:
        """Return LRU's stack distances: each shard's runs are merged, never its accesses.

        How many blocks each request was the last to touch adds up over shards. Raises UsageError
        for a flat definition, of which blocks are not in subtrees.
        """
        if definition.flat:
            raise UsageError(
                "a flat cache's blocks are in no subtrees, and a dataset's are",
                where="--compat libcachesim",
                remedy="take another definition, or ingest the files as one trace",
            )
        carried = definition.outputs == "carried"
        runs = merge_runs([
            clipped(
                touches(walk(shard.paths, definition)),
                shard.first_carried if carried else shard.first,
                shard.request,
            )
            for shard in self._shards()
        ])  # fmt: skip
        length, look, anonymous = walk_lengths(self.lengths, definition)
        return distances(runs, length + anonymous, look)

    def ideal_blocks(self, definition: HitDefinition) -> Int32s:
        """Return the leading blocks of each prompt that earlier requests had written (R)."""
        ideal = np.zeros(len(self.carriers.carrier), dtype=np.int32)
        for shard in self._shards():
            own = ideal_blocks(shard.paths, definition)
            ideal[shard.request] = np.maximum(ideal[shard.request], own)
        return ideal

    def novelty(self, definition: HitDefinition) -> Novelty:
        """Return what was new in each prompt."""
        length, look, _ = walk_lengths(self.lengths, definition)
        parent = self.lengths.parent
        seen = self.ideal_blocks(definition)
        end = np.where(parent >= 0, np.minimum(length[parent], look), 0)
        start, stop = seen.copy(), np.maximum(seen, end)
        for shard in self._shards():
            # Two paths have in common what any shard with both of them finds.
            steps = walk(shard.paths, definition)
            own, _ = diverged(steps, shard.paths.parent, seen[shard.request])
            start[shard.request] = np.maximum(start[shard.request], own)
        return Novelty(seen, look, start, stop)

    def deciles(self, multi_turn: Bools) -> Int64s:
        """Return what `decile_histogram` counts, given which requests are later turns (R)."""
        counts = np.zeros((2, 1 << DECILES), dtype=np.int64)
        for shard in self._shards():
            request, paths = shard.request, shard.paths
            counts += decile_histogram(
                paths.block_parent,
                paths.leaf,
                paths.blocks,
                np.ascontiguousarray(self.lengths.full_blocks[request]),
                (paths.input_tokens - 1) // paths.block_size,
                multi_turn[request],
                shard.first,
            )
        return counts

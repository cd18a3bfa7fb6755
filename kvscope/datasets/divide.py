"""Shards that turn out too heavy: cut deeper, and the paths of all parts written anew by shard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Int64s
from kvscope.datasets.cuts import Cuts, cuts_of
from kvscope.datasets.files import whole_folder
from kvscope.datasets.spill import Spill, read_paths, read_pieces, starts_of
from kvscope.ingest.trie import Trie

_SAMPLE_ACCESSES = 1_000_000


class DivideTask(Struct, frozen=True):
    """The paths of a part, so far in `shards_before` shards, to divide by other cuts."""

    folder: str
    paths: str
    shards_before: int
    cuts: str
    shards: int


def divide_paths(task: DivideTask) -> None:
    """Write the paths of a part into its folder, by the new shards."""
    with (
        whole_folder(Path(task.folder)) as folder,
        Spill(folder, Cuts.load(Path(task.cuts)), task.shards) as spill,
    ):
        for row, starts, ids in read_paths(Path(task.paths), task.shards_before):
            spill.write(row, starts, ids)
        spill.close()


def deeper_cuts(
    cuts: Cuts, folders: list[Path], heavy: list[int], accesses: Int64s, limit: float
) -> Cuts:
    """Return cuts by which the subtrees in these heavy shards have at most `limit` accesses each.

    `accesses` has those of all shards. A sample of paths is looked at, about so many as a million
    accesses are; of each every block counts.
    """
    step = int(accesses[heavy].sum() // _SAMPLE_ACCESSES) + 1
    trie, ends = Trie(), [np.zeros(0, dtype=np.int32)]
    for folder in folders:
        for shard in heavy:
            for _, length, _, ids in read_pieces(folder, shard):
                begin, some = starts_of(length)[:-1][::step], length[::step]
                picked = np.concatenate(
                    [ids[b : b + n] for b, n in zip(begin.tolist(), some.tolist(), strict=True)]
                )
                ends.append(np.repeat(trie.intern(starts_of(some), picked), some))
    return cuts.with_those_of(cuts_of(trie, np.concatenate(ends), int(limit / step)))

"""Numbers for the blocks of all shards: as many as int32 has, and no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvscope.core.arrays import Int32s
from kvscope.datasets.cuts import TRUNK
from kvscope.datasets.files import Arrays, save_arrays
from kvscope.datasets.numbering import NumberedPaths, number_blocks
from kvscope.ingest.columns import INT32_MAX


def numbered(folder: Path, blocks: Int32s) -> NumberedPaths:
    """Return the paths of requests of so many blocks each, none of which they share."""
    requests, none = np.arange(len(blocks), dtype=np.int32), np.zeros(0, dtype=np.int32)
    every: Arrays = {"request": requests, "length": blocks, "split": np.zeros_like(blocks)}
    new: Arrays = {"new": blocks, "above": np.full_like(blocks, -1), "last": requests}
    carried = dict.fromkeys(("carried_request", "carried_owner", "carried_depth"), none)
    shards = []
    for shard in (TRUNK, 1):
        shards.append((folder / f"{shard}-paths", folder / f"{shard}-numbers"))
        for path, arrays in zip(shards[-1], (every, new | carried), strict=True):
            path.mkdir()
            save_arrays(path, {name: each if shard else each[:0] for name, each in arrays.items()})
    folders, reduced = map(list, zip(*shards, strict=True))
    return number_blocks(folders, reduced, blocks, np.arange(len(blocks)))


@pytest.mark.parametrize(("beyond", "kept"), [(0, True), (1, False)])
def test_the_largest_number_is_that_of_int32(tmp_path: Path, beyond: int, kept: bool) -> None:
    """One block more, and none is numbered: its number would be negative."""
    blocks = np.array([INT32_MAX // 2, INT32_MAX - INT32_MAX // 2 - 1, 1 + beyond], dtype=np.int32)
    paths = numbered(tmp_path, blocks)
    ends = np.cumsum(blocks, dtype=np.int64)
    assert paths.leaf.tolist() == (ends.tolist() if kept else [0, 0, 0])
    assert paths.blocks.tolist() == ([1, *(ends[:-1] + 1)] if kept else [])
    assert paths.parents.tolist() == ([0, 0, 0] if kept else [])

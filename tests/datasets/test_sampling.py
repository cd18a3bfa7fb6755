"""Samples of datasets, and numbers of their blocks."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.sampling import whole_sample
from kvscope.core.arrays import Int32s
from kvscope.core.errors import UsageError
from kvscope.core.units import GIB
from kvscope.datasets.cuts import TRUNK
from kvscope.datasets.dataset import Dataset
from kvscope.datasets.files import Arrays, save_arrays
from kvscope.datasets.numbering import NumberedPaths, number_blocks
from kvscope.datasets.sampling import draw
from kvscope.ingest.columns import INT32_MAX
from kvscope.ingest.formats.base import Request
from kvscope.replay.footprint import drawn_replays_bytes, replays_bytes
from kvscope.replay.sampling import sampled
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces
from tests.datasets import made


@settings(deadline=None, max_examples=12)
@given(
    st.data(),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([0.2, 1.0]),
    st.sampled_from([0.1, 0.3, 0.9]),
)
def test_samples_of_random_tries_equal(
    data: st.DataObject, given_ids: bool, shards: int, cut_share: float, rate: float
) -> None:
    """Requests, subtrees and every column of the prompts, with prefixes cut anywhere."""
    trace = data.draw(small_traces.requests(made.SIZE, most=24, chats=given_ids))
    folder = Path(tempfile.mkdtemp())
    try:
        paths, read = made.write_files(trace, [len(trace) // 2], folder / "files", given=given_ids)
        chosen = made.options(shards, cut_share=cut_share, read=read)
        made.dataset(paths, folder / "dataset", chosen)
        check_equal(Dataset(str(folder / "dataset")), rate)
    finally:
        shutil.rmtree(folder)


def check_equal(dataset: Dataset, rate: float) -> None:
    """Compare the sample that is drawn with that of the whole trace."""
    with dataset.stores.reading() as store:
        try:
            known = sampled(whole_sample(load_prompts(store, dataset.trace)), rate)
        except UsageError as error:
            with pytest.raises(UsageError, match=str(error)):
                draw(store, dataset.trace, rate)
            return
        assert made.differences(known, draw(store, dataset.trace, rate)) == []


def test_it_needs_the_memory_of_its_requests() -> None:
    """A tenth of a trace of 10^9 accesses: far less than the trace, and never more."""
    only = Request(input_tokens=6, output_tokens=1, hash_ids=[1, 2])
    with open_store(MEMORY) as store:
        small = small_traces.stored(store, [only], made.SIZE)
    large = replace(small, requests=41_000_000, accesses=10**9, distinct_blocks=450_000_000)
    following = 4 * GIB
    assert drawn_replays_bytes(large, 0.1, following) < replays_bytes(large) / 2
    assert drawn_replays_bytes(small, 1.0, following) == replays_bytes(small)


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

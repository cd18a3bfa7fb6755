"""A sample of a dataset equals that of its files as one trace, and needs less memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.sampling import whole_sample
from kvscope.core.errors import UsageError
from kvscope.core.units import GIB
from kvscope.datasets.dataset import Dataset
from kvscope.datasets.sampling import draw
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

"""What is said of a dataset equals what is said of its files as one trace, bit by bit."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from kvscope.characterize import history
from kvscope.core.files import one_path
from kvscope.core.hits import HitDefinition, side_by_side, standard
from kvscope.core.trace import PromptPaths
from kvscope.datasets.dataset import Dataset, shard_folders
from kvscope.datasets.files import load_array
from kvscope.datasets.numbering import owned_blocks
from kvscope.datasets.paths import DatasetPaths, FollowedShards
from kvscope.datasets.shards import load_runs, merge_runs
from kvscope.ingest.build import Built
from kvscope.ingest.build import build as build_trace
from kvscope.ingest.formats import registry
from kvscope.ingest.pipeline import IngestOptions, ingest, read_columns
from kvscope.ingest.source import Source
from kvscope.replay.misses import Novelty, novelty
from kvscope.replay.path_facts import TracePaths
from kvscope.replay.stack_distances import lru_distances
from kvscope.store.file import StoreFile
from kvscope.usecases.analyze import AnalyzeRequest, analyze
from tests import small_traces
from tests.datasets import made

SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.jsonl.gz"))
TRACES = os.environ.get("KVSCOPE_TRACES")
PUBLISHED = sorted(Path(TRACES).glob("*.gz")) if TRACES else []
DEFINITIONS = (
    standard(),
    standard(outputs="ignored"),
    HitDefinition("all", partial=True, last_token_rule=False, outputs="ignored"),
)


def whole_trace(paths: list[Path], options: IngestOptions) -> Built:
    """Return the trace of these files, one after another, as ingest builds it."""
    source = Source(one_path([*map(str, paths)]))
    chosen = registry.by_name(str(options.format))
    columns, reader, _, _ = read_columns(source, chosen, options)
    source.close()
    return build_trace(columns, reader.notes)


@settings(deadline=None, max_examples=12)
@given(
    st.data(),
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from([1 / 64, 0.2, 0.5, 1.0]),
    st.sampled_from([5, 20, 1000]),
)
def test_random_tries_equal(
    data: st.DataObject, given_ids: bool, shards: int, share: float, at_once: int
) -> None:
    """Prefixes cut anywhere, outputs under other roots, ties over files, any stretches of time.

    A stretch has a few requests, or all of them: the same numbers.
    """
    trace = data.draw(small_traces.requests(made.SIZE, most=24, chats=given_ids))
    if given_ids and data.draw(st.booleans()):  # parents anywhere: prompts that are no beginnings
        for request in trace[1:]:
            request.parent_chat_id = data.draw(st.integers(-1, len(trace) - 1))
    ends = sorted(data.draw(st.lists(st.integers(0, len(trace)), max_size=3)))
    folder = Path(tempfile.mkdtemp())
    try:
        paths, read = made.write_files(trace, ends, folder / "files", given=given_ids)
        whole = whole_trace(paths, read)
        chosen = made.options(shards, cut_share=share, read=read)
        making = made.build(one_path([*map(str, paths)]), folder / "dataset", chosen)
        check_equal(whole, making, folder / "dataset", shards, at_once)
    finally:
        shutil.rmtree(folder)


def check_equal(whole: Built, making: Any, folder: Path, shards: int, at_once: int) -> None:
    """Compare requests, reuse, blocks and all facts of paths."""
    built = making.build()
    assert (built.lineage, built.tenants) == (whole.lineage, whole.tenants)
    assert built.out_of_order == whole.out_of_order
    assert [note for note in built.notes if "overlap" not in note] == [*whole.notes]
    for name in whole.requests:
        assert np.array_equal(built.requests[name], whole.requests[name]), name
    block_parent = np.arange(whole.trie.count, dtype=np.int32) - 1
    block_parent[0] = 0
    block_parent[making.numbered.blocks] = making.numbered.parents
    assert np.array_equal(block_parent, whole.trie.parent)

    reduced, requests = making.reduced(), len(whole.requests["blocks"])
    runs, reuse = merge_runs([load_runs(each, 0, requests) for each in reduced]), whole.reuse
    for name, known in asdict(reuse.runs).items():
        assert np.array_equal(getattr(runs, name), known), name
    cacheable = reuse.first >= 0
    keys = zip(reuse.first[cacheable], reuse.last[cacheable], reuse.reuses[cacheable], strict=True)
    groups: Counter[tuple[int, ...]] = Counter()
    names = ("first_request", "last_request", "reuses", "blocks")
    for each in reduced:
        for row in zip(
            *(load_array(each, f"group_{name}").tolist() for name in names), strict=True
        ):
            groups[row[:3]] += row[3]
    assert groups == Counter(tuple(map(int, key)) for key in keys)
    own = sum(int(load_array(each, "own_blocks")[0]) for each in reduced)
    assert own == whole.trie.count - 1

    folders = tuple(shard_folders(folder, shards + 1))
    one = TracePaths(whole.paths())
    many = DatasetPaths(folder / "requests", folders, folder, runs_at_once=at_once)
    order = np.random.default_rng(shards).permutation(requests)
    multi_turn = whole.requests["turn"] > 1
    for trace, dataset in ((one, many), (one.in_order(order), many.in_order(order))):
        assert np.array_equal(trace.deciles(multi_turn), dataset.deciles(multi_turn))
        known = trace.follow(DEFINITIONS, side_by_side(standard()))
        found = dataset.follow(DEFINITIONS, side_by_side(standard()))
        for definition in side_by_side(standard()):
            assert known.ideal_rate(definition) == found.ideal_rate(definition)
        for definition in DEFINITIONS:
            check_facts(trace.lengths, found, definition)
            curve, other = known.curve(definition), found.curve(definition)
            assert made.differences(curve, other) == []
            capacities = [1, 3, max(curve.capacity_for(curve.ideal), 1), 1000]
            assert [other.capacity_for(x / 8) for x in range(9)] == [
                curve.capacity_for(x / 8) for x in range(9)
            ]
            assert np.array_equal(
                other.rate(np.array(capacities)),
                np.interp(capacities, curve.knots, curve.hits) / max(curve.total, 1),
            )
            for each in (definition, replace(definition, weight="request", warmup=0.4)):
                assert known.misses(each, capacities) == found.misses(each, capacities)


def check_facts(paths: PromptPaths, found: FollowedShards, definition: HitDefinition) -> None:
    """Compare every number of every request, put together from all stretches of time."""
    timely = list(found.distances(definition))
    columns = [
        (begin + runs.request, runs.depth, runs.blocks, runs.distance) for begin, _, runs in timely
    ]
    known = lru_distances(paths, definition)
    expected = (known.request, known.depth, known.blocks, known.distance)
    for each, parts in zip(expected, zip(*columns, strict=True), strict=True):
        assert np.array_equal(each, np.concatenate(parts))
    assert timely[-1][2].live == known.live
    new = [found.novelty(definition, begin, lengths) for begin, lengths, _ in timely]
    expected = novelty(paths, definition)
    for name in Novelty.__struct_fields__:
        parts = [getattr(part, name) for part in new]
        assert np.array_equal(getattr(expected, name), np.concatenate(parts)), name


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an analysis of a dataset read so few requests at a time that there are several."""
    monkeypatch.setattr(history, "AT_ONCE", 700)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("path", [*SAMPLES, *PUBLISHED], ids=lambda path: path.name)
def test_an_analysis_equals(path: Path, tmp_path: Path) -> None:
    """All that `analyze` says of the sample traces, and of published ones where they are."""
    compare([path], tmp_path, made.options(5, cut_share=1 / 64))


@pytest.mark.usefixtures("few_at_once")
def test_an_analysis_of_several_files_equals(tmp_path: Path) -> None:
    """Files that overlap in time."""
    paths = [path for path in SAMPLES if path.name.startswith("to-")]
    compare(paths, tmp_path, made.options(3), replace(standard(), weight="block", warmup=0.3))


def compare(
    paths: list[Path], folder: Path, chosen: Any, definition: HitDefinition | None = None
) -> None:
    """Analyze the files as a dataset and as one trace."""
    request = AnalyzeRequest() if definition is None else AnalyzeRequest(definition=definition)
    ingested = made.dataset(paths, folder / "dataset", chosen)
    with StoreFile(str(folder / "store.duckdb")) as stores:
        trace = ingest(stores, one_path([*map(str, paths)]), IngestOptions(made.NAME)).trace
        known = analyze(stores, trace, request)
    assert len(side_by_side(request.definition)) > 2
    found = analyze(Dataset(str(folder / "dataset")).stores, ingested.trace, request)
    assert made.differences(known, found) == []
    assert ingested.created


def test_the_first_row_of_the_files_owns_a_block() -> None:
    """Requests 10 and 11 share block 1; request 11 stands before 10 in the files."""
    parent, own = np.array([0, 0, 1, 1], np.int32), np.array([False, True, True, True])
    member, leaf, row = np.array([[10, 11], [2, 3], [5, 2]], np.int32)
    owner, paths = owned_blocks(parent, own, member, leaf, row)
    assert owner.tolist() == [-1, 11, 10, 11]
    assert {name: values.tolist() for name, values in paths.items()} == {
        "new": [1, 2],
        "above": [11, -1],
        "last": [10, 11],
    }

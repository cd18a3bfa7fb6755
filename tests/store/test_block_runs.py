"""Blocks are stored in runs; each of them comes back, of a store in runs and of an older one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.ingest.formats.base import Request
from kvscope.store import traces
from kvscope.store.db import MEMORY, Store, open_store
from tests import small_traces

IDS = st.sampled_from([0, 1, 2, 3, 7, 2**63 - 2, 2**63 - 1, -(2**63), -(2**63) + 1])


@settings(deadline=None, max_examples=30)
@given(paths=st.lists(st.lists(IDS, min_size=1, max_size=6), min_size=1, max_size=5))
def test_each_block_is_stored_once(store: Store, paths: list[list[int]]) -> None:
    """With its hash id, depth and reuses, whatever the neighbours in its run."""
    requests = [
        Request(input_tokens=len(path), output_tokens=0, arrival_s=float(k), hash_ids=[*path])
        for k, path in enumerate(paths)
    ]
    made = small_traces.built(requests, 1)
    trace = small_traces.stored(store, requests, 1)
    blocks = "FROM each_block WHERE trace_id = ? ORDER BY block"
    columns = store.connection.execute(blocks, [trace.trace_id]).fetchnumpy()
    loaded = traces.load_hash_ids(store, trace)
    hot = store.rows("characterize/hot_blocks", trace_id=trace.trace_id, most=3)
    assert columns["block"].tolist() == list(range(1, made.trie.count))
    for name, expected in (
        ("hash_id", made.trie.hash_id),
        ("depth", made.trie.depth),
        ("reuses", made.reuse.reuses),
    ):
        assert columns[name].tolist() == expected[1:].tolist()
    np.testing.assert_array_equal(loaded, made.trie.hash_id[1:])
    order = np.lexsort([columns["block"], columns["depth"], -columns["reuses"]])
    reused = [int(at) for at in order if columns["reuses"][at] > 0]
    assert [row["block"] for row in hot] == [at + 1 for at in reused[:3]]
    assert [row["parent"] for row in hot] == made.trie.parent[1:][reused[:3]].tolist()
    assert [row["hash_id"] for row in hot] == made.trie.hash_id[1:][reused[:3]].tolist()


def test_ids_that_go_up_by_one_take_a_row() -> None:
    """Of a prompt; another one that goes on with it takes one more."""
    prompts = [range(10, 30), [*range(10, 30), *range(30, 50)], range(10, 40)]
    requests = [
        Request(input_tokens=len(ids), output_tokens=0, arrival_s=float(k), hash_ids=[*ids])
        for k, ids in enumerate(prompts)
    ]
    with open_store(MEMORY) as store:
        small_traces.stored(store, requests, 1)
        runs = store.connection.execute("SELECT block, blocks, reuses FROM blocks").fetchall()
    assert runs == [(1, 20, 2), (21, 10, 1), (31, 10, 0)]

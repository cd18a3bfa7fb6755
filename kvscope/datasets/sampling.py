"""A sample of a dataset, drawn without reading the other requests.

For all requests, only the last blocks of their paths are loaded, and the trie's branch points. The
blocks between two of these have consecutive numbers and are on the same paths: one stretch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from kvscope.core import memory
from kvscope.core.arrays import Int32s, Int64s, distinct
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.datasets.dataset import LEAST_LEFT, Dataset
from kvscope.datasets.paths import Progress
from kvscope.datasets.shards import places_among
from kvscope.replay.derived_traces import needed_blocks, select
from kvscope.replay.footprint import drawn_replays_bytes
from kvscope.replay.sampling import (
    DrawnTrace,
    Sample,
    is_drawn,
    nothing_left,
    shared_limit,
    subtree_roots,
)
from kvscope.store.db import Store
from kvscope.store.traces import load_branches, load_requests

_AT_A_TIME = 1 << 20  # requests that are drawn together: bounds the memory


class Stretches(NamedTuple):
    """A trie as S stretches of blocks with consecutive numbers, each below its `parent` stretch.

    Stretch k ends with block `last[k]` and begins after last[k - 1]; stretch 0 is the root, and
    parents come first. `leaf` has the last stretch of R prompts, `carried_leaf` of cached paths.
    """

    last: Int32s
    parent: Int32s
    leaf: Int32s
    carried_leaf: Int32s


def drawn_trace(
    dataset: Dataset, store: Store, setting: RunSetting, progress: Progress
) -> DrawnTrace:
    """Return the sample of a dataset at a setting's rate, and LRU's exact curve of the whole.

    Raises OutOfMemoryError where the sample takes more than the free memory, UsageError where it is
    empty, InputError where the dataset has more than INT32_MAX blocks.
    """
    trace, least = dataset.trace, dataset.least_bytes()
    needed = drawn_replays_bytes(trace, setting.sample_rate, least)
    memory.require(needed, f"a replay of {trace.name!r}", "replay less, for example --sample 10%")
    store.limit_memory(max(needed, LEAST_LEFT), dataset.work)
    sample = draw(store, trace, setting.sample_rate)
    at_once = dataset.analysis_budget(least).runs_at_once
    paths = replace(dataset.paths(), runs_at_once=at_once, progress=progress)
    return DrawnTrace(sample, paths.follow([setting.definition]).curve(setting.definition))


def load_stretches(store: Store, trace: Trace) -> Stretches:
    """Return a dataset's trie in `Stretches`. Raises InputError for more than INT32_MAX blocks."""
    block, above = load_branches(store, trace)
    leaf, carried_leaf = store.columns("ingest/leaves", trace_id=trace.trace_id).values()
    # A path adds its blocks in a row, so where the next one begins to, a path has ended.
    last = distinct(np.zeros(1, dtype=np.int32), leaf, carried_leaf, above)
    parent = np.arange(len(last), dtype=np.int32) - np.int32(1)
    parent[0] = 0
    parent[np.searchsorted(last, block)] = np.searchsorted(last, above)
    leaf, carried_leaf = (
        np.searchsorted(last, each).astype(np.int32) for each in (leaf, carried_leaf)
    )
    return Stretches(last, parent, leaf, carried_leaf)


def draw(store: Store, trace: Trace, rate: float) -> Sample:
    """Return the sample of a dataset's trace at this rate, drawn by subtrees.

    Raises UsageError where the sample is empty, InputError for more than INT32_MAX blocks.
    """
    trie = load_stretches(store, trace)
    requests, group = _drawn(trie, trace, rate)
    if not len(requests):
        raise nothing_left(trace.requests, rate)
    rows = load_requests(store, trace, requests)
    rows["parent"] = _among(rows["parent"], requests)
    if rows["measurements"]:
        waits_for = _among(rows["measurements"].waits_for, requests)
        rows["measurements"] = replace(rows["measurements"], waits_for=waits_for)
    rows["leaf"], rows["carried_leaf"] = trie.leaf[requests], trie.carried_leaf[requests]
    prompts = _laid_out(Prompts(block_parent=trie.parent, **rows), trie.last)
    return Sample(prompts, requests, group, rate, trace.requests)


def _drawn(trie: Stretches, trace: Trace, rate: float) -> tuple[Int64s, Int64s]:
    """Return the requests in the sample, and the subtree of each.

    A subtree is named by its root: a path's first block that few enough requests share. Requests
    without one (shared heads, no blocks) get a number of their own, beyond all blocks.
    """
    root = subtree_roots(trie.parent, trie.leaf, shared_limit(trace.requests))
    requests, groups = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for begin in range(0, trace.requests, _AT_A_TIME):
        top = root[trie.leaf[begin : begin + _AT_A_TIME]]
        own = trace.distinct_blocks + 1 + np.arange(begin, begin + len(top))
        group = np.where(top > 0, trie.last[top - 1].astype(np.int64) + 1, own)
        chosen = np.flatnonzero(is_drawn(group, rate))
        requests.append(begin + chosen)
        groups.append(group[chosen])
    return np.concatenate(requests), np.concatenate(groups)


def _among(numbers: Int32s, requests: Int64s) -> Int32s:
    return places_among(numbers, requests, -1).astype(np.int32)


def _laid_out(prompts: Prompts, last: Int32s) -> Prompts:
    """Return the sample with its stretches expanded to blocks.

    In `prompts`, block numbers are those of stretches, and `last` has the last block of each.
    Blocks that are on no path of the sample are dropped, and the others numbered anew.
    """
    every = np.arange(len(prompts.leaf))
    blocks = np.diff(last, prepend=np.int32(-1))[needed_blocks(prompts, every)]
    inside = select(prompts, every)
    end = (np.cumsum(blocks, dtype=np.int64) - 1).astype(np.int32)
    block_parent = np.arange(end[-1] + 1, dtype=np.int32) - np.int32(1)
    block_parent[end - blocks + 1] = end[inside.block_parent]
    return replace(
        inside,
        leaf=end[inside.leaf],
        carried_leaf=end[inside.carried_leaf],
        block_parent=block_parent,
    )

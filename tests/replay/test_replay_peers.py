"""The sample traces at eight capacities: the same hits as kvcache-simulator and libCacheSim.

libCacheSim is under the GPL: it is a tool of tests and benchmarks, the package never imports it.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import libcachesim
import numpy as np
import pytest
from kvcache_sim.cpp_backend import run_cpp_sweep
from kvcache_sim.trace import TraceData, parse_trace_lines
from numpy.typing import NDArray

from benchmarks.workers.convert import RECORD, next_access
from kvscope.core.files import data_folder
from kvscope.core.hits import KVCACHE_SIMULATOR, LIBCACHESIM
from kvscope.core.prefix import paths
from kvscope.core.trace import Prompts
from kvscope.policies.registry import by_name
from kvscope.replay.replay import Replay, replay, touch_history
from kvscope.replay.traffic import traffic
from tests.golden.samples import SAMPLES, SHARES_PERCENT, capacities, sample
from tests.long import long
from tests.policies.traffics import first

EACH_SAMPLE = pytest.mark.parametrize(
    "name", [name if name in {"to-c", "regime-change"} else long(name) for name in SAMPLES]
)
ACCESSES = 150_000  # of each sample, for the flat caches: the first ones
FLAT = {
    "lru": libcachesim.LRU,
    "fifo": libcachesim.FIFO,
    "lfu": libcachesim.LFU,
    "sieve": libcachesim.Sieve,
    "belady": libcachesim.Belady,
}


@pytest.mark.skipif(shutil.which("c++") is None, reason="kvcache-simulator compiles its core")
@EACH_SAMPLE
def test_equals_kvcache_simulator(name: str) -> None:
    """The same hit tokens of the last half of the requests, for lru, belady and fifo.

    Partial last blocks kept, last-token rule off, outputs ignored. Its lru and optimal may refuse a
    block as kvscope's do. Its fifo may not, and makes room before each insertion: `mandatory`.
    Capacities begin at the longest prompt, as in a smaller cache its lru gives up the head of what
    it is just inserting; and where it never evicted in the first half it gives no result.
    """
    prompts = sample(name)
    first = len(prompts.leaf) // 2
    rooms = [room for room in capacities(prompts) if room >= prompts.blocks.max()]
    asked = {"lru": "lru", "optimal": "belady", "fifo": "fifo"}
    theirs = run_cpp_sweep(
        _peer_trace(name, prompts.block_size),
        capacities=rooms,
        policies=list(asked),
        warmup_requests=first,
    )
    of = traffic(prompts, KVCACHE_SIMULATOR)
    past = touch_history(of)
    compared = 0
    for (policy, room), peer in theirs.results.items():
        if peer.measurementMode == "underfilled_at_window":
            continue
        ours = by_name(asked[policy])()
        done = replay(of, ours, room, history=past, mandatory=policy == "fifo")
        assert (policy, room, _hit_tokens(prompts, done, first)) == (policy, room, peer.hitTokens)
        compared += 1
    assert compared >= 3 * (len(rooms) - 3)


@EACH_SAMPLE
def test_equals_libcachesim(name: str, tmp_path: Path) -> None:
    """The same number of hits, every access being an object of its own.

    Block-weighted, whole trace, flat. It cannot refuse a block and evicts before it inserts:
    `mandatory`.
    """
    prompts = sample(name)
    blocks = paths(prompts.block_parent, prompts.leaf, prompts.blocks)[1][:ACCESSES]
    file = _oracle_general(blocks, tmp_path / "accesses")
    of = first(traffic(prompts, LIBCACHESIM), ACCESSES)
    past = touch_history(of)
    for policy, peer in FLAT.items():
        for room in [len(np.unique(blocks)) * percent // 100 for percent in SHARES_PERCENT]:
            cache = peer(room, hashpower=max(room.bit_length(), 16))
            reader = libcachesim.TraceReader(file, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
            miss_ratio, _ = cache.process_trace(reader)
            done = replay(of, by_name(policy)(), room, history=past, mandatory=True)
            expected = round((1.0 - miss_ratio) * len(blocks))
            assert (policy, room, int(done.hit_blocks.sum())) == (policy, room, expected)


def _peer_trace(name: str, block_size: int) -> TraceData:
    path = data_folder("sample_traces") / f"{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return parse_trace_lines(lines, block_size=block_size)


def _hit_tokens(prompts: Prompts, done: Replay, first: int) -> int:
    hit = done.hit_blocks.astype(np.int64) * prompts.block_size
    return int(np.minimum(hit, prompts.input_tokens)[first:].sum())


def _oracle_general(blocks: NDArray[np.int64], file: Path) -> str:
    records = np.zeros(len(blocks), dtype=RECORD)
    records["time"] = np.arange(len(blocks))
    records["id"] = blocks
    records["size"] = 1
    records["next"] = next_access(blocks)
    records.tofile(file)
    return str(file)

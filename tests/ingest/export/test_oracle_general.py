"""libCacheSim reads what kvscope writes, and LRU on it misses what kvscope's flat curve says."""

from __future__ import annotations

from pathlib import Path

import libcachesim
import numpy as np
import pytest
from libcachesim.libcachesim_python import convert_to_oracleGeneral

from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Trace
from kvscope.ingest.formats.base import Request
from kvscope.ingest.formats.oracle_general import RECORD
from kvscope.ingest.formats.registry import export
from kvscope.replay.curve import lru_curve
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces

LIBCACHESIM = HitDefinition(
    "libcachesim", "block", partial=True, last_token_rule=False, outputs="ignored", flat=True
)


def chats(requests: int) -> list[Request]:
    """Prompts that continue, branch and repeat, some hundred blocks of working set."""
    rng = np.random.default_rng(11)
    trace: list[Request] = []
    for at in range(requests):
        base = trace[int(rng.integers(len(trace)))].hash_ids if trace and rng.random() < 0.7 else []
        head = list(base or [])[: int(rng.integers(1, 30))]
        ids = head + rng.integers(0, 10**6, int(rng.integers(1, 12))).tolist()
        trace.append(
            Request(
                input_tokens=16 * len(ids) - int(rng.integers(0, 16)),
                output_tokens=20,
                hash_ids=ids,
                arrival_s=at * 0.7,
            )
        )
    return trace


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Trace, Path]:
    """Return a trace of 4,500 requests, more than are written at a time, and its export."""
    store = open_store(MEMORY)
    trace = small_traces.stored(store, chats(4500), 16)
    path = tmp_path_factory.mktemp("peer") / "trace.oracleGeneral"
    export(store, trace, "oracleGeneral", str(path))
    return store, trace, path


def test_lru_hits_as_libcachesim_does(exported: tuple[Store, Trace, Path]) -> None:
    """At every capacity tried, from one block to more than all, the hits are the same number."""
    store, trace, path = exported
    curve = lru_curve(load_prompts(store, trace), LIBCACHESIM)
    assert curve.total == trace.accesses
    for capacity in (1, 10, 100, 1000, 3000, trace.distinct_blocks, 2 * trace.distinct_blocks):
        reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        missed, _ = libcachesim.LRU(capacity).process_trace(reader)
        ours = np.interp(capacity, curve.knots, curve.hits)
        assert round((1 - missed) * trace.accesses) == round(ours)


def test_the_future_is_libcachesims(exported: tuple[Store, Trace, Path], tmp_path: Path) -> None:
    """Its own converter, given the file, computes the same next accesses: equal byte for byte."""
    _, trace, path = exported
    reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    convert_to_oracleGeneral(reader._reader, str(tmp_path / "theirs"))
    assert (tmp_path / "theirs").read_bytes() == path.read_bytes()
    assert path.stat().st_size == trace.accesses * RECORD.itemsize == trace.accesses * 24


def test_records_by_hand(tmp_path: Path) -> None:
    """Two prompts that share their first block: its next access is the second prompt's first."""
    with open_store(MEMORY) as store:
        told = [
            Request(input_tokens=32, output_tokens=9, hash_ids=[7, 8], arrival_s=0.9),
            Request(input_tokens=20, output_tokens=9, hash_ids=[7, 9], arrival_s=3.0),
        ]
        export(store, small_traces.stored(store, told, 16), "oracleGeneral", str(tmp_path / "x"))
    found = np.fromfile(tmp_path / "x", dtype=RECORD)
    assert found.tolist() == [(0, 1, 1, 3), (0, 2, 1, -1), (2, 1, 1, -1), (2, 3, 1, -1)]

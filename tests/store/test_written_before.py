"""Stores that older versions wrote: of schema version N, with a trace and a run of LRU."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from kvscope.characterize.history import load_history
from kvscope.core.directives import Directives
from kvscope.core.errors import StoreVersionError
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.ingest.formats.exporter import rows
from kvscope.ingest.pipeline import ingest
from kvscope.store import results, traces
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces

WRITTEN = Path(__file__).parents[1] / "written_before"
TRACE = str(WRITTEN / "trace.jsonl")


@pytest.fixture(params=[4, 5])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path of a copy of an old store."""
    path = tmp_path / "old.duckdb"
    path.write_bytes(gzip.decompress((WRITTEN / f"store-{request.param}.duckdb.gz").read_bytes()))
    return str(path)


def test_nothing_is_lost(old: str) -> None:
    """Traces and runs are there, now and after the next opening; what is new is unknown."""
    with pytest.raises(StoreVersionError, match="an older kvscope wrote it"):
        open_store(old, read_only=True)
    for read_only in (False, True):
        with open_store(old, read_only=read_only) as store:
            (trace,) = traces.all_traces(store)
            assert (trace.name, trace.requests, trace.accesses) == ("before", 12, 60)
            assert (trace.models, trace.tenants, trace.measured_requests) == (None, None, None)
            prompts = load_prompts(store, trace)
            assert prompts.measurements is None
            assert (prompts.clock == -1).all()
            assert prompts.categories == load_history(store, trace).categories
            (known,) = results.with_parts(store, results.all_runs(store, trace))
            assert (known.run.policy, known.run.capacity_blocks) == ("lru", 6)
            assert known.run.deployment is None
            assert known.request == results.digest_of(known.run)


def attributed(number: int) -> Request:
    """Return the request of this number: each of 8 has some of all attributes, the last none."""
    request = Request(
        input_tokens=40, output_tokens=10, arrival_s=1.5 * number, hash_ids=[1, 2 + number // 3],
        chat_id=number, parent_chat_id=number - 3 if number > 2 else None, user_id=number % 2,
    )  # fmt: skip
    more = [
        {"model": "a", "cache_salt": "Kolibri"},
        {"adapter": 7, "worker": "north", "ttft_s": 0.125},
        {"queue_s": 0.5, "duration_s": 2.25, "cached_tokens": 16},
        {"delay_s": 3.0, "waits_for": 1},
        {"clock": "own", "session_id": "s"},
        {"retention": Directives(ends=True)},
        {"retention": Directives(pause=True), "model": "b", "worker": "south"},
        {},
    ]
    for name, value in more[number].items():
        setattr(request, name, value)
    return request


def test_attributes_move_to_a_table_of_their_own(tmp_path: Path) -> None:
    """What a store of version 19 says of requests is what is stored of them today."""
    path = tmp_path / "old.duckdb"
    path.write_bytes(gzip.decompress((WRITTEN / "store-19.duckdb.gz").read_bytes()))
    with open_store(str(path)) as store, open_store(MEMORY) as new:
        (old,) = traces.all_traces(store)
        trace = small_traces.stored(new, [attributed(number) for number in range(8)], 16)
        assert [*rows(store, old)] == [*rows(new, trace)]
        was, now = load_prompts(store, old), load_prompts(new, trace)
        for each in ("measurements", "directives"):
            assert str(getattr(was, each)) == str(getattr(now, each))
        assert str(traces.load_tenants(store, old)) == str(traces.load_tenants(new, trace))
        assert was.clock.tolist() == now.clock.tolist() == [-1] * 4 + [0] + [-1] * 3
        assert str(load_history(store, old)) == str(load_history(new, trace))
        traces.remove(store, old)
        assert not store.connection.execute("SELECT * FROM request_attributes").fetchall()


def test_the_same_content_is_the_same_trace(old: str) -> None:
    """Digests of traces stay; ingested anew, it has what the older version left out."""
    with open_store(old) as store:
        before = ingest(store, TRACE)
        was, touched_before = load_prompts(store, before.trace), load_history(store, before.trace)
        assert not before.created
        traces.remove(store, before.trace)
        anew = ingest(store, TRACE)
        now, touched = load_prompts(store, anew.trace), load_history(store, anew.trace)
    assert anew.created
    trace = anew.trace
    assert trace.content_hash == before.trace.content_hash
    assert (trace.models, trace.adapters, trace.salts, trace.workers) == (2, 0, 1, 0)
    assert (trace.tenants, trace.measured_requests) == (3, 4)
    assert now.measurements is not None
    assert np.nansum(now.measurements.ttft_s) == pytest.approx(4 * 0.125)
    if len(was.block_parent) == len(now.block_parent):  # the oldest took tenants for one
        for name in {*Prompts.__struct_fields__} - {"measurements"}:
            assert np.array_equal(getattr(was, name), getattr(now, name)), name
        for name in ("first", "last"):
            assert np.array_equal(getattr(touched_before, name), getattr(touched, name)), name
        assert np.array_equal(touched_before.life.weight, touched.life.weight)


def test_a_cache_salt_is_not_stored(tmp_path: Path) -> None:
    """Neither in the clear nor as a digest that a guess confirms."""
    guess = (WRITTEN / "trace.jsonl").read_text().replace("Kolibri", "another")
    other = tmp_path / "other.jsonl"
    other.write_text(guess)
    hashes = []
    for path in (TRACE, str(other)):
        with open_store(MEMORY) as store:
            ingest(store, path)
            hashes.append(store.connection.execute("SELECT * FROM blocks").fetchall())
            salts = store.connection.execute("SELECT max(salt) FROM request_attributes")
            assert salts.fetchall() == [(0,)]
    assert hashes[0] == hashes[1]

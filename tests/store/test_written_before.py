"""A store of schema version 19, the oldest that is read, and what no version stores."""

from __future__ import annotations

import gzip
from pathlib import Path

from kvscope.characterize.history import load_history
from kvscope.core.directives import Directives
from kvscope.ingest.formats.base import Request
from kvscope.ingest.formats.exporter import rows
from kvscope.ingest.pipeline import ingest
from kvscope.store import traces
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces

WRITTEN = Path(__file__).parents[1] / "written_before"
TRACE = str(WRITTEN / "trace.jsonl")


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

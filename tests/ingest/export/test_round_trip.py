"""Exports read again are the same trace, and peers read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libcachesim
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libcachesim.libcachesim_python import convert_to_oracleGeneral

from kvscope.core.errors import InputError, KvscopeError, UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Directives, Part, Prompts, Retain, Trace
from kvscope.ingest.formats.base import Request
from kvscope.ingest.formats.exporter import REQUESTS_AT_ONCE, milliseconds, rows
from kvscope.ingest.formats.oracle_general import RECORD
from kvscope.ingest.formats.registry import EXPORTERS, export
from kvscope.ingest.pipeline import ingest
from kvscope.replay.curve import lru_curve
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces

CARRIED = HitDefinition("default")
IGNORED = HitDefinition("prompts alone", partial=True, last_token_rule=False, outputs="ignored")


STATED = (
    "user_id", "type", "model", "adapter", "cache_salt", "worker", "ttft_s", "queue_s",
    "duration_s", "cached_tokens", "delay_s", "waits_for", "clock", "retention", "repeated_tokens",
    "parts",
)  # fmt: skip
COUNTS = ("models", "adapters", "salts", "tenants", "workers", "measured_requests")
DIRECTIVES = (
    Directives((Retain(to=9, priority=80, ttl_s=300.0), Retain(start=9, ttl_s=60.0))),
    Directives(pause=True),
    Directives(ends=True, refresh=False),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples write their files, one over the other."""
    return tmp_path_factory.mktemp("exported")


def again(store: Store, trace: Trace, to: str, path: Path) -> Trace:
    """Return the trace as it comes back from an export to `to`."""
    export(store, trace, to, str(path))
    return ingest(store, str(path)).trace


class Content:
    """All of a stored trace that an export can carry, read once."""

    def __init__(self, store: Store, trace: Trace) -> None:
        self.trace = trace
        self.loaded = load_prompts(store, trace)
        self.requests = [row for chunk in rows(store, trace) for row in chunk]
        ideal = store._connection.execute(
            "SELECT ideal_blocks FROM requests WHERE trace_id = $1 ORDER BY request",
            [trace.trace_id],
        )
        self.ideal = [blocks for (blocks,) in ideal.fetchall()]

    def prompts(self) -> dict[str, Any]:
        """Return times, lengths and path structure, and what LRU makes of the prompts alone."""
        columns = ("arrival_s", "input_tokens", "output_tokens", "blocks", "full_blocks")
        numbers: dict[int, int] = {}
        paths = [
            [numbers.setdefault(block, len(numbers)) for block in row.hash_ids]
            for row in self.requests
        ]
        return self._columns(columns) | {
            "paths": paths,
            "block_size": self.trace.block_size if self.trace.has_hashes else None,
            "curve": curve_of(self.loaded, IGNORED),
        }

    def conversations(self) -> dict[str, Any]:
        """Return which request continues which, and all that follows from it."""
        at = {row.chat_id: number for number, row in reversed([*enumerate(self.requests)])}
        return self._columns(("conversation", "cached_blocks", "carried_blocks")) | {
            "turns": [row.turn for row in self.requests],
            "parents": [at.get(row.parent_chat_id) for row in self.requests],
            "ideal": self.ideal,
            "curve": curve_of(self.loaded, CARRIED),
        }

    def attributes(self) -> list[list[Any]]:
        """Return all else that requests say, and the counts of what tells tenants apart."""
        counts = [getattr(self.trace, name) for name in COUNTS]
        return [counts, *([getattr(row, name) for name in STATED] for row in self.requests)]

    def _columns(self, names: Sequence[str]) -> dict[str, list[Any]]:
        return {name: getattr(self.loaded, name).tolist() for name in names}


def curve_of(loaded: Prompts, definition: HitDefinition) -> list[list[int]]:
    """Return LRU's hits at every capacity."""
    curve = lru_curve(loaded, definition)
    return [curve.knots.tolist(), curve.hits.tolist()]


@st.composite
def labelled(draw: st.DrawFn, size: int, *, chats: bool) -> list[Request]:
    """Return requests of which some say all that requests may, on a grid of milliseconds."""
    trace = draw(small_traces.requests(size, chats=chats))
    seconds = st.none() | st.integers(1, 80).map(lambda eighths: eighths / 8)
    for at, request in enumerate(trace):
        request.arrival_s = (request.arrival_s or 0.0) * 337 / 1000
        request.user_id = draw(st.none() | st.integers(0, 3))
        request.type = draw(st.sampled_from([None, "text", "image"]))
        request.model = draw(st.sampled_from([None, "a", "b"]))
        request.adapter = draw(st.sampled_from([None, 0, 1, "french"]))
        request.cache_salt = draw(st.sampled_from([None, "Kolibri", "other"]))
        request.worker = draw(st.sampled_from([None, 0, "w1"]))
        request.ttft_s, request.queue_s, request.duration_s = (draw(seconds) for _ in range(3))
        request.delay_s = draw(seconds)
        request.waits_for = draw(st.none() | st.integers(0, at)) if chats else None
        request.cached_tokens = draw(st.none() | st.integers(0, request.input_tokens))
        request.repeated_tokens = draw(st.none() | st.integers(0, 9))
        request.retention = draw(st.sampled_from([None, *DIRECTIVES]))
        request.clock = draw(st.sampled_from([None, None, "x", "y"]))
        parts = [Part("system", 1), Part("tool 1 search", request.input_tokens)]
        request.parts = draw(st.sampled_from([None, parts[:1], parts[1:]]))
    return trace


@settings(deadline=None, max_examples=24)
@given(st.data(), small_traces.SIZES, st.booleans(), st.sampled_from(["bailian", "parquet"]))
def test_everything_comes_back(
    store: Store, folder: Path, data: st.DataObject, size: int, chats: bool, to: str
) -> None:
    """Bailian and parquet carry requests, blocks, conversations and all else but salts' text."""
    trace = small_traces.stored(store, data.draw(labelled(size, chats=chats)), size)
    back = again(store, trace, to, folder / "back")
    assert b"Kolibri" not in (folder / "back").read_bytes()
    found, expected = Content(store, back), Content(store, trace)
    assert found.prompts() == expected.prompts()
    assert found.conversations() == expected.conversations()
    assert found.attributes() == expected.attributes()
    assert back.lineage == ("given" if to == "bailian" else trace.lineage)


@settings(deadline=None, max_examples=12)
@given(st.data(), small_traces.SIZES, st.booleans())
def test_mooncake_carries_prompts(
    store: Store, folder: Path, data: st.DataObject, size: int, chats: bool
) -> None:
    """Prompts come back as they were; conversations if they were inferred in the first place."""
    trace = small_traces.stored(store, data.draw(labelled(size, chats=chats)), size)
    back = again(store, trace, "mooncake", folder / "back")
    found, expected = Content(store, back), Content(store, trace)
    assert found.prompts() == expected.prompts()
    if not chats:
        assert found.conversations() == expected.conversations()


@pytest.mark.parametrize("to", ["bailian", "parquet", "mooncake"])
def test_many_chunks(store: Store, tmp_path: Path, to: str) -> None:
    """A trace longer than what is in memory at a time comes back whole and in order."""
    rng = np.random.default_rng(3)
    trace = [
        Request(
            input_tokens=int(rng.integers(33, 48)),
            output_tokens=1,
            hash_ids=rng.integers(0, 9, 3).tolist(),
            arrival_s=at // 3 / 1000,
        )
        for at in range(2 * REQUESTS_AT_ONCE + 5)
    ]
    kept = small_traces.stored(store, trace, 16)
    back = again(store, kept, to, tmp_path / "back")
    assert Content(store, back).prompts() == Content(store, kept).prompts()


def test_chat_ids_of_the_trace_are_kept(store: Store, tmp_path: Path) -> None:
    """Ids that tell all requests apart stay; otherwise request numbers take their place."""
    told = [
        Request(input_tokens=1, output_tokens=1, chat_id=chat, parent_chat_id=parent)
        for chat, parent in [(70, None), (90, 70), (80, 90)]
    ]
    kept = small_traces.stored(store, told, 16)
    back = again(store, kept, "bailian", tmp_path / "kept.jsonl")
    assert [row.chat_id for row in next(rows(store, back))] == [70, 90, 80]
    told[2].chat_id = 70
    numbered = small_traces.stored(store, told, 16)
    back = again(store, numbered, "bailian", tmp_path / "numbered.jsonl")
    assert [row.chat_id for row in next(rows(store, back))] == [0, 1, 2]
    assert [row.parent_chat_id for row in next(rows(store, back))] == [None, 0, 1]


@pytest.mark.parametrize("to", ["bailian", "parquet"])
def test_conversations_of_one_turn_stay_given(store: Store, tmp_path: Path, to: str) -> None:
    """A trace that says of every request that it continues none says so again."""
    told = [
        Request(
            input_tokens=at,
            output_tokens=0,
            chat_id=at,
            parent_chat_id=-1,
            hash_ids=list(range(at)),
        )
        for at in (1, 2, 3)
    ]
    back = again(store, small_traces.stored(store, told, 1), to, tmp_path / "back")
    assert back.lineage == "given"
    assert Content(store, back).conversations()["turns"] == [1, 1, 1]


def test_waiting_needs_no_parents(store: Store, tmp_path: Path) -> None:
    """Which request one waits for comes back where no request says what it continues."""
    told = [
        Request(input_tokens=1, output_tokens=0, chat_id=0),
        Request(input_tokens=1, output_tokens=0, chat_id=1, waits_for=0),
    ]
    back = again(store, small_traces.stored(store, told, 1), "parquet", tmp_path / "back")
    assert [row.waits_for for row in next(rows(store, back))] == [None, 0]
    assert back.lineage == "none"


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_the_ending_compresses(store: Store, tmp_path: Path, suffix: str) -> None:
    """Compressed or not, the content is one and the same trace."""
    trace = [Request(input_tokens=at + 40, output_tokens=1, hash_ids=[1, at]) for at in range(9)]
    kept = small_traces.stored(store, trace, 16)
    back = again(store, kept, "mooncake", tmp_path / f"trace.jsonl{suffix}")
    plain = again(store, kept, "mooncake", tmp_path / "plain.jsonl")
    assert back.trace_id == plain.trace_id
    magic = {"": b'{"ti', ".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}[suffix]
    assert (tmp_path / f"trace.jsonl{suffix}").read_bytes().startswith(magic)


def test_a_broken_export_leaves_no_file(store: Store, tmp_path: Path) -> None:
    """What fails midway leaves the file that was there before."""
    trace = small_traces.stored(store, [Request(input_tokens=1, output_tokens=1)], 16)
    target = tmp_path / "trace.jsonl"
    target.write_text("before")

    def fail(requests: int) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        export(store, trace, "bailian", str(target), fail)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_what_cannot_be_exported_is_refused(store: Store, tmp_path: Path) -> None:
    """Unknown formats, binary ones on standard output, and block formats without blocks."""
    trace = small_traces.stored(store, [Request(input_tokens=1, output_tokens=1)], 16)
    with pytest.raises(UsageError, match="take one of bailian, mooncake, parquet, oracleGeneral"):
        export(store, trace, "csv", str(tmp_path / "x"))
    with pytest.raises(UsageError, match="parquet is binary"):
        export(store, trace, "parquet", "-")
    with pytest.raises(InputError, match="no block hashes"):
        export(store, trace, "oraclegeneral", str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())


def test_every_format_says_what_it_is() -> None:
    """Each has a name of its own and one line of summary."""
    assert len({exporter.name.lower() for exporter in EXPORTERS}) == len(EXPORTERS)
    assert all(exporter.summary and exporter.__doc__ for exporter in EXPORTERS)


@settings(max_examples=300)
@given(st.integers(0, 10**12))
def test_milliseconds_are_whole_where_they_can_be(ms: int) -> None:
    """A time that was read from whole milliseconds is written as them."""
    assert milliseconds(ms / 1000) == ms
    assert isinstance(milliseconds(ms / 1000), int)


@settings(max_examples=300)
@given(st.floats(0, 1e9))
def test_milliseconds_are_exact_to_the_last_place(seconds: float) -> None:
    """Other times lose at most a float's last place."""
    assert milliseconds(seconds) / 1000 == pytest.approx(seconds, rel=2**-52, abs=0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("to", [exporter.name for exporter in EXPORTERS])
def test_a_full_disk(store: Store, tmp_path: Path, to: str) -> None:
    """It is the system's error, whichever library writes."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 900, "output_length": 3, "hash_ids": [1, 2]}\n'
    )
    trace = ingest(store, str(path)).trace
    with pytest.raises(KvscopeError, match=r"^/dev/full: the disk is full"):
        export(store, trace, to, "/dev/full")


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

"""Traces that grow, and ranges of time."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.trace import Trace
from kvscope.ingest import follow
from kvscope.ingest.follow import Follower
from kvscope.ingest.formats.base import ROOT, Request
from kvscope.ingest.time_range import ingest_range
from kvscope.store import traces
from kvscope.store.db import Store, open_store
from kvscope.store.traces import load_hash_ids
from kvscope.vllm_plugin.recording import LineWriter
from tests import small_traces


def append(path: Path, text: str) -> None:
    """Write more to a file."""
    with path.open("a") as file:
        file.write(text)


def all_lines(follower: Follower) -> list[bytes]:
    """Return what is new in all files."""
    lines: list[bytes] = []
    while new := follower.lines():
        lines += new
    return lines


def test_partial_lines_wait(tmp_path: Path) -> None:
    """A line comes once it is whole; blank ones never do; a missing file may appear later."""
    path = tmp_path / "recording.jsonl"
    with closing(Follower(path)) as follower:
        assert follower.lines() == []
        append(path, "one\ntw")
        assert follower.lines() == [b"one"]
        assert follower.lines() == []
        append(path, "o\n\n  \nthree\n")
        assert follower.lines() == [b"two", b"three"]
        assert (follower.switches, follower.recordings) == (0, 0)


def test_rotation(tmp_path: Path) -> None:
    """The old file is read to its end, then the new one of the same name from its beginning."""
    path = tmp_path / "recording.jsonl"
    path.write_text("one\n")
    with closing(Follower(path)) as follower:
        assert follower.lines() == [b"one"]
        append(path, "two\ncut")
        path.rename(tmp_path / "recording.jsonl.1")
        path.write_text("three\n")
        assert all_lines(follower) == [b"two", b"three"]
        assert (follower.switches, follower.recordings) == (1, 0)


def test_truncation(tmp_path: Path) -> None:
    """A file that got shorter is read from its beginning; the line that was cut is gone."""
    path = tmp_path / "recording.jsonl"
    path.write_text("one\nsome more and a rest")
    with closing(Follower(path)) as follower:
        assert follower.lines() == [b"one"]
        path.write_text("two\n")
        assert all_lines(follower) == [b"two"]
        assert follower.switches == 1
        longer = [f"{line} of what is longer than all before" for line in range(9)]
        path.write_text("\n".join([*longer, ""]))
        assert all_lines(follower) == [line.encode() for line in longer]
        assert follower.switches == 2


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    """In order of their numbers, from the latest two on; another name is another recording."""
    for number in (1, 2, 3):
        (tmp_path / f"recording-a-0000{number}.jsonl").write_text(f"a{number}\n")
    (tmp_path / "notes.txt").write_text("no recording\n")
    with closing(Follower(tmp_path)) as follower:
        assert all_lines(follower) == [b"a2", b"a3"]
        assert (follower.switches, follower.recordings) == (1, 0)
        append(tmp_path / "recording-a-00003.jsonl", "a4\n")
        (tmp_path / "recording-a-00004.jsonl").write_text("a5\n")
        assert all_lines(follower) == [b"a4", b"a5"]
        assert follower.recordings == 0
        (tmp_path / "recording-b-00001.jsonl").write_text("b1\n")
        assert all_lines(follower) == [b"b1"]
        assert follower.recordings == 1


def test_an_empty_folder_waits(tmp_path: Path) -> None:
    """Until a recording begins in it."""
    with closing(Follower(tmp_path)) as follower:
        assert follower.lines() == []
        (tmp_path / "recording-a-00001.jsonl").write_text("a1\n")
        assert follower.lines() == [b"a1"]


def test_lines_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One longer than any line of a trace is dropped without being kept in memory."""
    monkeypatch.setattr(follow, "MAX_LINE_BYTES", 10)
    path = tmp_path / "recording.jsonl"
    path.write_text("x" * 11)
    with closing(Follower(path)) as follower:
        assert follower.lines() == []
        append(path, "x" * 30)
        assert follower.lines() == []
        append(path, "x\nshort\n")
        assert follower.lines() == [b"short"]
        append(path, "y" * 11 + "\nnext\n")
        assert follower.lines() == [b"next"]


def test_what_the_recorder_writes(tmp_path: Path) -> None:
    """Every line of a recording, over all its files, once."""
    writer = LineWriter(tmp_path, "recording-20261123-120000-7", rotate_bytes=40)
    with closing(Follower(tmp_path)) as follower:
        writer.put(partial(dict, chat_id=0))
        while not (lines := all_lines(follower)):
            sleep(0.01)
        for number in range(1, 20):
            writer.put(partial(dict, chat_id=number))
        writer.close()
        lines += all_lines(follower)
    assert [json.loads(line) for line in lines] == [{"chat_id": number} for number in range(20)]
    assert (writer.files > 3, follower.switches) == (True, writer.files - 1)
    assert follower.recordings == 0


SIZE = 4
_TIMES = st.integers(0, 10)


def _columns(store: Store, trace: Trace) -> dict[str, list[object]]:
    """Return what the store keeps of requests and blocks, as far as their content decides it."""
    prompts = traces.load_prompts(store, trace)
    hash_ids = load_hash_ids(store, trace)
    named = {"hash_id": hash_ids.tolist()}
    names = ("arrival_s", "parent", "conversation", "input_tokens", "leaf", "carried_leaf")
    return named | {name: getattr(prompts, name).tolist() for name in names}


def _known_as(whole: Trace, request: Request) -> Request:
    """Return the request with its parent if the whole trace's parents count, else without."""
    if whole.lineage != "given":
        return replace(request, chat_id=None, parent_chat_id=None)
    parent = request.parent_chat_id
    return replace(request, parent_chat_id=ROOT if parent is None else parent)


def _request(number: int, at: float, parent: int | None = None, *hash_ids: int) -> Request:
    return Request(
        input_tokens=len(hash_ids) * SIZE or 1,
        output_tokens=0,
        arrival_s=at,
        hash_ids=list(hash_ids),
        chat_id=number,
        parent_chat_id=parent,
    )


@settings(deadline=None, max_examples=30)
# A parent where no request has hashes, and none where one has: inferred, and so in the range.
@example(requests=[_request(0, 0.0), _request(1, 0.0, 0), _request(2, 1.0, None, 7)], ends=(0, 0))
# No parent in the range, which shares a prefix: given, and so no parent.
@example(
    requests=[_request(0, 0.0, None, 7), _request(1, 0.0, None, 7, 8), _request(2, 1.0, 0, 7, 9)],
    ends=(0, 0),
)
@given(requests=small_traces.requests(SIZE, most=20, chats=True), ends=st.tuples(_TIMES, _TIMES))
def test_as_if_only_they_had_arrived(
    store: Store, requests: list[Request], ends: tuple[int, int]
) -> None:
    """The range's trace is that of a file with those requests alone, conversations known alike.

    Whether conversations are given is decided by the whole trace: a range of few requests, or of
    requests without hashes, would decide otherwise.
    """
    first, last = sorted(ends)
    whole = small_traces.stored(store, requests, SIZE)
    inside = [_known_as(whole, each) for each in requests if first <= (each.arrival_s or 0) <= last]
    if not inside:
        with pytest.raises(UsageError, match="no request arrives then"):
            ingest_range(store, whole, first, last + 1)
        return
    part = ingest_range(store, whole, first, last + 1)
    alone = small_traces.stored(store, inside, SIZE)
    assert _columns(store, part) == _columns(store, alone)
    for name in ("requests", "accesses", "distinct_blocks", "span_s", "input_tokens"):
        assert getattr(part, name) == getattr(alone, name)


def test_stored_once(tmp_path: Path) -> None:
    """The same range again is the same trace; all of a trace is the trace itself."""
    requests = [
        Request(input_tokens=8, output_tokens=1, arrival_s=float(at), hash_ids=[7, 9 + at])
        for at in range(9)
    ]
    with open_store(str(tmp_path / "store.duckdb")) as store:
        whole = small_traces.stored(store, requests, SIZE)
        part = ingest_range(store, whole, 2, 5)
        assert (part.name, part.requests, part.span_s) == (f"{whole.name}@2-5s", 3, 2.0)
        assert ingest_range(store, whole, 2, 5) == part
        assert ingest_range(store, whole) == ingest_range(store, whole, 0, 9) == whole
        assert ingest_range(store, whole, 6).name == f"{whole.name}@6-s"
        assert ingest_range(store, part, 1, 2).requests == 1
        with pytest.raises(UsageError, match="ends before it begins"):
            ingest_range(store, whole, 5, 2)
        hashes = load_hash_ids(store, part)
        assert np.array_equal(hashes, [7, 11, 12, 13])


def test_tenants_stay_apart(store: Store) -> None:
    """Models with equal hash ids share no blocks in a range either, and blocks keep their names."""
    requests = [
        Request(
            input_tokens=2 * SIZE,
            output_tokens=1,
            arrival_s=float(at),
            hash_ids=[7, 8],
            model="ab"[at % 2],
        )
        for at in range(8)
    ]
    whole = small_traces.stored(store, requests, SIZE)
    part = ingest_range(store, whole, 2, 6)
    assert (part.requests, part.distinct_blocks) == (4, 4)
    assert _columns(store, part) == _columns(store, small_traces.stored(store, requests[2:6], SIZE))

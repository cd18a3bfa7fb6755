"""What the plugin records: a trace that kvscope reads, and nothing of what was said."""

from __future__ import annotations

import errno
import json
import logging
import threading
from hashlib import sha256
from io import FileIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvscope.ingest.pipeline import ingest
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.vllm_plugin.recording import LineWriter, Recording
from tests.vllm_plugin.fakes import FakeRequest

SIZE = 16


def keys(path: str) -> list[bytes]:
    """Chained hashes of blocks that are called by letters."""
    return [sha256(path[:depth].encode()).digest() for depth in range(1, len(path) + 1)]


def asked(name: str, path: str, at: float, **more: object) -> FakeRequest:
    """Return a request of so many blocks and a token more, with 5 outputs."""
    inputs = len(path) * SIZE + 1
    return FakeRequest(name, inputs, 5, keys(path), arrival_time=1000.0 + at, **more)  # type: ignore[arg-type]


def recorded(folder: Path, requests: list[FakeRequest], **lines: int) -> Recording:
    """Return a recording of requests that are served one by one."""
    made = Recording(folder, SIZE, lambda: 1000.0, LineWriter(folder, "made", **lines), "tiny")
    for one in requests:
        made.tell("arrived", one)
        made.clock = lambda one=one: one.arrival_time + 0.125  # type: ignore[misc]
        made.tell("admitted", one.request_id, SIZE)
        made.clock = lambda one=one: one.arrival_time + 0.25  # type: ignore[misc]
        made.tell("updated")
        made.clock = lambda one=one: one.arrival_time + 2.0  # type: ignore[misc]
        made.tell("releasing", one)
    made.tell("closing")
    assert not made.broken
    return made


def read(folder: Path) -> list[dict[str, object]]:
    """All lines of all files, in order."""
    paths = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_probes_are_left_out_and_files_are_the_owners(tmp_path: Path) -> None:
    """Requests of `kvscope calibrate` are no traffic."""
    probe = asked("b", "xyz", 2.5, extra_args={"kvscope_probe": 1})
    recorded(tmp_path, [asked("a", "xy", 0.0), probe, asked("c", "xq", 3.0)])
    assert [line["chat_id"] for line in read(tmp_path)] == [0, 1]
    (path,) = tmp_path.glob("*.jsonl")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_says_all_but_the_content(tmp_path: Path) -> None:
    """Numbers, labels, salted hashes: the same block has the same hash, another one another."""
    extra = {"kvscope_type": "chat"}
    first = asked("a", "xy", 0.0, session_id="mine", extra_args=extra)
    second = asked("b", "xyz", 2.5, session_id="mine", extra_args=extra)
    recorded(tmp_path, [first, second, asked("c", "xq", 3.0)])
    one, two, three = read(tmp_path)
    assert {**one, "hash_ids": None} == {
        "chat_id": 0,
        "parent_chat_id": -1,
        "timestamp": 0.0,
        "input_length": 33,
        "output_length": 5,
        "type": "chat",
        "turn": 1,
        "hash_ids": None,
        "block_size": 16,
        "model": "tiny",
        "lora_name": None,
        "cache_salt": None,
        "cached_tokens": 16,
        "ttft_ms": 250.0,
        "queue_ms": 125.0,
        "duration_ms": 2000.0,
    }
    assert (two["parent_chat_id"], two["turn"], two["timestamp"]) == (0, 2, 2.5)
    assert (three["parent_chat_id"], three["turn"], three["type"]) == (None, None, "unknown")
    x, y = one["hash_ids"]  # type: ignore[misc]
    assert two["hash_ids"][:2] == [x, y]  # type: ignore[index]
    assert three["hash_ids"][0] == x  # type: ignore[index]
    assert three["hash_ids"][1] not in {x, y}  # type: ignore[index]


def test_salts_differ_between_recordings(tmp_path: Path) -> None:
    """The same prompt has other hashes, none of them the engine's; no salt is on the disk."""
    recordings = [recorded(tmp_path / name, [asked("a", "xy", 0.0)]) for name in "12"]
    one, two = (read(tmp_path / name)[0]["hash_ids"] for name in "12")
    assert one != two
    for made, name in zip(recordings, "12", strict=True):
        (text,) = [path.read_bytes() for path in (tmp_path / name).iterdir()]
        salt = made._hashes._salt
        for secret in (
            salt,
            salt.hex().encode(),
            *keys("xy"),
            *(k.hex().encode() for k in keys("xy")),
        ):
            assert secret not in text


def test_a_salt_changes_no_hash_of_content(tmp_path: Path) -> None:
    """vLLM's hashes of a salted request differ; those that are recorded do not if they can."""

    def salted(name: str, at: float, *, hasher: bool) -> FakeRequest:
        request = asked(name, "xy", at, cache_salt="Kolibri")
        request.block_hashes = keys("pq")

        def rehashed(plain: FakeRequest) -> list[bytes]:
            assert (plain.cache_salt, plain.block_hashes) == (None, [])
            return keys("xyz")  # the output's block too

        if hasher:
            request._block_hasher = rehashed  # type: ignore[attr-defined]
        return request

    requests = [asked("a", "xy", 0.0), salted("b", 1.0, hasher=True)]
    recorded(tmp_path, [*requests, salted("c", 2.0, hasher=False)])
    plain, same, other = (line["hash_ids"] for line in read(tmp_path))
    assert plain == same != other
    assert requests[1].cache_salt == "Kolibri"


def test_adapters_are_named_and_salts_are_not(tmp_path: Path) -> None:
    """The same salt has the same hash in a recording; without one there is none."""
    french = SimpleNamespace(lora_name="french", lora_int_id=1)
    salts = ["Kolibri", "other", "Kolibri", None]
    requests = [
        asked(str(at), "xy", float(at), cache_salt=salt, lora_request=french if at else None)
        for at, salt in enumerate(salts)
    ]
    recorded(tmp_path, requests)
    lines = read(tmp_path)
    assert [line["lora_name"] for line in lines] == [None, "french", "french", "french"]
    first, second, third, fourth = (line["cache_salt"] for line in lines)
    assert first == third != second
    assert fourth is None
    (path,) = tmp_path.iterdir()
    assert "Kolibri" not in path.read_text()
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        measurements = load_prompts(store, trace).measurements
    assert (trace.models, trace.adapters, trace.salts, trace.tenants) == (1, 1, 2, 4)
    assert measurements is not None
    assert measurements.cached_tokens.tolist() == [SIZE] * 4
    times = (measurements.ttft_s, measurements.queue_s, measurements.duration_s)
    assert [each.tolist() for each in times] == [[0.25] * 4, [0.125] * 4, [2.0] * 4]


@pytest.mark.parametrize(("session", "lineage"), [("mine", "given"), (None, "inferred")])
def test_kvscope_reads_it(tmp_path: Path, session: str | None, lineage: str) -> None:
    """Sessions become conversations; without them they follow from the hashes."""
    turns = [asked(str(n), "abcdefgh"[: 2 * n + 2], 10.0 * n, session_id=session) for n in range(3)]
    recorded(tmp_path, turns)
    (path,) = tmp_path.iterdir()
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
    assert (trace.format, trace.requests, trace.block_size) == ("bailian", 3, SIZE)
    assert (trace.lineage, trace.bad_lines) == (lineage, 0)
    assert trace.distinct_blocks == 6


def test_preempted_and_turned_away_requests_are_not_written(tmp_path: Path) -> None:
    """A line is written when a request finishes that was let in."""
    made = Recording(tmp_path, SIZE, lambda: 1000.0, LineWriter(tmp_path, "made"))
    request = asked("a", "xy", 0.0)
    made.tell("arrived", request)
    made.tell("releasing", request)
    request.finished = False
    made.tell("arrived", request)
    made.tell("admitted", "a", 16)
    made.tell("releasing", request)
    request.finished = True
    made.tell("admitted", "a", 32)  # what it finds when it starts over does not count
    made.tell("releasing", request)
    made.tell("closing")
    (line,) = read(tmp_path)
    assert line["cached_tokens"] == 16


def test_files_rotate(tmp_path: Path) -> None:
    """A new file begins where one has reached its size, and no line is lost."""
    made = recorded(tmp_path, [asked(str(n), "ab", float(n)) for n in range(9)], rotate_bytes=500)
    assert made.lines.files > 2
    assert [line["chat_id"] for line in read(tmp_path)] == list(range(9))


def test_too_many_lines_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine never waits for the disk."""
    lines = LineWriter(tmp_path, "made", most_waiting=2)
    go = threading.Event()

    def slow() -> dict[str, object]:
        go.wait()
        return {}

    lines.put(slow)
    while not lines._waiting.empty():
        pass
    made = Recording(tmp_path, SIZE, lambda: 1000.0, lines)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            one = asked(str(number), "ab", 0.0)
            made.tell("arrived", one)
            made.tell("admitted", one.request_id, 0)
            made.tell("releasing", one)
    go.set()
    made.tell("closing")
    assert (lines.written, lines.dropped) == (3, 3)
    assert len(caplog.records) == 1


def test_a_disk_that_fails_ends_the_recording_alone(tmp_path: Path) -> None:
    """What cannot be written is dropped; nothing is raised."""
    (tmp_path / "made-00001.jsonl").write_text("another's\n")
    made = recorded(tmp_path, [asked("a", "ab", 0.0), asked("b", "ab", 1.0)])
    assert isinstance(made.lines.failure, FileExistsError)
    assert (made.lines.written, made.lines.dropped) == (0, 2)


class _SmallDisk:
    """A file that takes so many bytes."""

    def __init__(self, file: FileIO, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self._room])
        self._room -= written
        return written

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_a_full_disk_leaves_whole_lines_and_their_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told once; the line that did not fit is cut off again, and nothing is raised anywhere."""
    died = list[object]()
    monkeypatch.setattr(threading, "excepthook", died.append)
    small = lambda *of, **more: _SmallDisk(FileIO(*of, **more), 1000)  # noqa: E731
    monkeypatch.setattr("kvscope.core.files.FileIO", small)
    with caplog.at_level(logging.INFO, logger="vllm.kvscope"):
        made = recorded(tmp_path, [asked(str(n), "ab", float(n)) for n in range(9)])
    monkeypatch.undo()
    lines = read(tmp_path)
    assert 0 < len(lines) == made.lines.written < 9
    assert made.lines.dropped == 9 - len(lines)
    assert died == []
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "No space left on device" in line]) == 1
    assert told[-1] == f"kvscope recorded {len(lines)} requests, {9 - len(lines)} dropped"

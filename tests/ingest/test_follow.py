"""Following files that grow: whole lines once each, whatever happens to the files."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from time import sleep

import pytest

from kvscope.ingest import follow
from kvscope.ingest.follow import Follower
from kvscope.vllm_plugin.recording import LineWriter


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

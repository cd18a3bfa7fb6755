"""`kvscope record` from outside: what is asked for, and what a stream leads to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvscope.cli import record as record_command
from kvscope.cli.app import run
from kvscope.core.errors import EngineError, ExitCode
from kvscope.vllm_plugin import kv_events
from kvscope.vllm_plugin.kv_events import BlockStored, EventBatch
from tests.cli.shell import Streams, streams_of


def test_where_nothing_can_be_listened_to_no_file_begins(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 5 and one line, as without pyzmq."""

    def stream(endpoint: str) -> Iterator[None]:
        raise EngineError("needs pyzmq", where="--kv-events", remedy="pip install pyzmq")
        yield

    monkeypatch.setattr(kv_events, "batches", stream)
    path = tmp_path / "trace.jsonl"
    asked = ["record", "--kv-events", "tcp://localhost:5557", "-o", str(path)]
    assert run(asked) == ExitCode.ENGINE
    assert capsys.readouterr().err == "error: --kv-events: needs pyzmq; pip install pyzmq\n"
    assert not path.exists()


def test_ctrl_c_ends_a_recording_that_kvscope_reads(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come until then is written, and what was missed is told."""
    streamed(
        monkeypatch,
        (3, EventBatch(1.0, [BlockStored([b"a", b"b"], None, 16)])),
        None,
        (6, EventBatch(1.5, [BlockStored([b"c"], b"z", 16)])),
    )
    path = tmp_path / "trace.jsonl"
    asked = ["record", "--kv-events", "tcp://localhost:5557", "-o", str(path), "--quiet", "1s"]
    assert run(asked) == ExitCode.DONE
    assert json.loads(path.read_text())["input_length"] == 32
    told = capsys.readouterr().err
    assert "1 requests, 2 batches of events, 2 (50.0%) missed; 1 of 3 blocks (33.3%) behind" in told
    assert (
        "at most 0 turns of one block taken for output; no request reported what it found" in told
    )
    assert run(["ingest", str(path), "--db", ":memory:"]) == ExitCode.DONE


def streamed(monkeypatch: pytest.MonkeyPatch, *batches: tuple[int, EventBatch] | None) -> None:
    """Have a stream of batches come from any endpoint."""

    def stream(endpoint: str) -> Iterator[tuple[int, EventBatch] | None]:
        yield from batches
        raise KeyboardInterrupt

    monkeypatch.setattr(kv_events, "batches", stream)


def test_a_silence_is_told_once_and_hearing_nothing_is_an_error(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 5, with what to look at."""
    streamed(monkeypatch, None, None, None)
    monkeypatch.setattr(record_command, "SILENCE_S", 0.0)
    path = tmp_path / "trace.jsonl"
    assert run(["record", "--kv-events", "tcp://here:1", "-o", str(path)]) == ExitCode.ENGINE
    told = capsys.readouterr().err
    assert told.count("tcp://here:1: silent for 0 s; is --kv-events-config on") == 1
    assert "error: tcp://here:1: heard nothing; is --kv-events-config on" in told


def test_a_full_disk_is_one_line(capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the requests that were written whole are counted."""
    streamed(monkeypatch, (1, EventBatch(1.0, [BlockStored([b"a", b"b"], None, 16)])), None)
    asked = ["record", "--kv-events", "tcp://here:1", "-o", "/dev/full", "--quiet", "1s"]
    told = streams_of(capsys, *asked, code=ExitCode.FAILED).err
    assert "/dev/full: 0 requests, 1 batches of events, 0 (0.0%) missed" in told
    assert told.endswith("error: /dev/full: No space left on device\n")

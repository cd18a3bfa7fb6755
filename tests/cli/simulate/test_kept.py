"""What `kvscope simulate` keeps."""

from __future__ import annotations

import json
import signal
from threading import Event
from typing import Any

import pytest

from kvscope.app import simulate
from kvscope.cli.app import run
from kvscope.core import executor
from kvscope.core.runs import Run
from kvscope.replay import run_cache as kept
from kvscope.replay import sweep
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.store import results
from tests.cli.replayed import simulated
from tests.cli.shell import Streams, streams_of


def test_the_same_run_is_not_repeated(
    trace: str, options: tuple[str, ...], capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has is found, whatever else is asked beside it; other sources repeat it."""
    asked = (trace, *options, "--policy", "lru")
    first = simulated(capsys, *asked, "--capacity-blocks", "1,2")
    replayed: list[int] = []
    replay = sweep.make_run

    def counted(workload: Workload, one: ReplayRequest) -> Run:
        replayed.append(one.capacity_blocks)
        return replay(workload, one)

    monkeypatch.setattr(sweep, "make_run", counted)
    again = simulated(capsys, *asked, "--capacity-blocks", "1,2,3")
    assert again["results"][:2] == first["results"]
    assert replayed == [3]
    simulated(capsys, *asked, "--capacity-blocks", "1", "--slo", "1s")
    assert replayed == [3, 1]
    monkeypatch.setattr(kept, "sources_digest", lambda: "another")
    simulated(capsys, *asked, "--capacity-blocks", "1,2")
    assert replayed == [3, 1, 1, 2]


def test_ctrl_c_keeps_what_is_finished(
    trace: str, options: tuple[str, ...], capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupt the runs under way end, no other starts, and all of them are kept."""
    interrupted = Event()
    replay, keep = sweep.make_run, results.add_run

    def held_back(workload: Workload, one: ReplayRequest) -> Run:
        if one.capacity_blocks > 1:  # the second of them waits for the interrupt
            assert interrupted.wait(60)
        return replay(workload, one)

    def interrupting(*arguments: Any) -> Run:
        run = keep(*arguments)
        if not interrupted.is_set():
            signal.raise_signal(signal.SIGINT)
            interrupted.set()
        return run

    monkeypatch.setattr(sweep, "make_run", held_back)
    monkeypatch.setattr(results, "add_run", interrupting)
    monkeypatch.setattr(executor, "cores", lambda: 1)
    monkeypatch.setattr(simulate, "STORE_EVERY_S", -1.0)  # each run as it ends
    before = signal.getsignal(signal.SIGINT)
    asked = ["simulate", trace, *options, "--policy", "lru", "--json"]
    assert run([*asked, "--capacity-blocks", "1,2,3,4,5,6"]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    written = capsys.readouterr()
    assert [one["capacity_blocks"] for one in json.loads(written.out)["results"]] == [1, 2]
    assert "2 of 6 runs are finished and kept" in written.err
    kept = json.loads(streams_of(capsys, "runs", *options[:2], "--json").out)["runs"]
    assert [one["capacity_blocks"] for one in kept] == [1, 2]

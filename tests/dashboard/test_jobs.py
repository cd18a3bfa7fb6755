"""Jobs belong to the server: a reload, a second tab and a closed tab find them again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import background_cache, job, work
from kvscope.core.errors import InputError
from tests.cli.shell import Streams
from tests.dashboard.shown import captions, drawn, shown, table_with, titles, told, words, worked

BLOCKS = ("--capacity-blocks", "60")
TUNE = {"slo": "5s", "ran_tune": "1"}


class Gate(NamedTuple):
    """What lets a stalled job go on: a file, which another process sees too."""

    file: Path

    def set(self) -> None:
        """Let it go on."""
        self.file.touch()


def stalling(gate: Path, database: str, *arguments: Any) -> Any:
    """Wait until the file is there, or for a stop; then answer."""
    monitor = arguments[-1]
    with monitor.steps("stalling", 7):
        while not gate.exists():
            time.sleep(0.01)
            monitor.check()
    return work.answer(database, *arguments)


def failing(*_: object) -> None:
    """Refuse the trace."""
    raise InputError("cannot be tuned", where="here", remedy="stop")


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gate:
    """Let `tune` wait until the gate is set, or it is stopped."""
    gate = Gate(tmp_path / "gate")
    real = job.in_process

    def stall(function: Any, *arguments: Any, monitor: Any) -> Any:
        if function is work.answer:
            return real(stalling, gate.file, *arguments, monitor=monitor)
        return real(function, *arguments, monitor=monitor)

    monkeypatch.setattr(job, "in_process", stall)
    return gate


def shows_progress(app: AppTest) -> bool:
    """Return whether a tune is shown running, with its button."""
    return any(each.key == "stop tune" for each in app.button)


def ended(which: int) -> job.Job:
    """Return a job, the latest first, once it has ended."""
    found = job.all_jobs()[which]
    found.wait(240)
    assert found.ended
    return found


def test_a_job_outlives_its_tab(db: str, monkeypatch: pytest.MonkeyPatch, stalled: Gate) -> None:
    """A reload, and a tab with other settings, show its progress; a third one its result."""
    first = shown(db, monkeypatch, "recommendation", **TUNE)
    assert shows_progress(first)
    (running,) = job.all_jobs()
    reloaded = shown(db, monkeypatch, "recommendation", **TUNE)
    assert shows_progress(reloaded)
    assert shows_progress(shown(db, monkeypatch, "recommendation"))
    assert job.all_jobs() == [running]  # none of them was started again
    stalled.set()
    ended(0)
    assert titles(reloaded.run())[0].startswith("Options")
    later = shown(db, monkeypatch, "recommendation", **TUNE)
    assert titles(later)[0].startswith("Options")
    assert job.all_jobs() == [running]


def test_any_tab_stops_a_job(db: str, monkeypatch: pytest.MonkeyPatch, stalled: Gate) -> None:
    """The button in a second tab ends it for both."""
    assert not stalled.file.exists()
    first = shown(db, monkeypatch, "recommendation", **TUNE)
    second = shown(db, monkeypatch, "recommendation", **TUNE)
    second.button(key="stop tune").click().run()
    assert ended(0).stopped
    assert first.run().warning[0].value.startswith("Stopped before it was finished")


def test_runs_and_jobs(
    db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Streams
) -> None:
    """What the command line stored meanwhile is listed, opens, and says when it is gone."""
    app = shown(db, monkeypatch, "runs")
    assert "Reports" in titles(app)
    background_cache.settle()
    told(capsys, "simulate", "chats", "--db", db, "--policy", "lru,tlru", "--capacity-blocks", "60")
    output = str(tmp_path / "out.toml")
    told(
        capsys, "tune", "chats", "--db", db, "--slo", "5s", "--view", "unloaded", "--output", output
    )
    app.run()
    names = [each.split()[0] for each in table_with(app, "run", "hit rate")["run"]]
    assert sorted(names) == ["lru", "tlru"]
    (answer,) = table_with(app, "answer")["answer"]
    assert "no policy is likely better than LRU" in answer
    again = shown(db, monkeypatch, "runs", report="1", run="1")
    assert answer in words(again)
    assert {"Policies", "Categories"} <= {*titles(again)}
    gone = shown(db, monkeypatch, "runs", report="77")
    assert "report=77 in the address" in gone.warning[0].value
    assert not gone.exception


def test_a_failure_in_one_line(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list says why a job failed; it opens on its page, with its settings."""
    monkeypatch.setattr(work, "answer", failing)
    shown(db, monkeypatch, "recommendation", **TUNE)
    assert ended(0).error
    app = shown(db, monkeypatch, "runs")
    assert "failed after" in words(app)
    assert "cannot be tuned" in words(app)
    (button,) = [each for each in app.button if each.help == "Open Tune: chats"]
    button.click().run()
    assert app.query_params["slo"] == "5s"
    assert "cannot be tuned" in app.error[0].value


def test_side_by_side(
    db: str, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """Two traces, and two runs: each fact with its change; the address holds both."""
    shorter = trace.with_name("half.jsonl")
    shorter.write_text("".join(trace.read_text().splitlines(keepends=True)[:300]))
    told(capsys, "ingest", str(shorter), "--db", db)
    app = shown(db, monkeypatch, "compare", left_trace="chats", right_trace="half")
    for _ in range(2):  # one analysis after the other
        app = drawn(app.run())
    facts = table_with(app, "chats", "half", "change").set_index("figure")
    assert list(facts.loc["requests"]) == ["600", "300", "-50.0%"]
    assert facts.loc["ideal hit rate", "change"][0] in "+-0"
    for policy in ("lru", "belady"):  # run 1, run 2
        told(capsys, "simulate", "chats", "--db", db, "--policy", policy, *BLOCKS)
    app = shown(db, monkeypatch, "compare", compare="Runs", left_run="1", right_run="2")
    facts = table_with(app, "lru, run 1", "belady, run 2").set_index("figure")
    assert facts.loc["hit rate", "change"].startswith("+")
    assert facts.loc["TTFT p95", "change"][0] in "+-0"
    assert not app.exception


def test_a_time_range(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """It zooms the charts over time, is in the address, and becomes a trace like that of --from."""
    app = shown(db, monkeypatch, "time")
    assert app.button(key="analyze_range").disabled
    app = shown(db, monkeypatch, "time", **{"from": "60", "until": "240"})
    assert (app.selectbox(key="from").value, app.selectbox(key="until").value) == (60, 240)
    app.button(key="analyze_range").click().run()
    app = drawn(worked(app))
    assert app.query_params["trace"] == "chats@60-240s"
    assert app.query_params["from"] == "0"
    document = told(capsys, "analyze", "chats", "--db", db, "--from", "1m", "--until", "4m")
    assert document["trace"]["name"] == "chats@60-240s"
    assert f"{document['trace']['requests']} requests over" in captions(shown(db, monkeypatch))
    assert [each["name"] for each in told(capsys, "traces", "--db", db)["traces"]] == [
        "chats@60-240s",
        "chats",
    ]

"""Work beside the pages: kept by content, stopped on demand, in nobody's way."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dashboard import background_cache, connection, job, work
from kvscope.app.monitor import Monitor
from kvscope.app.worker_process import in_process
from kvscope.core import units
from kvscope.core.errors import KvscopeError, Stopped, UsageError
from kvscope.core.trace import Trace
from kvscope.ingest.pipeline import ingest
from kvscope.store import traces
from kvscope.store.db import open_store
from tests.dashboard.shown import captions, drawn, shown, tiles, titles, waits, worked

_PATIENCE_S = 240.0


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch, db: str) -> None:
    """Make `db` the dashboard's store."""
    monkeypatch.setattr("sys.argv", ["app.py", "--db", db])


def _read(db: Path, prompts: list[list[int]]) -> Trace:
    """Return a new store with one request a second, each with such blocks."""
    db.unlink(missing_ok=True)
    path = db.parent / "alike.jsonl"
    rows = [
        {"chat_id": at, "timestamp": float(at), "input_length": 48, "output_length": 1,
         "hash_ids": [*blocks, 100 + at]}
        for at, blocks in enumerate(prompts)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_store(str(db)) as store:
        return ingest(store, str(path)).trace


def test_what_is_found_belongs_to_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another trace with the same name, key and totals is another trace; a renamed one is not."""
    db = tmp_path / "alike.duckdb"
    one, other = [[1, 2], [3, 4]]
    before = _read(db, [one, one, other, other] * 5)
    app = shown(str(db), monkeypatch, "capacity", capacity="3")
    assert tiles(app)["Hit rate"] != "0.0%"
    after = _read(db, [one, other] * 10)
    assert before.content_hash != after.content_hash
    assert replace(before, content_hash="") == replace(after, content_hash="")
    app = shown(str(db), monkeypatch, "capacity", capacity="3")
    assert tiles(app)["Hit rate"] == "0.0%"


def test_a_removed_trace_that_comes_back(
    db: str, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a page shows after `traces remove` and another ingest is the new trace's."""
    assert "600 requests over" in captions(shown(db, monkeypatch))
    shorter = trace.with_name("shorter.jsonl")
    shorter.write_text("".join(trace.read_text().splitlines(keepends=True)[:300]))
    with open_store(db) as store:
        traces.remove(store, traces.find(store, "chats"))
        ingest(store, str(shorter))
    assert "300 requests over" in captions(shown(db, monkeypatch))


@pytest.mark.usefixtures("dashboard")
def test_an_analysis_that_takes_long(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says how far it is; others are usable; it stops on demand, and begins anew."""
    quick = work.analyze_trace
    monkeypatch.setattr(work, "analyze_trace", endless)
    monkeypatch.setattr(background_cache, "SOON_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr("tests.dashboard.shown.drawn", lambda app: app)
        app = shown(db, monkeypatch, "reuse")
        assert waits(app)
        assert not titles(app)
        app.switch_page("views/lab.py").run()
        assert app.button(key="run")
        app.switch_page("views/reuse.py").run()
    app.button(key="stop analysis").click().run()
    drawn(app)
    assert "stopped" in app.warning[0].value
    monkeypatch.setattr(work, "analyze_trace", quick)
    app.button(key="analyze").click().run()
    drawn(app)
    assert "Contribution" in titles(app)
    assert not app.exception


@pytest.mark.usefixtures("dashboard")
def test_readers_do_not_wait(db: str) -> None:
    """Neither for each other nor for a writer; a writer waits for those who read only."""
    wrote = threading.Event()

    def write() -> None:
        with connection.writing() as store:
            traces.mark_used(store, traces.find(store, None))
        wrote.set()

    with connection.reading() as first, connection.reading() as second:
        assert traces.all_traces(first) == traces.all_traces(second)
        writer = threading.Thread(target=write)
        writer.start()
        assert not wrote.wait(0.2)
    writer.join(_PATIENCE_S)
    assert wrote.is_set()
    with connection.writing(), connection.reading() as store:
        assert traces.all_traces(store)
    with connection.reading() as store, pytest.raises(Exception, match="read-only"):
        traces.mark_used(store, traces.find(store, None))


class Heard(Monitor):
    """A monitor that remembers what reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[object] = []

    @contextmanager
    def steps(self, label: str, total: int | None = None, **_: object) -> Iterator[Any]:
        """Remember a step and what is done of it."""
        self.heard += [label, total]
        yield self.heard.append

    def note(self, text: str) -> None:
        """Remember a sentence."""
        self.heard.append(text)


def ordered(values: list[int], monitor: Monitor) -> list[int]:
    """Return the values in order, and say so."""
    with monitor.steps("ordering", 2) as advance:
        advance(2)
    monitor.note("ordered")
    return sorted(values)


def endless(_: object, __: object, monitor: Monitor) -> None:
    """Heed no stop."""
    with monitor.steps("something slow"):
        time.sleep(600)


def refused(text: str, _: Monitor) -> float:
    """Parse a duration."""
    return units.parse_duration(text)


def killed(_: Monitor) -> None:
    """End this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_apart() -> None:
    """It reports, returns and raises as a call would; a stop ends work that does not heed it."""
    monitor = Heard()
    assert in_process(ordered, [2, 1], monitor=monitor) == [1, 2]
    assert [each for each in monitor.heard if each != 0] == ["ordering", 2, 2, "ordered"]
    with pytest.raises(UsageError, match="is not a duration"):
        in_process(refused, "a word", monitor=monitor)
    with pytest.raises(KvscopeError, match="the process was killed"):
        in_process(killed, monitor=monitor)
    threading.Timer(0.5, monitor.stop.set).start()
    began_s = time.monotonic()
    with pytest.raises(Stopped):
        in_process(endless, 1, 2, monitor=monitor)
    assert time.monotonic() - began_s < 2.5


@pytest.mark.usefixtures("dashboard")
def test_a_stop_ends_a_job_within_two_seconds() -> None:
    """Of work that heeds no stop, too; the job says that it was stopped."""
    running = job.Job(endless, (1,))
    running.wait(1.0)
    assert not running.ended
    running.stop.set()
    running.wait(2.0)
    assert running.ended
    assert running.stopped


def test_a_fit_stops(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The button ends it; another one begins anew."""
    app = shown(db, monkeypatch, "time", view="Fitted models")
    stop: Any = [one for one in app.button if (one.key or "").startswith("stop fit")]
    if stop:  # it may be done already
        stop[0].click().run()
    worked(app)
    assert not app.exception
    fitted = any(one.startswith("Models") for one in titles(app))
    assert fitted != any(one.label == "Fit models" for one in app.button)

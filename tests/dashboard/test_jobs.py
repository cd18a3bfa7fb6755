"""Jobs belong to the server: a reload, a second tab and a closed tab find them again."""

from __future__ import annotations

import threading

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import job
from kvscope.core.errors import Stopped
from tests.dashboard.shown import shown, titles

TUNE = {"slo": "5s", "ran_tune": "1"}


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let `tune` wait until the event is set, or it is stopped."""
    from kvscope.app import tune

    proceed = threading.Event()
    real = tune.tune

    def stall(trace: object, prompts: object, request: object, monitor: job.Job) -> object:
        with monitor.steps("stalling", 7):
            while not proceed.wait(0.01):
                if monitor.stop.is_set():
                    raise Stopped("stopped before it was finished")
        return real(trace, prompts, request, monitor)

    monkeypatch.setattr(tune, "tune", stall)
    return proceed


def shows_progress(app: AppTest) -> bool:
    """Return whether a tune is shown running, with its button."""
    return any(each.key == "stop tune" for each in app.button)


def ended(which: int) -> job.Job:
    """Return a job, the latest first, once it has ended."""
    found = job.all_jobs()[which]
    found.wait(240)
    assert found.ended
    return found


def test_a_job_outlives_its_tab(
    db: str, monkeypatch: pytest.MonkeyPatch, stalled: threading.Event
) -> None:
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
    assert titles(reloaded.run())[0].startswith("Recommendation")
    later = shown(db, monkeypatch, "recommendation", **TUNE)
    assert titles(later)[0].startswith("Recommendation")
    assert job.all_jobs() == [running]


def test_any_tab_stops_a_job(
    db: str, monkeypatch: pytest.MonkeyPatch, stalled: threading.Event
) -> None:
    """The button in a second tab ends it for both."""
    assert not stalled.is_set()
    first = shown(db, monkeypatch, "recommendation", **TUNE)
    second = shown(db, monkeypatch, "recommendation", **TUNE)
    second.button(key="stop tune").click().run()
    assert ended(0).stopped
    assert first.run().warning[0].value.startswith("Stopped before it was finished")

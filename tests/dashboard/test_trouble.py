"""What is empty, missing, broken, busy or odd: a sentence that helps, on every page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.ingest.pipeline import ingest
from kvscope.store import traces
from kvscope.store.db import open_store
from tests.dashboard.browsing import holding
from tests.dashboard.shown import EVERY_PAGE, PAGES, captions, shown, words, worked
from tests.long import long


def test_what_is_wrong_is_a_sentence(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that cannot be read names itself; nothing runs, and nothing breaks."""
    app = shown(db, monkeypatch, "lab", slo="soon")
    assert not app.exception
    assert "soon" in app.error[0].value
    app = shown(db, monkeypatch, "lab", params="tlru.nonsense=1")
    assert not app.exception
    assert "nonsense" in app.error[0].value


@pytest.mark.parametrize("page", PAGES)
def test_lengths_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """A trace without hashes: the page says so, and says where to look instead."""
    path = tmp_path / "lengths.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:17:03.9,10,3\n" * 3
    )
    db = str(tmp_path / "store.duckdb")
    with open_store(db) as store:
        ingest(store, str(path))
    app = shown(db, monkeypatch, page)
    assert not app.exception
    assert "lengths" in app.info[0].value


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_store(page: str, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page but the first says that there is nothing, and which page reads a trace."""
    app = shown(empty, monkeypatch, page)
    assert not app.exception
    assert "The store holds no traces. Add one on the page Overview." in app.info[0].value


def test_overview_fills_an_empty_store(
    tmp_path: Path, empty: str, monkeypatch: pytest.MonkeyPatch, trace: Path
) -> None:
    """It offers to read a trace, refuses as `ingest` does, and then shows what it read."""
    app = shown(empty, monkeypatch, folder=tmp_path.parent)
    assert "no traces" in app.info[0].value
    app.text_input(key="path").set_value(str(tmp_path / "nowhere.jsonl"))
    worked(app.button[0].click().run())
    assert "nowhere" in app.error[0].value
    broken = tmp_path / "broken.jsonl"
    broken.write_text(trace.read_text()[:5_000] + '{"chat_id": "x"\n' * 50)
    app.text_input(key="path").set_value(str(broken))
    worked(app.button[0].click().run())
    assert not app.exception
    assert "broken.jsonl: 50 of " in app.error[0].value.replace("\\", "")
    assert "malformed" in app.error[0].value
    assert "allow more with Bad lines allowed" in app.error[0].value.replace("\\", "")
    app.text_input(key="path").set_value(str(trace))
    worked(app.button[0].click().run())
    assert not app.exception
    assert "600 requests over" in captions(app)


@pytest.fixture
def empty(db: str) -> str:
    """Return a store from which the only trace was removed."""
    with open_store(db) as store:
        traces.remove(store, traces.find(store, None))
    return db


@pytest.mark.parametrize("page", [*EVERY_PAGE[:2], *map(long, EVERY_PAGE[2:])])
def test_a_missing_store_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """An error in one line, and no exception."""
    app = shown(str(tmp_path / "store.duckdb"), monkeypatch, page)
    assert not app.exception
    assert "kvscope ingest" in app.error[0].value


@pytest.mark.parametrize("page", [*EVERY_PAGE[:2], *map(long, EVERY_PAGE[2:])])
def test_a_broken_store_says_what_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """A file that is no store is named as such."""
    path = tmp_path / "store.duckdb"
    path.write_text("no store at all\n" * 1000)
    app = shown(str(path), monkeypatch, page)
    assert not app.exception
    assert "not a kvscope store" in app.error[0].value


def test_a_store_that_another_process_writes(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page says which process has it; once that has ended, the page works."""
    monkeypatch.setattr("dashboard.work.PATIENCE_S", 0.1)
    with holding(db) as process:
        for page in EVERY_PAGE:
            app = shown(db, monkeypatch, page)
            assert not app.exception
            assert f"process {process} " in app.error[0].value
    app.run()
    assert not app.error
    assert len(app.title) == 1


def write_odd(path: Path, kind: str) -> Path:
    """Return a trace of one request, of requests that share nothing, or all of one moment."""
    rows = [
        {
            "timestamp": 0.0 if kind == "one moment" else at * 1.0,
            "input_length": 48,
            "output_length": 8,
            "hash_ids": [1, 2, 3] if kind == "one moment" else [3 * at, 3 * at + 1, 3 * at + 2],
        }
        for at in range(1 if kind == "one request" else 30)
    ]
    path.write_text(
        "".join(json.dumps(row | {"chat_id": at}) + "\n" for at, row in enumerate(rows))
    )
    return path


@pytest.mark.parametrize("kind", ["nothing shared", long("one request"), long("one moment")])
def test_odd_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Every page stands, and the tuner says why it cannot answer."""
    db = str(tmp_path / "store.duckdb")
    with open_store(db) as store:
        ingest(store, str(write_odd(tmp_path / "odd.jsonl", kind)))
    for page in EVERY_PAGE:
        app = shown(db, monkeypatch, page)
        assert not app.exception, page
        assert not app.error, page
    app = shown(db, monkeypatch, "recommendation")
    app.button(key="tune").click().run()
    for _ in range(600):
        if app.error:
            break
        app.run()
    assert not app.exception
    assert "too few" in app.error[0].value
    assert "Recommendation: " not in words(app)

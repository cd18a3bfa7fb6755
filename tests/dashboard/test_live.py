"""The page Live: a recording that grows, as `kvscope watch` sees it."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvscope.app.watch import WatchOptions, WatchRequest, measure, watch_request
from kvscope.core.files import data_folder
from kvscope.report.words import share
from tests.dashboard.shown import page_html, shown, tiles, words

CAPACITY = "8000"
LINES = gzip.decompress((data_folder("sample_traces") / "to-c.jsonl.gz").read_bytes()).splitlines(
    keepends=True
)


def until(app: AppTest, text: str) -> AppTest:
    """Return the app once its page says this; a browser draws its figures anew by itself."""
    end = time.monotonic() + 60
    while text not in words(app):
        assert time.monotonic() < end, words(app)
        time.sleep(0.2)
        app.run()
    return app


def test_a_recording_that_grows(db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its tiles are what watch measures of the same lines; what is appended comes by itself."""
    path = tmp_path / "recording.jsonl"
    path.write_bytes(b"".join(LINES[:300]))
    asked = {"recording": "recording.jsonl", "follow_blocks": CAPACITY}
    app = shown(db, monkeypatch, "live", folder=tmp_path, **asked)
    until(app, "the latest 300 span")
    hits = measure(LINES[:300], watch_request(WatchOptions(capacity_blocks=int(CAPACITY))))
    assert tiles(app)["LRU"] == share(hits.lru[1])
    assert tiles(app)["Infinite cache"] == share(hits.ideal)
    assert not app.get("plotly_chart")
    command = f"kvscope watch {path} --capacity-blocks {CAPACITY} --every 10000ms"
    assert [one.value for one in app.code] == [command]
    assert [each.key for each in app.get("download_button")] == ["export watch.html"]
    with path.open("ab") as file:
        file.writelines(LINES[300:500])
    until(app, "the latest 500 span")
    assert len(app.get("plotly_chart")) == 1  # of both windows


def test_the_deployments_pool(db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no capacity is named, the recording is replayed in the pool of the sidebar."""
    (tmp_path / "recording.jsonl").write_bytes(b"".join(LINES[:300]))
    asked = {"recording": "recording.jsonl", "gpu": "h100", "model": "llama3-8b"}
    app = until(shown(db, monkeypatch, "live", folder=tmp_path, **asked), "the latest 300 span")
    pool = app.session_state["choices"].deployment.pool.tokens
    hits = measure(LINES[:300], WatchRequest(WatchOptions(), capacity_tokens=pool))
    assert f"an LRU cache of {hits.capacity_blocks:,} blocks" in page_html(app)
    assert tiles(app)["LRU"] == share(hits.lru[1])


def test_where_there_is_nothing_to_follow(
    db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a recording, outside of the folder, and without a capacity: a sentence each."""
    assert "Name a recording" in words(shown(db, monkeypatch, "live", folder=tmp_path))
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.jsonl").write_bytes(LINES[0])
    for asked, problem in (
        ({"recording": "../outside.jsonl"}, "lies outside of the folder"),
        ({"recording": "none.jsonl"}, "no such file"),
        ({"recording": "."}, "needs a capacity"),
    ):
        app = shown(db, monkeypatch, "live", folder=tmp_path / "inside", **asked)
        assert any(problem in one.value.replace("\\", "") for one in app.error)

"""The dashboard, run by Streamlit's own test harness: what the analysis says is what it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvscope.ingest.pipeline import ingest
from kvscope.paths import data_folder
from kvscope.show import report
from kvscope.show.analysis import analyze
from kvscope.store.db import open_store

APP = str(data_folder("dashboard") / "app.py")


def shown(db: str, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The app on this store, run once."""
    monkeypatch.setattr("sys.argv", ["app.py", "--db", db])
    return AppTest.from_file(APP, default_timeout=120).run()


def test_tables_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table has all of its columns, the names of its rows and its bars included."""
    path = tmp_path / "a.jsonl"
    row = {"input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
    path.write_text("".join(f"{json.dumps(row | {'timestamp': at * 1000})}\n" for at in range(5)))
    db = str(tmp_path / "store.duckdb")
    with open_store(db) as store:
        analysis = analyze(store, ingest(store, str(path)).trace)
    app = shown(db, monkeypatch)
    assert not app.exception
    sections = [report.headline(analysis), *report.sections(analysis)]
    assert [one.value for one in app.header] == [section.title for section in sections]
    tables = [table for section in sections for table in section.tables]
    assert len(app.dataframe) == len(tables)
    for drawn, table in zip(app.dataframe, tables, strict=True):
        assert [tuple(row) for row in drawn.value.to_numpy().tolist()] == list(table.rows)
    assert "25% of ideal" in app.dataframe[0].value.to_numpy().tolist()[0]
    assert "Note: conversations are inferred from shared prefixes." in [
        one.value for one in app.text
    ]


def test_a_missing_store_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in one line, and no exception."""
    app = shown(str(tmp_path / "store.duckdb"), monkeypatch)
    assert not app.exception
    assert "kvscope ingest" in app.error[0].value

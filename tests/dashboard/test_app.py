"""The dashboard, run by Streamlit's own test harness: its numbers are those of `--json`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from kvscope import units
from kvscope.cli.app import run
from kvscope.ingest.pipeline import ingest
from kvscope.paths import data_folder
from kvscope.show import report
from kvscope.show.analysis import analyze
from kvscope.show.sections import space
from kvscope.store import traces
from kvscope.store.db import open_store
from tests.cli.shell import Streams
from tests.dashboard.chats import write_chats
from tests.serving.fake import Behaviour, fake_server
from tests.validate.test_command import PROFILE, TAKES

DASHBOARD = data_folder("dashboard")
PAGES = ("reuse", "time", "space", "capacity", "lab", "recommendation", "validation")
_PATIENCE_S = 240  # kernels may have to be compiled


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """What one test's store gave must not be another's."""
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 requests in conversations."""
    return write_chats(tmp_path_factory.mktemp("trace") / "chats.jsonl")


@pytest.fixture
def db(tmp_path: Path, trace: Path) -> str:
    """A store with that trace."""
    path = str(tmp_path / "store.duckdb")
    with open_store(path) as store:
        ingest(store, str(trace))
    return path


def shown(db: str, monkeypatch: pytest.MonkeyPatch, page: str = "", **address: str) -> AppTest:
    """The app on this store at this page."""
    monkeypatch.setattr("sys.argv", ["app.py", "--db", db])
    monkeypatch.syspath_prepend(str(DASHBOARD))
    app = AppTest.from_file(str(DASHBOARD / "app.py"), default_timeout=_PATIENCE_S)
    for name, value in address.items():
        app.query_params[name] = value
    app.run()
    return app.switch_page(f"views/{page}.py").run() if page else app


def words(app: AppTest) -> str:
    """All that the page says in sentences, as they were before Markdown."""
    return "\n".join(one.value for one in (*app.markdown, *app.info)).replace("\\", "")


def metrics(app: AppTest) -> dict[str, str]:
    """The large numbers by their labels."""
    return {one.label: one.value for one in app.metric}


def told(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """The document that the command prints."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def settled(app: AppTest, done: str) -> AppTest:
    """The app once its job has ended and a section of this title is there."""
    until = time.monotonic() + _PATIENCE_S
    while not any(one.value == done for one in app.subheader):
        assert not app.exception
        assert not app.error
        assert time.monotonic() < until
        time.sleep(0.1)
        app.run()
    return app


def test_overview(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """The headline's hit rate is `analyze --json`'s, and its sentences are the analysis's."""
    app = shown(db, monkeypatch)
    assert not app.exception
    document = told(capsys, "analyze", "chats", "--db", db)
    assert metrics(app)["Ideal hit rate"] == units.format_share(document["ideal_hit_rate"], 2)
    assert metrics(app)["Requests"] == "600"
    with open_store(db, read_only=True) as store:
        analysis = analyze(store, traces.find(store, None))
    assert report.headline(analysis).sentences[0] in words(app)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows(db: str, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """No page ends in an error on an ordinary trace, and each has its title."""
    app = shown(db, monkeypatch, page)
    assert not app.exception
    assert not app.error
    assert len(app.title) == 1


def test_reuse(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """Categories have the requests that `analyze --json` gives them."""
    app = shown(db, monkeypatch, "reuse")
    document = told(capsys, "analyze", "chats", "--db", db)
    rows = app.dataframe[0].value.to_numpy().tolist()
    expected = [[one["category"], str(one["requests"])] for one in document["categories"]]
    assert [row[:2] for row in rows] == expected


def test_time(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """The fitted models' verdicts are those of `fit --json`."""
    app = shown(db, monkeypatch, "time")
    assert not app.exception
    document = told(capsys, "fit", "chats", "--db", db)
    verdicts = {one["category"]: one["verdict"] for one in document["categories"] if one["model"]}
    table = next(one.value for one in app.dataframe if "verdict" in one.value.columns)
    assert dict(zip(table.iloc[:, 0], table["verdict"], strict=True)) == verdicts


def test_space(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working set is the analysis's; the head that all prompts share is the hottest prefix."""
    app = shown(db, monkeypatch, "space", model="llama3-8b")
    with open_store(db, read_only=True) as store:
        analysis = analyze(store, traces.find(store, None))
    titles = [one.title for one in space.sections(analysis)]
    assert set(titles) <= {one.value for one in app.subheader}
    table = next(one.value for one in app.dataframe if "hash of its end" in one.value.columns)
    assert table.iloc[0, :4].tolist() == ["2", "0", "32", "599"]


def test_capacity(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """What the slider reads off is what a replay of LRU gives, TTFT included."""
    app = shown(db, monkeypatch, "capacity", capacity="60")
    document = told(
        capsys, "simulate", "chats", "--db", db, "--policies", "lru", "--capacity-blocks", "60"
    )
    result = document["results"][0]
    numbers = metrics(app)
    assert numbers["Hit rate"] == units.format_share(result["token_hit_rate"], 2)
    assert numbers["TTFT p95"] == units.format_duration(result["ttft_ms"]["p95"] / 1e3)
    app.select_slider(key="capacity").set_value(1).run()
    assert metrics(app)["Blocks"] == "1"
    assert app.query_params["capacity"] in ("1", ["1"])


def test_lab(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """A run begun here is shown, kept in the store, and the same as the command line's."""
    app = shown(db, monkeypatch, "lab", policies="lru,fifo", sizes="60", slo="20ms")
    app.button(key="run").click().run()
    settled(app, "Policies")
    document = told(
        capsys, "simulate", "chats", "--db", db, "--policies", "lru,fifo", "--slo", "20ms",
        "--capacity-blocks", "60", "--model", "llama3-8b",
    )  # fmt: skip
    table = next(one.value for one in app.dataframe if "evictions" in one.value.columns)
    rates = {one["policy"]: one["token_hit_rate"] for one in document["results"]}
    assert dict(zip(table["policy"], table["hit rate"], strict=True)) == {
        policy: units.format_share(rate, 2) for policy, rate in rates.items()
    }
    created = [one["created_at"] for one in document["results"]]
    again = told(capsys, "runs", "chats", "--db", db)
    assert sorted(created) == sorted(one["created_at"] for one in again["runs"])


def test_validation(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """What `kvscope validate` measured on a server stands beside its prediction, as in --json."""
    profile = tmp_path / "latency.toml"
    profile.write_text(PROFILE)
    asked = ["--sequential", "--max-requests", "40", "--latency", str(profile), "--policies", "lru"]
    with fake_server(Behaviour(**TAKES)) as url:
        run(["validate", "--db", db, "--url", url, *asked, "--slo", "50ms", "--json"])
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    app = shown(db, monkeypatch, "validation")
    assert not app.exception
    assert not app.info
    figures, by_request = (one.value.to_numpy().tolist() for one in app.dataframe)
    for row, side in zip(figures, ("predicted", "measured"), strict=True):
        assert row[0] == f"lru 1 {side}"
        assert row[1] == units.format_count(told[side]["hit_tokens"])
        assert row[5] == units.format_duration(told[side]["ttft_ms"]["p95"] / 1e3)
    assert by_request[0][3] == units.format_count(told["mismatched_requests"])
    assert "the fake's own" in words(app)


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


def test_an_empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    """Overview offers to read a trace, refuses as `ingest` does, and then shows what it read."""
    db = str(tmp_path / "store.duckdb")
    with open_store(db) as store:
        traces.remove(store, ingest(store, str(trace)).trace)
        Path(str(tmp_path / "keep")).touch()
    app = shown(db, monkeypatch)
    if app.error:  # a store without traces does not outlive the process that made it
        assert "kvscope ingest" in app.error[0].value
        return
    assert "no traces" in app.info[0].value
    app.text_input(key="path").set_value(str(tmp_path / "nowhere.jsonl"))
    app.button[0].click().run()
    assert "nowhere" in app.error[0].value
    app.text_input(key="path").set_value(str(trace))
    app.button[0].click().run()
    assert not app.exception
    assert metrics(app)["Requests"] == "600"


def test_a_missing_store_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in one line, and no exception."""
    app = shown(str(tmp_path / "store.duckdb"), monkeypatch)
    assert not app.exception
    assert "kvscope ingest" in app.error[0].value

"""The dashboard's pages, run by Streamlit's own test harness: their numbers are `--json`'s."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboard import render
from dashboard.wording import in_page_words
from kvscope.cli.app import run
from kvscope.core import units
from kvscope.report import overview, space
from kvscope.report.words import significant
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.usecases.analyze import AnalyzeOptions, analyze, analyze_request
from tests.cli.shell import Streams
from tests.dashboard.shown import (
    captions,
    flags,
    settled,
    shown,
    table_with,
    tiles,
    titles,
    told,
    words,
)
from tests.serving.fake import Behaviour, fake_server
from tests.validate.commands import PROFILE, TAKES


def test_overview(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """The headline's hit rate is `analyze --json`'s, and its sentences are the analysis's."""
    app = shown(db, monkeypatch)
    assert not app.exception
    document = told(capsys, "analyze", "chats", "--db", db)
    now, possible = tiles(app)["Hit rate, now → possible"].split(" → ")
    assert possible == units.format_share(document["ideal_hit_rate"])
    with open_store(db, read_only=True) as store:
        request = analyze_request(AnalyzeOptions(model="llama3-8b", hbm=80 * units.GIB))
        analysis = analyze(store, traces.find(store, None), request)
    assert now == units.format_share(analysis.present_rate)
    assert overview.headline(analysis).sentences[0] in words(app)


def test_reuse(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """Categories have the requests that `analyze --json` gives them."""
    app = shown(db, monkeypatch, "reuse")
    document = told(capsys, "analyze", "chats", "--db", db)
    rows = app.dataframe[0].value.to_numpy().tolist()
    expected = [[one["category"], str(one["requests"])] for one in document["categories"]]
    assert [row[:2] for row in rows] == expected


def test_time(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """The fitted models' verdicts are those of `fit --json`; looking at them stores nothing."""
    before = Path(db).read_bytes()
    app = settled(shown(db, monkeypatch, "time", view="Fitted models"), "Models")
    assert Path(db).read_bytes() == before
    document = told(capsys, "fit", "chats", "--db", db)
    verdicts = {one["category"]: one["verdict"] for one in document["categories"] if one["model"]}
    table = table_with(app, "verdict")
    assert dict(zip(table.iloc[:, 0], table["verdict"], strict=True)) == verdicts


def test_space(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """The working set is `analyze --json`'s; the head that all prompts share is the hottest."""
    app = shown(db, monkeypatch, "space", model="llama3-8b")
    document = told(capsys, "analyze", "chats", "--db", db, "--model", "llama3-8b")
    peak = table_with(app, "× 80 GiB HBM", "blocks").to_numpy().tolist()[0]
    assert peak[1] == units.format_size(document["working_set"]["peak_bytes"])
    assert peak[3] == units.format_count(document["working_set"]["peak_blocks"])
    with open_store(db, read_only=True) as store:
        analysis = analyze(store, traces.find(store, None))
    assert {one.title for one in space.sections(analysis)} <= {*titles(app)}
    assert table_with(app, "hash of last block").iloc[0, :4].tolist() == ["2", "0", "32", "599"]


def test_capacity(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """What the slider reads off is what a replay of LRU gives, TTFT included."""
    app = shown(db, monkeypatch, "capacity", capacity="60")
    document = told(
        capsys, "simulate", "chats", "--db", db, "--policy", "lru", "--capacity-blocks", "60"
    )
    result = document["results"][0]
    numbers = tiles(app)
    assert numbers["Hit rate"] == units.format_share(result["token_hit_rate"])
    assert numbers["TTFT p95"] == units.duration_in_words(result["ttft_ms"]["p95"] / 1e3)
    app.select_slider(key="capacity").set_value(1).run()
    assert tiles(app)["Blocks"] == "1"
    assert app.query_params["capacity"] in ("1", ["1"])


def test_long_cells_are_whole() -> None:
    """A column is as wide as its longest text, but no wider than a page; short ones have none."""
    policy = "threshold-lru threshold_tokens=256"
    assert (render.column_px([policy, "lru"]) or 0) > 6 * len(policy)
    assert render.column_px(["x" * 5000]) == render.column_px(["x" * 500])
    assert render.column_px(["lru", "41.8"]) is None
    assert render.column_px([]) is None


def test_capacity_shows_stored_runs(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """What other policies hit in the store's runs are points beside LRU's curve."""
    told(capsys, "simulate", "chats", "--db", db, "--policy", "belady", "--capacity-blocks", "60")
    app = shown(db, monkeypatch, "capacity")
    assert any('"name":"belady*"' in chart.proto.spec for chart in app.get("plotly_chart"))


def test_recommendation(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """A cache study: verdict and latencies of `tune --json`, a file to take, and no flags."""
    app = shown(db, monkeypatch, "recommendation", slo="20ms", have="60")
    app.button(key="tune").click().run()
    settled(app, "Recommendation: ")
    document = told(
        capsys, "tune", "chats", "--db", db, "--slo", "20ms", "--capacity-blocks", "60",
        "--model", "llama3-8b", "--hbm", "80GiB",
    )["recommendation"]  # fmt: skip
    assert titles(app)[:2] == [
        "Options: p95 TTFT ≤ 20 ms",
        f"Recommendation: {document['verdict']}",
    ]
    row = table_with(app, "TTFT p50 (ms)", "prefills/s").to_numpy().tolist()[0]
    lru = document["lru"]["validation"]["ttft_ms"]
    assert row[:5] == ["lru", *(significant(lru[rank]) for rank in ("p50", "p90", "p95", "p99"))]
    assert document["flags"] == {"sglang": None, "vllm": None}
    assert not flags(app)
    assert in_page_words(document["why_no_flags"]) in captions(app)
    assert "For: cache study" in words(app)
    assert app.get("download_button")


def test_validation(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """What `kvscope validate` measured on a server stands beside its prediction, as in --json."""
    profile = tmp_path / "latency.toml"
    profile.write_text(PROFILE)
    asked = ["--sequential", "--max-requests", "40", "--latency", str(profile), "--replay", "lru"]
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
        assert row[5] == significant(told[side]["ttft_ms"]["p95"])
    assert by_request[0][3] == units.format_count(told["mismatched_requests"])
    assert "the fake's own" in words(app)

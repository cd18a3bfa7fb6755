"""The page Fleets: its sections are the report's, of the study that the command makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboard import job
from kvscope.core import units
from kvscope.latency.profile import PRESETS
from kvscope.report.stored import all_reports, open_report
from kvscope.store.db import open_store
from tests.cli.shell import Streams
from tests.dashboard.shown import captions, settled, shown, table_with, titles, told, words

ROUTERS = "round-robin,session,min-ttft"
ASKED = {"routers": ROUTERS, "fleet_replicas": "1..3", "replica_cache": "60", "fleet_slo": "20ms"}
OPTIONS = ("--router", ROUTERS, "--replicas", "1..3", "--capacity-blocks", "60", "--slo", "20ms")


def test_the_page_is_the_report(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """Sentences and numbers are those of `fleet --json`; the sections are the report's."""
    app = shown(db, monkeypatch, "fleets", **ASKED)
    app.button(key="replay_fleets").click().run()
    settled(app, "Answer")
    document = told(capsys, "fleet", "chats", "--db", db, *OPTIONS, "--model", "llama3-8b")
    for sentence in document["words"]:
        assert sentence in words(app)
    axes = [json.loads(chart.proto.spec)["layout"]["xaxis"] for chart in app.get("plotly_chart")]
    of_replicas = [axis for axis in axes if axis["title"]["text"] == "replicas"]
    assert {axis["dtick"] for axis in of_replicas} == {1}  # no fractions of a replica
    table = table_with(app, "needs", "within", "busiest")
    fleets = {
        row["router"]: row for row in document["fleets"] if row["replicas"] == document["chosen"]
    }
    rates = {
        name.rstrip("*"): rate
        for name, rate in zip(table["router"], table["hit rate"], strict=True)
    }
    del rates["pooled"]
    assert rates == {name: units.format_share(row["hit_rate"]) for name, row in fleets.items()}
    with open_store(db, read_only=True) as store:
        of_command, of_page = all_reports(store)
        sections = open_report(store, of_command.report_id).sections
    assert of_page.question == of_command.question
    assert titles(app) == [section.title for section in sections]
    charts = [chart.proto.spec for chart in app.get("plotly_chart")]
    assert any('"type":"heatmap"' in spec for spec in charts)
    assert any("replicas" in spec and "SLO" in spec for spec in charts)
    assert "earlier settings" not in words(app)
    app.selectbox(key="latency").select(next(iter(PRESETS.keys() - {"llama2-7b-a100"}))).run()
    assert "These results are for earlier settings" in words(app)


def test_a_stored_answer_opens_by_itself(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """With its date; it is that of the same settings, or else the newest, which the page says."""
    told(capsys, "fleet", "chats", "--db", db, *OPTIONS, "--model", "llama3-8b")
    document = told(capsys, "fleet", "chats", "--db", db, *OPTIONS[:-1], "30ms")
    app = shown(db, monkeypatch, "fleets", **ASKED)
    assert "Stored 2" in captions(app)
    assert "other settings" not in words(app)
    assert document["words"][0] not in words(app)
    app = shown(db, monkeypatch, "fleets", **ASKED | {"fleet_slo": "40ms"})
    assert "it is for other settings" in words(app)
    assert document["words"][0] in words(app)
    assert not job.all_jobs()


def test_a_replica_has_the_deployments_pool(
    db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a capacity of its own. A cache study needs one; one replica's trace is refused."""
    monkeypatch.chdir(tmp_path)
    asked = {"fleet_replicas": "1,2", "routers": "round-robin", "loop": "closed"}
    app = shown(db, monkeypatch, "fleets", **asked)
    app.button(key="replay_fleets").click().run()
    assert not job.all_jobs()
    assert "Enter the capacity of a replica" in words(app)
    where = {"gpu": "h100", "model": "llama3-8b", "gpu_hour": "2"}
    app = shown(db, monkeypatch, "fleets", **asked, **where)
    app.button(key="replay_fleets").click().run()
    settled(app, "Answer")
    deployment = app.session_state["choices"].deployment
    assert f"({units.format_count(deployment.pool.blocks)} blocks) each" in "".join(titles(app))
    assert f"Latency of {deployment.latency.name}" in words(app)
    assert "Closed loop" in words(app)
    assert "1 replica (GPUs: 2.00 an hour) meets" in words(app)
    also = {"loop": "open", "autoscale": "1..2@0.5", "disaggregate": "50GB/s"}
    app = shown(db, monkeypatch, "fleets", **asked | where | also)
    app.button(key="replay_fleets").click().run()
    settled(app, "Answer")
    assert {"Autoscaling", "Disaggregation"} <= {title.split(":")[0] for title in titles(app)}
    (command,) = [each.value for each in app.code if each.value.startswith("kvscope ")]
    assert "--autoscale 1..2@0.5:ready=60s --disaggregate 50GB/s" in command
    app.selectbox(key="traffic").select("replica").run()
    assert "if this trace holds all of it, select fleet" in app.error[0].value


def test_the_sidebar_wins_over_a_file_of_one_replicas_traffic(
    db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kvscope.toml for one replica's trace is refused with the remedy, which then works."""
    monkeypatch.chdir(tmp_path)
    stated = 'schema = 1\ngpu = "h100"\nmodel = "llama3-8b"\ntraffic = "replica"\n'
    (tmp_path / "kvscope.toml").write_text(stated)
    app = shown(db, monkeypatch, "fleets", fleet_replicas="1", routers="round-robin")
    assert "if this trace holds all of it, select fleet" in app.error[0].value
    app.selectbox(key="traffic").select("fleet").run()
    app.button(key="replay_fleets").click().run()
    settled(app, "Answer")
    assert "1 replica meets" in words(app)

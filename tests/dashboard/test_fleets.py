"""The page Fleets: its sections are the report's, of the study that the command makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.app.fleet import FleetStudy
from kvscope.core import units
from kvscope.report import fleet as report
from tests.cli.shell import Streams
from tests.dashboard.browsing import FLAGS, PATIENCE_MS, READY, chromium, serving
from tests.dashboard.shown import settled, shown, table_with, titles, told, words

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
    study: FleetStudy = app.session_state["job fleets"].result
    assert titles(app) == [section.title for section in report.sections(study)]
    charts = [chart.proto.spec for chart in app.get("plotly_chart")]
    assert any('"type":"heatmap"' in spec for spec in charts)
    assert any("replicas" in spec and "SLO" in spec for spec in charts)
    assert "earlier settings" not in words(app)
    app.text_input(key="fleet_replicas").set_value("2").run()
    assert "These results are for earlier settings" in words(app)


def test_a_replica_has_the_deployments_pool(
    db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a capacity of its own. A cache study needs one; one replica's trace is refused."""
    monkeypatch.chdir(tmp_path)
    asked = {"fleet_replicas": "1,2", "routers": "round-robin", "loop": "closed"}
    app = shown(db, monkeypatch, "fleets", **asked)
    assert app.button(key="replay_fleets").disabled
    assert "Enter the capacity of a replica" in words(app)
    where = {"gpu": "h100", "model": "llama3-8b", "gpu_hour": "2"}
    app = shown(db, monkeypatch, "fleets", **asked, **where)
    app.button(key="replay_fleets").click().run()
    settled(app, "Answer")
    study: FleetStudy = app.session_state["job fleets"].result
    assert study.deployment is not None
    assert study.capacity_blocks == study.deployment.pool.blocks
    assert study.setting.latency == study.deployment.latency.name
    assert study.think is not None
    assert "1 replica for 2 an hour" in words(app)
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


@pytest.mark.skipif(chromium() is None, reason="no chromium on the PATH")
def test_in_a_browser(db: str) -> None:
    """A link draws the answer on wide and narrow screens; the heat map has a row a replica."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    link = "&".join(f"{name}={value}" for name, value in ASKED.items())
    with serving(db) as (address, _), playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=FLAGS)
        for width in (1400, 390):
            page = browser.new_page(viewport={"width": width, "height": 3600})
            page.set_default_timeout(PATIENCE_MS)
            wrong: list[str] = []
            page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            page.goto(f"{address}/fleets?{link}&ran_fleets=1")
            page.get_by_role("heading", name="Assumed", exact=True).wait_for()
            page.wait_for_selector(READY)
            heat_map = page.get_by_role("figure", name="Chart: Uncached tokens sent to each")
            heat_map.locator(".heatmaplayer image").wait_for(state="attached")
            page.get_by_text("2 replicas behind").wait_for()
            assert heat_map.locator(".ytick text").count() == 2
            page.get_by_role("tab", name="p95 TTFT").click()
            page.get_by_role("figure", name="Chart: p95 TTFT", exact=True).wait_for()
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width
            for chart in page.get_by_test_id("stPlotlyChart").all():
                box = chart.bounding_box()
                assert box is None or box["x"] + box["width"] <= width
            assert page.get_by_test_id("stException").count() == 0
            assert not wrong
            page.close()
        browser.close()

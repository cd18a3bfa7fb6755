"""What a page shows can be taken along: as HTML, as JSON, and as the command that gives it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dashboard import data
from kvscope.app.options import parsed, typed
from kvscope.report.stored import all_reports, open_report
from kvscope.store.db import open_store
from kvscope.usecases.analyze import AnalyzeOptions
from kvscope.usecases.fleet import FleetOptions
from kvscope.usecases.simulate import SimulateOptions
from kvscope.usecases.tune import TuneOptions
from tests.cli.shell import Streams
from tests.dashboard.shown import page_html, shown, tiles, told, worked
from tests.dashboard.test_fleets import ASKED

PAGES = ("", "reuse", "time", "space", "capacity", "why", "lab", "fleets", "recommendation", "runs")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_its_command(db: str, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """It names the command, the trace and the store; the files are those of the command."""
    app = worked(shown(db, monkeypatch, page))
    (command,) = [one.value for one in app.code if one.value.startswith("kvscope ")]
    words = shlex.split(command.replace("runs list", "runs"))
    assert words[2:5] == ["chats", "--db", db]
    names = {"lab": "simulate", "fleets": "fleet", "recommendation": "tune", "why": "explain"}
    assert words[1] == {"runs": "runs", **names}.get(page, "analyze")
    saved = {each.key for each in app.get("download_button")}
    if words[1] == "analyze":
        assert {"export analyze.html", "export analyze.json"} <= saved


def test_the_command_gives_the_pages_answer(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """A stored answer of the command opens on the page that offers it, with its document."""
    app = shown(db, monkeypatch, "fleets", **ASKED)
    (command,) = [one.value for one in app.code if one.value.startswith("kvscope ")]
    document = told(capsys, *shlex.split(command)[1:])
    again = shown(db, monkeypatch, "fleets", **ASKED)
    assert not [each for each in again.info if "other settings" in each.value]
    assert "export fleet.json" in {each.key for each in again.get("download_button")}
    with open_store(db, read_only=True) as store:
        (report,) = all_reports(store)
        kept = open_report(store, report.report_id).document
    assert json.loads(kept or "") == document


def test_two_runs_side_by_side_are_those_of_diff(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """The page Compare offers the command that compares the same two, and its files."""
    told(capsys, "simulate", "--db", db, "--capacity-blocks", "60", "--policy", "lru,tlru")
    app = shown(db, monkeypatch, "compare", compare="Runs")
    (command,) = [one.value for one in app.code]
    difference = told(capsys, *shlex.split(command)[1:])
    assert {"export diff.html", "export diff.json"} <= {
        each.key for each in app.get("download_button")
    }
    facts = {row[0]: row[1:3] for row in app.dataframe[0].value.to_numpy().tolist()}
    assert sorted(facts["policy"]) == ["lru", "tlru"]  # whichever was done last is left
    assert difference["left"] == f"run:{next(iter(data.stored_results().runs))}"


@pytest.mark.parametrize(
    "options",
    [
        TuneOptions(slo=0.25, percentile=0.999, gpu="h100", tp=2, compare_tiers=True, gpu_hour=2.5),
        TuneOptions(slo=1.5, capacity_blocks=(60,), hbm=80 * 2**30, deployment="-"),
        FleetOptions(slo=2.0, replicas=(1, 2, 4), closed_loop=True, router="session,min-ttft"),
        SimulateOptions(policy="lru,tlru", slo=0.2, tiers="hbm=1GiB"),
        AnalyzeOptions(capacity=(10 * 2**30, 2**29), warmup=0.25, model="llama3-8b"),
    ],
)
def test_typed_options_are_parsed_to_the_same(options: object) -> None:
    """Sizes, times, percentiles, lists and switches: none is rounded on the way."""
    words, written = typed(options), {}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        several = words and not words[0].startswith("--")
        value = words.pop(0) if several else True
        written[name] = value
    assert parsed(type(options), written) == options


def test_a_repeated_option_is_typed_each_time() -> None:
    """As `--param` is."""
    options = SimulateOptions(param=["tlru.xi_tokens=1k,2k", "wa.refit_s=5m"])
    assert typed(options) == ["--param", "tlru.xi_tokens=1k,2k", "--param", "wa.refit_s=5m"]


def test_overview_shows_the_stored_plan(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """The target, what to do and what meets the SLO, of the newest `tune`; missed is marked."""
    where = ("--gpu", "h100", "--model", "llama3-8b")
    output = ("--output", str(tmp_path / "out.toml"))
    told(capsys, "tune", "chats", "--db", db, "--slo", "1ms", *where, *output)
    app = shown(db, monkeypatch, gpu="h100", model="llama3-8b")
    shown_tiles = tiles(app)
    assert [name for name in shown_tiles if name.startswith(("p95", "Do", "Meets"))] == [
        "p95 TTFT, SLO 1 ms",
        "Do now, free",
        "Meets 1 ms",
    ]
    assert shown_tiles["Meets 1 ms"] == "no option"
    assert page_html(app).count('class="tile missed"') >= 2
    assert len(data.stored_results().reports) == 1

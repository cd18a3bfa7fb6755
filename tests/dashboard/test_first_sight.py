"""What a page shows at first sight in Chromium: tiles, stored answers, charts, Live, reports."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvscope.app.watch import WatchOptions, measure, watch_request
from kvscope.cli.app import run
from kvscope.core.files import data_folder
from kvscope.report.style import BLUE as LRU
from kvscope.report.words import ms_in_words, share
from tests.dashboard.browsing import (
    ALL_DRAWN,
    READY,
    Page,
    chromium,
    outside,
    serving,
    visit,
)

pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

SAMPLE = data_folder("sample_traces") / "to-c.jsonl.gz"
WHERE = ("--gpu", "h100", "--model", "llama3-8b", "--gpu-hour", "2.5", "--slo", "200ms")

NAVIGATION = [  # without Validation, as there is none
    *("Trace", "Overview", "Reuse", "Time", "Space", "Live"),
    *("Cache", "Capacity", "Why", "Policy lab", "Decide", "Recommendation", "Fleets"),
    *("Kept", "Runs and jobs", "Compare"),
]
MET, MISSED = "rgb(0, 158, 115)", "rgb(213, 94, 0)"

# Of each chart: [kind of the x axis, labels of its marks, [name, mode, colour] of each trace].
_CHARTS = """() => [...document.querySelectorAll('.js-plotly-plot')].map(({_fullLayout, data}) => [
    _fullLayout.xaxis ? _fullLayout.xaxis.type : '',
    (_fullLayout.annotations || []).map(one => one.text),
    data.map(one => [one.name, one.mode, (one.line || {}).color])])"""


class Shown(NamedTuple):
    """A dashboard with answers in its store, the folder that its pages may read, and the answers.

    `plan` is the document of `kvscope tune`, `fleet` that of `kvscope fleet`.
    """

    address: str
    folder: Path
    plan: dict[str, Any]
    fleet: dict[str, Any]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Run a dashboard on a store in which commands have left their answers."""
    folder = tmp_path_factory.mktemp("tuned")
    db = str(folder / "store.duckdb")

    def answer(*words: str) -> dict[str, Any]:
        written: dict[str, Any] = json.loads(run_in(folder, *words, "--db", db, "--json"))
        return written

    plan = answer("tune", str(SAMPLE), *WHERE, "--policy", "lru,wa", "--html", "tune.html")
    fleet = answer("fleet", "to-c", "--router", "session")
    answer("simulate", "to-c", "--policy", "lru,wa")
    with serving(db, str(folder), folder=folder) as (address, _):
        yield Shown(address, folder, plan, fleet)


@pytest.fixture
def page(tuned: Shown, new_tab: Callable[[int, str], Page]) -> Iterator[Page]:
    """Return the first page of that dashboard, drawn; nothing may fail in it, nor leave it."""
    tab, wrong = new_tab(1280, "light"), list[str]()
    tab.on("console", lambda one: one.type == "error" and wrong.append(one.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda one: outside(one.url, tuned.address) and wrong.append(one.url))
    tab.goto(tuned.address)
    tab.locator(".tile").first.wait_for()
    tab.wait_for_selector(READY)
    yield tab
    assert not wrong
    tab.close()


def run_in(folder: Path, *words: str) -> str:
    """Return what a command writes, run in a folder."""
    with chdir(folder), redirect_stdout(io.StringIO()) as printed:
        assert run(words) == 0
    return printed.getvalue()


def tiles_of(page: Page) -> dict[str, tuple[str, str]]:
    """Return value and colour of the tiles, by title."""
    rows = page.locator(".tile").evaluate_all(
        """tiles => tiles.map(one => [
            one.innerText.split('\\n')[0], one.querySelector('b').innerText,
            getComputedStyle(one).borderLeftColor])"""
    )
    return {title: (value, colour) for title, value, colour in rows}


def drawn(page: Page, name: str) -> list[Any]:
    """Return what the charts of a page hold, once all are drawn."""
    visit(page, name)
    page.locator(".js-plotly-plot").first.wait_for()
    page.wait_for_function(ALL_DRAWN, polling=100)
    page.wait_for_selector(READY)
    charts: list[Any] = page.evaluate(_CHARTS)
    return charts


def test_the_first_page_is_the_plans_first_line(page: Page, tuned: Shown) -> None:
    """In tiles, green and red for met and missed; beside it four groups of pages."""
    tiles, plan = tiles_of(page), tuned.plan
    rates = tiles["Hit rate, now → possible"][0].split(" → ")
    now, possible = (float(each.rstrip("%")) for each in rates)
    assert now < possible
    lost, colour = tiles["Lost to eviction"]
    assert (lost[:2], colour) == ("✗ ", MISSED)
    today = plan["rows"][0]["ttft_ms"]["p95"]["value"]
    assert tiles["p95 TTFT, SLO 200 ms"][0] == ms_in_words(today)
    canary, met = (plan["rows"][plan[each]]["change"] for each in ("canary", "to_meet"))
    assert tiles["Do now, free"][0] == f"Canary: {canary['policy']}"
    value, colour = tiles["Meets 200 ms"]
    memory = f"{met['tier']['gib']:g} GiB CPU tier"
    assert (value, colour) == (f"✓ {met['policy']} + {memory}", MET)
    links = page.get_by_test_id("stSidebarNav").inner_text().splitlines()
    assert [text for text in links if text.strip()] == NAVIGATION
    assert page.get_by_text("Add a trace").is_visible()


def test_pages_open_with_the_newest_stored_answer(page: Page, tuned: Shown) -> None:
    """With its date and settings, though nothing was pressed; it says what commands said."""
    for name, said in (
        ("Recommendation", "Recommendation: canary first"),
        ("Fleets", f"{tuned.fleet['chosen']} replicas behind session"),
        ("Policy lab", "Most hits at 55.5 GiB: wa"),
    ):
        visit(page, name)
        text = page.get_by_test_id("stMain")
        text.get_by_text(re.compile("newest stored")).first.wait_for()
        text.get_by_text(said).first.wait_for()
        assert text.get_by_text(re.compile(r"tored .*20\d\d-\d\d-\d\d")).first.is_visible()
    visit(page, "Recommendation")
    where = tuned.plan["deployment"]
    assert page.get_by_text(re.compile(f"Stored .* for .*{where['gpu']}")).is_visible()


def test_charts_carry_the_message(page: Page) -> None:
    """Marks at pool and SLO, LRU in its one colour, avoidable causes apart from the others."""
    curve, times, causes = drawn(page, "Capacity")[:3]
    assert curve[0] == "log"
    assert any("pool" in mark for mark in curve[1])
    assert curve[2][0] == ["lru", "lines", LRU]
    assert [(name, mode) for name, mode, _ in times[2]] == [
        ("p95 TTFT", "markers"),  # nothing was computed between them
        ("within the SLO", "markers"),
    ]
    names = [name for name, *_ in causes[2]]
    assert names[:2] == ["hit", "evicted (avoidable)"]
    assert not any("avoidable" in name for name in names[3:])
    assert {name for name, *_ in drawn(page, "Why")[0][2]} == {"avoidable", "unavoidable"}
    distribution = drawn(page, "Recommendation")[0]
    assert ("SLO" in distribution[1], distribution[0]) == (True, "log")
    assert ["lru, now", "lines", LRU] in distribution[2]
    charts = drawn(page, "Policy lab")
    colours = {colour for chart in charts for name, _, colour in chart[2] if name == "lru"}
    assert colours - {None} == {LRU}


def test_live_follows_a_recording(page: Page, tuned: Shown) -> None:
    """Tiles of the latest requests; they change by themselves with what is appended."""
    lines = gzip.decompress(SAMPLE.read_bytes()).splitlines(keepends=True)
    recording = tuned.folder / "recording.jsonl"
    recording.write_bytes(b"".join(lines[:300]))
    page.goto(f"{tuned.address}/live?recording=recording.jsonl&follow_blocks=8000")
    request = watch_request(WatchOptions(capacity_blocks=8000))
    for number in (300, 500):
        recording.write_bytes(b"".join(lines[:number]))
        page.get_by_text(f"the latest {number} span").wait_for()
        rate = share(measure(lines[:number], request).lru[1])
        page.locator(".tile", has_text="LRU").locator("b", has_text=rate).first.wait_for()


def test_a_job_shows_how_far_it_is_and_stops(page: Page) -> None:
    """Another page opens meanwhile; the job is listed, and stopped from there."""
    visit(page, "Recommendation")
    page.get_by_role("textbox", name="SLO (TTFT)").fill("190ms")
    page.get_by_text("routers", exact=True).click()
    page.get_by_role("button", name="Tune", exact=True).click()
    progress = page.get_by_test_id("stProgress")
    progress.get_by_text(re.compile(r"\d+ of \d+")).wait_for()
    visit(page, "Runs and jobs")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text(re.compile("stopped after")).wait_for()


@pytest.mark.parametrize("command", ["analyze", "tune"])
def test_a_report_is_a_page_of_its_own(
    tuned: Shown, new_tab: Callable[[int, str], Page], command: str
) -> None:
    """The answer first, LRU beside it, charts drawn; no footnote without its row."""
    path = tuned.folder / f"{command}.html"
    if command == "analyze":
        run_in(tuned.folder, "analyze", "to-c", "--db", "store.duckdb", "--html", str(path))
    tab, asked = new_tab(1280, "light"), list[str]()
    tab.on("request", lambda one: asked.append(one.url))
    tab.on("pageerror", lambda error: asked.append(str(error)))
    tab.goto(path.as_uri())
    tab.wait_for_function(ALL_DRAWN, polling=100)
    assert asked == [path.as_uri()]
    assert tab.locator(".tile").count() >= 3
    first = tab.locator("body").inner_text()[:3000]
    assert ("47.6%" in first) if command == "analyze" else ("today: lru" in first)
    for note in tab.locator(".note").all():
        star = note.inner_text().startswith("*")
        assert not star or "*" in tab.locator("table").first.inner_text()
    tab.close()

"""How the dashboard looks and is reached: both themes, a small screen, the keyboard, exports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import plotly.io
import pytest
from plotly.offline import get_plotlyjs

from dashboard.render import ready
from kvscope.cli.app import run
from kvscope.deployment.models import resolve_model
from kvscope.report import overview
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.usecases.analyze import AnalyzeRequest, analyze
from tests.dashboard.browsing import READY, Page, Served, chromium, visit
from tests.long import long

pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

_PATIENCE_MS = 60_000  # nothing is replayed here

# Nobody is there to answer what asks where to save.
_NO_PICKER = "delete window.showSaveFilePicker; delete Window.prototype.showSaveFilePicker"

_FIRST_ROW, _SECOND_ROW = ({"x": 60.0, "y": y} for y in (52.0, 87.0))  # of a table

# A figure given to plotly twice: [ranges of its axes, ranges after the second time].
_DRAWN_TWICE = """async (node, spec) => {
    const ranges = [];
    for (const width of [{}, {width: node.clientWidth}]) {
        const {data, layout} = JSON.parse(spec);
        await Plotly.react(node, data, {...layout, ...width});
        const axes = Object.entries(node._fullLayout).filter(([name]) => /^[xy]axis/.test(name));
        ranges.push(axes.map(([name, axis]) => [name, ...axis.range]));
    }
    Plotly.purge(node);
    return ranges;
}"""

_FOCUSED = """() => {
    const node = document.activeElement;
    return [node.tagName, node.getAttribute('role') || node.type || '',
            node.getAttribute('aria-label') || node.innerText || ''].join(' | ');
}"""


@pytest.fixture
def page(served: Served, new_tab: Callable[[int, str], Page]) -> Iterator[Page]:
    """Return the first page at a width of 1280."""
    tab = new_tab(1280, "light")
    tab.set_default_timeout(_PATIENCE_MS)
    tab.add_init_script(_NO_PICKER)
    tab.goto(f"{served.address}/?gpu=none")  # another test may have stated a deployment
    tab.get_by_text("chats: 600 requests").wait_for()
    tab.wait_for_selector(READY)
    yield tab
    tab.close()


@pytest.mark.parametrize(
    ("name", "controls"),
    [
        long("Capacity", ("Capacity (GiB)", "SLO (TTFT)", "Export")),
        ("Policy lab", ("SLO (TTFT)", "Parameters", "Policies", "Capacities (blocks", "Run")),
        long("Fleets", ("Numbers of replicas", "Capacity of a replica", "Routers", "Loop")),
        long("Recommendation", ("SLO (TTFT)", "Percentile", "Capacity you have", "Tune")),
    ],
)
def test_the_keyboard_reaches_every_control(
    page: Page, name: str, controls: tuple[str, ...]
) -> None:
    """Tab goes from the links at the side over their widgets to those of the page."""
    visit(page, name)
    page.get_by_role("heading", name=name, exact=True).click()
    page.get_by_role("link", name="Overview", exact=True).focus()
    missing = {"Reuse", "Compare", "Trace", "Model", "HBM", "Latency", *controls}
    seen = []
    while missing and len(seen) < 60:
        page.keyboard.press("Tab")
        seen.append(page.evaluate(_FOCUSED))
        missing -= {control for control in missing if control in seen[-1]}
    assert not missing, seen


def test_a_second_drawing_keeps_the_axes(
    stored_chats: Path, new_tab: Callable[[int, str], Page]
) -> None:
    """Streamlit's second figure may be a copy from before plotly wrote the ranges of the first."""
    with open_store(str(stored_chats)) as store:
        options = AnalyzeRequest(model=resolve_model("llama3-8b"), hbm_bytes=2**30)
        sections = overview.sections(analyze(store, traces.find(store, "chats"), options))
    tab = new_tab(390, "light")
    tab.set_content('<div id="chart" style="width: 358px"></div>')
    tab.add_script_tag(content=get_plotlyjs())
    for make in (make for section in sections for make in section.figures):
        title, figure = ready(make())
        spec = plotly.io.to_json(figure, validate=False)
        first, second = tab.locator("#chart").evaluate(_DRAWN_TWICE, spec)
        assert first == second, title
    tab.close()


def test_no_tools_cover_titles_on_a_phone(
    served: Served, new_tab: Callable[[int, str], Page]
) -> None:
    """Neither plotly's bar nor that of a table is drawn where the screen is narrow."""
    tab = new_tab(390, "light")
    tab.goto(f"{served.address}/capacity")
    tab.locator(".modebar-container").first.wait_for(state="attached")
    tab.wait_for_selector(READY)
    tab.get_by_test_id("stDataFrame").first.hover()
    for tools in (".modebar-container", "[data-testid=stElementToolbar]"):
        assert not any(each.is_visible() for each in tab.locator(tools).all())
    tab.close()


def test_a_click_opens_a_row(page: Page, served: Served, tmp_path: Path) -> None:
    """A run, whose files are then at hand; a category, whose requests are then the only ones."""
    assert run(["simulate", "chats", "--db", served.db, "--capacity-blocks", "60"]) == 0
    visit(page, "Runs and jobs")
    page.get_by_test_id("stDataFrame").last.click(position=_FIRST_ROW)
    page.wait_for_url(re.compile("[?&]run="))
    page.get_by_role("heading", name="Summary", exact=True).wait_for()
    page.wait_for_selector(READY)
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="JSON", exact=True).click()
    saved.value.save_as(tmp_path / "runs.json")
    assert json.loads((tmp_path / "runs.json").read_text())["trace"]["name"] == "chats"
    visit(page, "Why")
    page.get_by_role("heading", name="Request: ").wait_for()
    page.wait_for_selector(READY)
    _, categories, requests = page.get_by_test_id("stDataFrame").all()[:3]
    before = requests.screenshot()  # a table is a drawing
    categories.click(position=_SECOND_ROW)
    page.wait_for_timeout(500)
    page.wait_for_selector(READY)
    assert requests.screenshot() != before


def test_charts_and_tables_are_saved(page: Page, tmp_path: Path) -> None:
    """A chart as PNG, a table as CSV, by the buttons above them."""
    visit(page, "Capacity")
    page.get_by_role("heading", name="Misses").wait_for()
    page.wait_for_selector(READY)
    chart = page.get_by_test_id("stPlotlyChart").first
    chart.locator(".main-svg").first.wait_for()
    chart.hover()
    with page.expect_download() as saved:
        chart.get_by_role("button", name="Download plot as a PNG").click()
    assert saved.value.suggested_filename == "LRU's exact hit rate at every capacity.png"
    saved.value.save_as(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    table = page.get_by_test_id("stDataFrame").first
    with page.expect_download() as saved:
        table.get_by_role("button", name="Download as CSV").press("Enter")
    saved.value.save_as(tmp_path / "table.csv")
    assert "evicted" in (tmp_path / "table.csv").read_text()

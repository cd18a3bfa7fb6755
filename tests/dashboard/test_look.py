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
from tests.dashboard.browsing import ALL_DRAWN, READY, Page, Served, chromium, visit
from tests.long import long

pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

_PAGES = (
    *("Reuse", "Time", "Space", "Live", "Capacity", "Why"),
    *("Policy lab", "Fleets", "Recommendation", "Runs and jobs", "Compare"),
)
_PATIENCE_MS = 60_000  # nothing is replayed here
_ENOUGH = 4.5  # contrast of text: WCAG 2.2, AA
_FEWEST_CHARTS = {"Overview": 1, "Reuse": 3, "Time": 6, "Space": 3, "Capacity": 2, "Why": 2}
_TABS_OF_CHARTS = "[class*=st-key-charts_] [role=tab]"

# Texts whose contrast with what lies behind them is too low: [text, ratio].
_PALE = """least => {
    const parts = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const over = (top, below) => {
        const alpha = top[3] ?? 1;
        return [0, 1, 2].map(at => top[at] * alpha + below[at] * (1 - alpha));
    };
    const behind = node => {
        const layers = [];
        for (let at = node; at; at = at.parentElement) {
            const colour = parts(getComputedStyle(at).backgroundColor);
            if (colour.length && (colour[3] ?? 1) > 0) layers.push(colour);
        }
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const light = colour => {
        const [r, g, b] = colour.map(one => one / 255)
            .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
        const box = node.getBoundingClientRect();
        if (!text || !box.width) continue;
        if (node.closest('[disabled], [data-testid=stIconMaterial], script, style')) continue;
        // what lies on coloured shapes, or beside what it is a part of
        if (node.closest('.icicle, .hoverlayer, [data-testid=stSlider]')) continue;
        const style = getComputedStyle(node);
        if (style.visibility === 'hidden') continue;
        const ground = behind(node);
        const [r, g, b, alpha] = parts(node instanceof SVGElement ? style.fill : style.color);
        let seen = alpha ?? 1;
        for (let at = node; at; at = at.parentElement) seen *= getComputedStyle(at).opacity;
        if (!seen) continue;
        const ink = over([r, g, b, seen], ground);
        const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < least) found.push([text.slice(0, 40), Math.round(ratio * 100) / 100]);
    }
    return found;
}"""

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


@pytest.fixture(params=["dark", long("light")])
def scheme(request: pytest.FixtureRequest) -> str:
    """Return what the browser asks for."""
    return str(request.param)


@pytest.fixture
def page(served: Served, scheme: str, new_tab: Callable[[int, str], Page]) -> Iterator[Page]:
    """Return the first page at a width of 1280, on a machine that is light or dark."""
    tab = new_tab(1280, scheme)
    tab.set_default_timeout(_PATIENCE_MS)
    tab.add_init_script(_NO_PICKER)
    tab.goto(served.address)
    tab.get_by_text("chats: 600 requests").wait_for()
    tab.wait_for_selector(READY)
    yield tab
    tab.close()


def test_every_page_is_legible(page: Page, scheme: str) -> None:
    """Contrast in both themes, nothing beyond the screen's edge, an alternative text a chart."""
    ground = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(",")[:3])) < 200) == (scheme == "dark")
    for name in ("Overview", *_PAGES):
        visit(page, name)
        if name in _FEWEST_CHARTS:
            page.locator(".main-svg").first.wait_for()
        charts = legible_charts(page)
        for tab in page.locator(_TABS_OF_CHARTS).all():
            if tab.get_attribute("aria-selected") == "true":
                continue
            tab.click()
            page.get_by_role("figure", name=f"Chart: {tab.inner_text()}", exact=True).wait_for()
            charts |= legible_charts(page)
        assert len(charts) >= _FEWEST_CHARTS.get(name, 0), charts


def legible_charts(page: Page) -> set[str]:
    """Return the alternative texts of the drawn charts, on a page where all can be read."""
    page.wait_for_selector(READY)
    page.wait_for_function(ALL_DRAWN, polling=100)
    assert page.evaluate(_PALE, _ENOUGH) == []
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 1280
    charts = page.get_by_test_id("stPlotlyChart").all()
    for chart in charts:
        box = chart.bounding_box()
        assert box is None or box["x"] + box["width"] <= 1280
    told = {chart.get_attribute("aria-label") for chart in charts}
    assert all(one.startswith("Chart: ") for one in told)
    return told


@pytest.mark.parametrize("scheme", ["light"], indirect=True)
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


@pytest.mark.parametrize("scheme", ["light"], indirect=True)
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


@pytest.mark.parametrize("scheme", ["light"], indirect=True)
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

"""Pages in Chromium: links, history, what comes first, phones, and what the server refuses.

Also a browser's tabs, a command line and another process at one store, all at the same time.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from kvscope.cli.app import run
from tests.cli.shell import Streams
from tests.dashboard.browsing import READY, Page, Served, chromium, holding, outside
from tests.dashboard.browsing import visit as go_to
from tests.dashboard.test_fleets import ASKED
from tests.long import long

PlaywrightTimeout = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright"
).TimeoutError
CHROMIUM = chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

NAMES = (
    *("Overview", "Reuse", "Time", "Space", "Live", "Capacity", "Why"),
    *("Policy lab", "Fleets", "Recommendation", "Runs and jobs", "Compare"),
)
LEAST_PLOT = 160  # pixels of a chart's plot on a phone
# Whether two upright labels of an axis overlap.
OVERLAP = """() => [...document.querySelectorAll('.xaxislayer-above, .yaxislayer-above')]
    .some(axis => {
        const boxes = [...axis.querySelectorAll('text')]
            .filter(label => !/rotate\\((?!0)/.test(label.getAttribute('transform')))
            .map(label => label.getBoundingClientRect());
        return boxes.some((a, i) => boxes.slice(i + 1).some(b => a.left < b.right - 1
            && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
    })"""
HEADINGS = "[...document.querySelectorAll('h1,h2,h3,h4')].map(each => Number(each.tagName[1]))"
PLOTS = (
    "[...document.querySelectorAll('.nsewdrag')].map(each => each.getBoundingClientRect().width)"
)
DRAWN = """() => !document.querySelector('[class*=st-key-stop], [data-testid=stSkeleton]')
    && [...document.querySelectorAll('.stPlotlyChart')]
        .every(chart => chart.querySelector('.main-svg'))"""
# Texts whose contrast with what lies behind them is too low: [text, ratio].
PALE = """least => {
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
ENOUGH = 4.5  # contrast of text: WCAG 2.2, AA
WIDE = 1280
FEWEST_CHARTS = {"Overview": 1, "Reuse": 3, "Time": 6, "Space": 3, "Capacity": 2, "Why": 2}
TABS_OF_CHARTS = "[class*=st-key-charts_] [role=tab]"
Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def link(served: Served, new_tab: Callable[[int, str], Page]) -> Visit:
    """Return what opens a path in a tab of its own, of this width and scheme."""

    def open_tab(path: str, width: int = 1400, scheme: str = "light") -> Page:
        tab = new_tab(width, scheme)
        tab.wrong = []
        tab.on("response", lambda one: one.status >= 400 and tab.wrong.append(one.url))
        tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
        tab.on("console", lambda one: one.type == "error" and tab.wrong.append(one.text))
        tab.on("request", lambda one: outside(one.url, served.address) and wrong(tab, one.url))
        tab.goto(served.address + path)
        return tab

    return open_tab


@pytest.fixture(scope="module")
def visit(link: Visit) -> Visit:
    """Return what opens a path and waits until it is drawn."""

    def open_tab(path: str, width: int = 1400, scheme: str = "light") -> Page:
        tab = link(path, width, scheme)
        drawn(tab)
        return tab

    return open_tab


def wrong(tab: Page, url: str) -> None:
    """Note a request that leaves this machine."""
    tab.wrong.append(url)


def drawn(tab: Page) -> None:
    """Wait until the page and its charts are drawn."""
    tab.locator("h1").wait_for()
    tab.wait_for_selector(READY)
    tab.wait_for_function(DRAWN, polling=100)
    tab.wait_for_selector(READY)


def test_a_page_is_one_step_back(visit: Visit) -> None:
    """Each visited page is left again by one press of Back, whatever was changed on it."""
    tab = visit("/?trace=chats")
    for name in ("Reuse", "Fleets"):
        tab.get_by_role("link", name=name, exact=True).click()
        tab.get_by_role("heading", name=name, exact=True).wait_for()
        drawn(tab)
        tab.wait_for_url(re.compile("trace=chats"))
    for name in ("Reuse", "Overview"):
        tab.go_back()
        tab.get_by_role("heading", name=name, exact=True).wait_for()
    tab.close()


@pytest.mark.parametrize("width", [1400, 390])
def test_a_link_to_a_trace_that_is_gone(visit: Visit, width: int) -> None:
    """The page names it and the traces there are, and shows no other one's numbers."""
    tab = visit("/capacity?trace=gone", width, "dark")
    tab.get_by_text("The store has no trace 'gone'. It has chats: select one.").wait_for()
    assert tab.locator(".tile").count() == 0
    assert "trace=gone" in tab.url
    tab.close()


def test_values_that_cannot_be_shown(visit: Visit) -> None:
    """Each is named with what stands in for it, and the page is drawn."""
    values = "hbm=lots&gpu=h999&unit=furlongs&capacity=-5&model=/etc/passwd&latency=/dev/zero"
    tab = visit(f"/capacity?{values}")
    said = "\n".join(tab.get_by_test_id("stAlert").all_inner_texts())
    for text in ("HBM: 'lots' is not a size", "gpu=h999", "unit=furlongs", "capacity=-5"):
        assert text in said
    assert "Model: no model preset '/etc/passwd'" in said
    assert "/dev/zero: pages read no files from the disk" in said
    assert tab.get_by_test_id("stPlotlyChart").count() == 3
    tab.close()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(390, "dark"), long(1400, "light"), long(1400, "dark"), long(390, "light")],
)
def test_every_page(visit: Visit, served: Served, width: int, scheme: str) -> None:
    """Nothing fails to load or comes from outside; headings skip no level; plots have room.

    On a wide screen all can be read. The lab opens with stored runs, whose times differ little.
    """
    command = ("simulate", "chats", "--db", served.db, "--policy", "lru,belady")
    assert run([*command, "--capacity-blocks", "60"]) == 0
    tab = visit("/validation", WIDE, scheme)  # there is none, so that no link leads there
    ground = tab.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(",")[:3])) < 200) == (scheme == "dark")
    for name in ("", *NAMES):
        if name:  # by its link: a page that is loaded anew compiles all scripts anew
            go_to(tab, name)
            drawn(tab)
        levels = tab.evaluate(HEADINGS)
        assert levels[0] == 1, name
        assert all(after <= before + 1 for before, after in pairwise(levels))
        tab.set_viewport_size({"width": width, "height": 900})
        drawn(tab)
        assert tab.evaluate("document.scrollingElement.scrollWidth") <= width
        assert not tab.evaluate(OVERLAP), name
        assert all(plot >= LEAST_PLOT for plot in tab.evaluate(PLOTS)), name
        tab.set_viewport_size({"width": WIDE, "height": 900})
        charts = legible_charts(tab)
        for choice in tab.locator(TABS_OF_CHARTS).all():
            if choice.get_attribute("aria-selected") == "true":
                continue
            choice.click()
            tab.get_by_role("figure", name=f"Chart: {choice.inner_text()}", exact=True).wait_for()
            charts |= legible_charts(tab)
        assert len(charts) >= FEWEST_CHARTS.get(name, 0), (name, charts)
        assert tab.wrong == [], name
    tab.close()


def legible_charts(tab: Page) -> set[str]:
    """Return the alternative texts of the drawn charts, on a page where all can be read."""
    drawn(tab)
    assert tab.evaluate(PALE, ENOUGH) == []
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= WIDE
    charts = tab.get_by_test_id("stPlotlyChart").all()
    for chart in charts:
        box = chart.bounding_box()
        assert box is None or box["x"] + box["width"] <= WIDE
    told = {chart.get_attribute("aria-label") for chart in charts}
    assert all(each.startswith("Chart: ") for each in told)
    return told


def test_overview_begins_with_the_answer(
    visit: Visit, served: Served, trace: Path, tmp_path: Path
) -> None:
    """The hit rate now and at best, what evictions cost, the SLO; below, sentences and links.

    Of a trace of its own: another test may have tuned the one of all.
    """
    untuned = tmp_path / "untuned.jsonl"
    untuned.write_text("\n".join(trace.read_text().splitlines()[:-3]))
    assert run(["ingest", str(untuned), "--db", served.db]) == 0
    tab = visit("/?trace=untuned")
    text = tab.get_by_test_id("stMain").inner_text()
    parts = (
        "Add a trace",
        "Hit rate, now → possible",
        "Lost to eviction",
        "not tuned yet",
        "tokens with 80 GiB",
        "An infinite cache would hit",
        "Over time",
    )
    assert sorted(map(text.index, parts)) == [*map(text.index, parts)]
    assert tab.get_by_text("Add a trace").bounding_box()["y"] < 300
    assert tab.locator(".tile").count() == 4
    groups = tab.get_by_test_id("stNavSectionHeader").all_inner_texts()
    assert groups == ["Trace", "Cache", "Decide", "Kept"]
    assert not tab.get_by_role("link", name="Validation", exact=True).count()  # there is none
    tab.get_by_role("link", name="Tune for an SLO").click()
    tab.get_by_role("heading", name="Recommendation", exact=True).wait_for()
    tab.close()
    assert run(["traces", "remove", "untuned", "--db", served.db]) == 0


def test_long_names_leave_charts_their_room(
    visit: Visit, served: Served, trace: Path, tmp_path: Path
) -> None:
    """A category of 10 kB on a phone: its label is cut, the plot is not."""
    named = tmp_path / "named.jsonl"
    named.write_text(trace.read_text().replace('"text"', f'"{"x" * 10_000}"'))
    assert run(["ingest", str(named), "--db", served.db]) == 0
    tab = visit("/reuse?trace=named", 390)
    assert min(tab.evaluate(PLOTS)) >= LEAST_PLOT
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 390
    tab.close()
    assert run(["traces", "remove", "named", "--db", served.db]) == 0


def test_the_curve_comes_first_on_a_phone(visit: Visit) -> None:
    """Above the numbers, with its pool as the capacity and the slider in the axis' unit."""
    tab = visit("/capacity?unit=GiB&hbm=1GiB", 390)
    chart = tab.get_by_test_id("stPlotlyChart").first.bounding_box()
    number = tab.locator(".tile").first.bounding_box()
    assert chart["y"] + chart["height"] <= number["y"]
    tab.get_by_text("Capacity (GiB)", exact=True).wait_for()
    assert "capacity=512" in tab.url
    tab.close()


def test_other_hosts_and_sites_get_nothing(served: Served) -> None:
    """Neither pages nor web sockets; and the server has looked up and called nobody."""
    name = served.address.removeprefix("http://")
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for path, more in (("/", {}), ("/capacity", {}), ("/_stcore/stream", upgrade)):
        for headers in ({"Host": "evil.example"}, {"Host": name, "Origin": "http://evil.example"}):
            with closing(http.client.HTTPConnection(name, timeout=30)) as connection:
                connection.request("GET", path, headers=headers | more)
                assert connection.getresponse().status in {400, 403}
    recorded = served.record.read_text().splitlines()
    assert recorded
    own = re.compile(r"\b(127\.0\.0\.1|localhost)\b")
    strangers = [line for line in recorded if not own.search(line)]
    assert strangers == []


def test_a_fleet(visit: Visit) -> None:
    """A link draws the answer on wide and narrow screens; the heat map has a row a replica."""
    address = "&".join(f"{name}={value}" for name, value in ASKED.items())
    tab = visit(f"/fleets?{address}&ran_fleet=1", 390)
    for width in (390, 1400):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.get_by_role("heading", name="Assumed", exact=True).wait_for()
        drawn(tab)
        heat_map = tab.get_by_role("figure", name="Chart: Uncached tokens sent to each")
        heat_map.locator(".heatmaplayer image").wait_for(state="attached")
        tab.get_by_text("2 replicas behind").wait_for()
        assert heat_map.locator(".ytick text").count() == 2
        tab.get_by_role("tab", name="p95 TTFT").click()
        tab.get_by_role("figure", name="Chart: p95 TTFT", exact=True).wait_for()
        assert tab.evaluate("document.scrollingElement.scrollWidth") <= width
        # At once: the page may be drawn again between two questions.
        charts = "[...document.querySelectorAll('[data-testid=stPlotlyChart]')]"
        ends = tab.evaluate(f"{charts}.map(each => each.getBoundingClientRect().right)")
        assert ends
        assert max(ends) <= width
        assert tab.get_by_test_id("stException").count() == 0
        assert not tab.wrong
    tab.close()


def test_a_job_without_its_tab(link: Visit) -> None:
    """Started in a tab that is closed, it is listed in another one, opens there, and reloads."""
    tab = link("/recommendation?slo=5s")
    tab.get_by_role("button", name="Tune", exact=True).click()
    tab.get_by_role("button", name="Tune", exact=True).wait_for()
    tab.wait_for_timeout(500)
    tab.close()
    other = link("/runs")
    other.get_by_text("Tune: chats").first.wait_for()
    tune = other.get_by_test_id("stButton").filter(has_text="Open").first  # the latest job
    tune.get_by_role("button").click()
    other.get_by_role("heading", name="Recommendation: ").wait_for()
    other.reload()
    other.get_by_role("heading", name="Recommendation: ").wait_for()
    other.close()


def test_alongside_a_command_line(
    link: Visit, served: Served, tmp_path: Path, capsys: Streams
) -> None:
    """What it stores appears by itself, opens, and compares, on a telephone in the dark too."""
    tab = link("/runs")
    tab.get_by_role("heading", name="Stored runs").wait_for()
    command = ("chats", "--db", served.db)
    assert run(["simulate", *command, "--policy", "lru,belady", "--capacity-blocks", "60"]) == 0
    tab.get_by_role("link", name="Compare two of them").wait_for()
    output = str(tmp_path / "recommendation.toml")
    where = ("--gpu", "h100", "--model", "llama3-8b")  # other tests look at a cache alone
    assert run(["tune", *command, "--slo", "4s", *where, "--output", output]) == 0
    capsys.readouterr()
    for _ in range(30):  # the table is drawn anew once the report is stored
        with suppress(PlaywrightTimeout):
            tab.get_by_test_id("stDataFrame").first.click(position={"x": 200, "y": 52})
            tab.get_by_role("heading", name="Recommendation: ").wait_for(timeout=2_000)
            break
    tab.get_by_role("heading", name="Recommendation: ").wait_for()
    tab.wait_for_url(re.compile(r"report=\d+"))
    tab.close()
    phone = link("/compare?compare=Runs&left_run=1&right_run=2", 390, "dark")
    phone.get_by_role("heading", name="Over time").wait_for()
    phone.wait_for_selector(READY)
    assert phone.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert "left_run=1" in phone.url
    phone.close()


def test_while_the_store_is_written(link: Visit, served: Served) -> None:
    """Known traces stay; what needs the store names the process, and comes back by itself."""
    link("/").get_by_text("chats: 600 requests").wait_for()
    with holding(served.db) as process:
        tab = link("/")
        tab.get_by_text("chats: 600 requests").wait_for()
        tab.goto(f"{served.address}/validation")
        tab.get_by_text(f"process {process} ").first.wait_for()
    tab.get_by_text("The store has no validation of this trace").wait_for()

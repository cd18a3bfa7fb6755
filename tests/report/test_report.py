"""The report: complete, self-contained, and safe whatever a trace calls its types."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from kvscope.deployment.models import resolve_model
from kvscope.ingest.pipeline import ingest
from kvscope.report import overview
from kvscope.store.db import MEMORY, open_store
from kvscope.usecases.analyze import USE_CASE, Analysis, AnalyzeRequest, analyze
from tests.dashboard.browsing import FLAGS, chromium

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

LEGENDS_OUTSIDE = """() => [...document.querySelectorAll('.figure')].filter(figure => {
    const legend = figure.querySelector('.legend');
    if (!legend) return false;
    const inner = legend.getBoundingClientRect(), outer = figure.getBoundingClientRect();
    return inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1;
}).map(figure => figure.ariaLabel)"""
HOSTILE = "<img src=x onerror=alert(1)></script><b>&"


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Two conversations of two users, with a type that would like to be HTML."""
    path = tmp_path_factory.mktemp("report") / "hostile.jsonl"
    rows = []
    for turn in (1, 2, 3):
        for user in (1, 2):
            shared = [user * 100 + block for block in range(2 * turn)]
            rows.append(
                {
                    "chat_id": turn * 10 + user,
                    "parent_chat_id": (turn - 1) * 10 + user if turn > 1 else -1,
                    "user_id": user,
                    "timestamp": 60.0 * turn + user,
                    "input_length": 32 * turn,
                    "output_length": 8,
                    "type": HOSTILE,
                    "turn": turn,
                    "hash_ids": shared,
                }
            )
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        options = AnalyzeRequest(model=resolve_model("llama3-8b"), hbm_bytes=2**30)
        return analyze(store, trace, options)


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> str:
    """Return the report as a page."""
    return USE_CASE.report(analysis).html()


def test_every_subject_has_its_section(analysis: Analysis) -> None:
    """Nothing of the characterization is left out of the report."""
    titles = {section.title for section in overview.sections(analysis)}
    assert titles >= {
        "Capacity",
        "Misses",
        "Definitions",
        "Categories",
        "Contribution",
        "Last touch",
        "Skew",
        "Reuse gaps",
        "Lifetimes",
        "Where in the prompt",
        "Working set",
        "Size of requests",
        "Requests",
        "Over time",
        "Conversations",
    }


def test_tables_are_rectangular_and_their_columns_distinct(analysis: Analysis) -> None:
    """Each row has a cell a column, and no two columns share a title."""
    for section in overview.sections(analysis):
        for table in section.tables:
            titled = [column for column in table.columns if column]
            assert len(titled) == len(set(titled)), table.title
            assert {len(row) for row in table.rows} <= {len(table.columns)}, table.title


def test_the_page_needs_no_network(page: str) -> None:
    """No script, style, font or image is loaded from anywhere."""
    assert not re.search(r"<(script|img|iframe)[^>]*\ssrc=", page)
    assert not re.search(r"<link\b", page)
    assert "@import" not in page


def test_trace_supplied_strings_are_escaped(page: str) -> None:
    """A type that is HTML stays text, in tables and in the charts' data."""
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_charts_have_units_on_their_axes(analysis: Analysis) -> None:
    """Every x axis with ticks has a title; of plots below each other that is the lowest one's."""
    for section in overview.sections(analysis):
        for make in section.figures:
            figure = make()
            assert figure.layout.title.text
            for axis in figure.select_xaxes():
                titled = axis.title.text or axis.showticklabels is False
                assert titled, figure.layout.title.text


def test_the_page_is_much_smaller_than_plotly(page: str) -> None:
    """plotly's script is in there once, compressed."""
    assert len(page) < 2_500_000
    assert page.count('id="plotly"') == 1


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize(("width", "scheme"), [(420, "light"), (1100, "dark")])
def test_a_browser_draws_every_chart(
    page: str, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    """Without a network; on a phone nothing scrolls sideways and no legend sticks out."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=FLAGS)
        size: ViewportSize = {"width": width, "height": 900}
        shown = browser.new_page(viewport=size, color_scheme=scheme, offline=True)
        errors: list[str] = []
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.goto(path.as_uri())
        shown.wait_for_function(
            "[...document.querySelectorAll('.figure')].every(f => f.querySelector('.main-svg'))"
        )
        wide = shown.evaluate("document.documentElement.scrollWidth")
        outside = shown.evaluate(LEGENDS_OUTSIDE)
        browser.close()
    assert errors == []
    assert wide == width
    assert outside == []

"""A browser's tabs, a command line and another process at one store, all at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvscope.cli.app import run
from tests.cli.shell import Streams
from tests.dashboard.browsing import READY, Page, Served, chromium, tabs
from tests.dashboard.test_trouble import HOLDS

pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def visit(served: Served) -> Iterator[Visit]:
    """Return what opens a path in a tab of its own, of this width and scheme."""
    with tabs() as new_tab:

        def open_tab(path: str, width: int = 1400, scheme: str = "light") -> Page:
            tab = new_tab(width, scheme)
            tab.goto(served.address + path)
            return tab

        yield open_tab


def test_a_job_without_its_tab(visit: Visit) -> None:
    """Started in a tab that is closed, it is listed in another one, opens there, and reloads."""
    tab = visit("/recommendation?slo=5s")
    tab.get_by_role("button", name="Tune", exact=True).click()
    tab.get_by_role("button", name="Tune", exact=True).wait_for()
    tab.wait_for_timeout(500)
    tab.close()
    other = visit("/runs")
    other.get_by_text("Tune: chats").first.wait_for()
    tune = other.get_by_test_id("stButton").filter(has_text="Open").first  # the latest job
    tune.get_by_role("button").click()
    other.get_by_role("heading", name="Recommendation: ").wait_for()
    other.reload()
    other.get_by_role("heading", name="Recommendation: ").wait_for()
    other.close()


def test_alongside_a_command_line(
    visit: Visit, served: Served, tmp_path: Path, capsys: Streams
) -> None:
    """What it stores appears by itself, opens, and compares, on a telephone in the dark too."""
    tab = visit("/runs")
    tab.get_by_role("heading", name="Stored runs").wait_for()
    command = ("chats", "--db", served.db)
    assert run(["simulate", *command, "--policies", "lru,belady", "--capacity-blocks", "60"]) == 0
    tab.get_by_role("link", name="Compare two of them").wait_for()
    output = str(tmp_path / "recommendation.toml")
    cache = ("--view", "unloaded", "--output", output)
    assert run(["tune", *command, "--slo", "4s", *cache]) == 0
    capsys.readouterr()
    choice = tab.get_by_role("combobox", name="Open a report")
    choice.click()
    tab.get_by_role("option", name="tune chats").first.click()
    tab.get_by_role("heading", name="Recommendation: ").wait_for()
    tab.close()
    phone = visit("/compare?compare=Runs&left_run=1&right_run=2", 390, "dark")
    phone.get_by_role("heading", name="Over time").wait_for()
    phone.wait_for_selector(READY)
    assert phone.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert "left_run=1" in phone.url
    phone.close()


def test_while_the_store_is_written(visit: Visit, served: Served) -> None:
    """Known traces stay; what needs the store names the process, and comes back by itself."""
    visit("/").get_by_text("chats: 600 requests").wait_for()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, served.db],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        tab = visit("/")
        tab.get_by_text("chats: 600 requests").wait_for()
        tab.get_by_role("link", name="Validation", exact=True).click()
        tab.get_by_text(f"process {holder.pid} ").first.wait_for()
        holder.communicate("\n")
    tab.get_by_text("The store has no validation of this trace").wait_for()

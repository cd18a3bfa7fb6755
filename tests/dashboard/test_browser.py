"""The dashboard as a person uses it: started by its command, clicked through in Chromium."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.dashboard.chats import write_chats
from tests.dashboard.chromium import FLAGS, chromium

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = chromium()
Page = Any  # playwright may be missing
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

_PATIENCE_MS = 240_000  # kernels may have to be compiled
_PAGES = ("Reuse", "Time", "Space", "Capacity", "Policy lab", "Recommendation", "Validation")


def free_port() -> int:
    """A port that nobody listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`kvscope dashboard` on an empty store, ended whatever happens."""
    port = free_port()
    arguments = ["dashboard", "--db", str(tmp_path / "store.duckdb"), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvscope", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def wait_for(address: str, process: subprocess.Popen[str]) -> None:
    """Return once the server answers."""
    until = monotonic() + _PATIENCE_MS / 1e3
    while monotonic() < until and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health"):  # noqa: S310
            return
        sleep(0.1)
    raise AssertionError(process.communicate())


def test_a_visit(server: tuple[str, subprocess.Popen[str]], tmp_path: Path) -> None:
    """Sample, upload, every page, slider, lab, flags, download; no errors; Ctrl-C ends it."""
    address, process = server
    wait_for(address, process)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(_PATIENCE_MS)
        wrong: list[str] = []
        page.on("console", lambda one: one.type == "error" and wrong.append(one.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda one: outside(one.url, address) and wrong.append(one.url))
        page.goto(address)
        page.get_by_text("to-c: bailian trace").wait_for()
        upload(page, write_chats(tmp_path / "chats.jsonl"))
        for name in _PAGES:
            visit(page, name)
        move_the_slider(page)
        run_the_lab(page)
        tune(page, tmp_path)
        assert not wrong
        browser.close()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


def outside(url: str, address: str) -> bool:
    """Whether a request leaves this machine."""
    return url.startswith("http") and not url.startswith(address)


def upload(page: Page, path: Path) -> None:
    """Bring a trace from the browser's side; it becomes the one that is looked at."""
    page.get_by_text("Add a trace").click()
    page.locator("input[type=file]").set_input_files(path)
    page.get_by_text(path.name).wait_for()
    page.get_by_role("button", name="Read it").click()
    page.get_by_text("chats: bailian trace, 600 requests").wait_for()


def visit(page: Page, name: str) -> None:
    """Go to a page by its name at the side, and wait until it is drawn."""
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, exact=True).wait_for()
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    assert page.locator("[data-testid=stException]").count() == 0


def move_the_slider(page: Page) -> None:
    """By the keyboard; the numbers and the address follow."""
    visit(page, "Capacity")
    before = page.get_by_test_id("stMetricValue").nth(1).inner_text()
    page.get_by_role("slider").press("ArrowRight")
    page.wait_for_function(
        "before => document.querySelectorAll('[data-testid=stMetricValue]')[1].innerText != before",
        arg=before,
    )
    now = page.get_by_test_id("stMetricValue").nth(1).inner_text()
    page.wait_for_url(re.compile(f"capacity={now.replace(',', '')}"))


def run_the_lab(page: Page) -> None:
    """Replay the usual policies at one capacity."""
    visit(page, "Policy lab")
    page.get_by_role("textbox", name="Capacities (blocks)").fill("60")
    page.get_by_role("textbox", name="Capacities (blocks)").press("Enter")
    page.wait_for_url(re.compile("sizes=60"))
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("heading", name="Time to first token").wait_for()


def tune(page: Page, folder: Path) -> None:
    """Tune, copy the flags, download the file."""
    visit(page, "Recommendation")
    page.get_by_role("textbox", name="SLO (TTFT)").fill("25ms")
    page.get_by_role("textbox", name="SLO (TTFT)").press("Enter")
    page.wait_for_url(re.compile("slo=25ms"))
    page.get_by_role("button", name="Tune", exact=True).click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download recommendation.toml").click()
    saved.value.save_as(folder / "recommendation.toml")
    assert "verdict = " in (folder / "recommendation.toml").read_text()
    page.get_by_test_id("stCode").first.hover()
    page.get_by_test_id("stCode").first.get_by_role("button").click()

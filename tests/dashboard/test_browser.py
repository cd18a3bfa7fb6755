"""The dashboard as a person uses it: started by its command, clicked through in Chromium."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.dashboard.browsing import (
    Page,
    Served,
    Server,
    chromium,
    outside,
    pick,
    serving,
    visit,
)
from tests.dashboard.chats import write_chats

pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """`kvscope dashboard` on an empty store."""
    with serving(str(tmp_path / "store.duckdb")) as started:
        yield started


def test_a_visit(server: Server, tmp_path: Path, new_tab: Callable[[int, str], Page]) -> None:
    """Sample, upload, slider, lab, flags, download; no errors; Ctrl-C ends it."""
    address, process = server
    page, wrong = new_tab(1280, "light"), list[str]()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    page.on("console", lambda one: one.type == "error" and wrong.append(one.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda one: outside(one.url, address) and wrong.append(one.url))
    page.goto(address)
    page.get_by_text("to-c: 2,000 requests").wait_for()
    upload(page, write_chats(tmp_path / "chats.jsonl"))
    move_the_slider(page)
    run_the_lab(page)
    tune(page, tmp_path)
    assert not wrong
    page.close()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_no_page_frames_it(
    served: Served, tmp_path: Path, new_tab: Callable[[int, str], Page]
) -> None:
    """A page of another site that frames the dashboard shows nothing of it, nor may it steer it."""
    (tmp_path / "index.html").write_text(f'<iframe src="{served.address}"></iframe>')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    other = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=other.serve_forever, daemon=True).start()
    with urllib.request.urlopen(f"{served.address}/_stcore/host-config") as answer:  # noqa: S310
        assert json.load(answer)["allowedOrigins"] == []
    page, refused = new_tab(1280, "light"), list[str]()
    page.on("console", lambda each: refused.append(each.text))
    page.goto(f"http://127.0.0.1:{other.server_port}/")
    page.wait_for_timeout(1000)
    assert any("frame-ancestors 'none'" in text for text in refused)
    assert not any(frame.url.startswith(served.address) for frame in page.frames)
    page.close()
    other.shutdown()
    other.server_close()


def upload(page: Page, path: Path) -> None:
    """Bring a trace from the browser's side; it becomes the one that is looked at."""
    page.get_by_text("Add a trace").click()
    page.locator("input[type=file]").set_input_files(path)
    page.get_by_text(path.name).wait_for()
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("chats: 600 requests").wait_for()


def move_the_slider(page: Page) -> None:
    """By the keyboard; the numbers and the address follow."""
    visit(page, "Capacity")
    before = page.locator(".tile b").nth(1).inner_text()
    page.get_by_role("slider").press("ArrowLeft")
    page.wait_for_function(
        "before => document.querySelectorAll('.tile b')[1].innerText != before",
        arg=before,
    )
    now = page.locator(".tile b").nth(1).inner_text()
    page.wait_for_url(re.compile(f"capacity={now.replace(',', '')}"))


def run_the_lab(page: Page) -> None:
    """Replay the usual policies at one capacity."""
    visit(page, "Policy lab")
    page.get_by_role("textbox", name="Capacities (blocks or sizes)").fill("60")
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url(re.compile("sizes=60"))
    page.get_by_role("heading", name="Time to first token").wait_for()


def tune(page: Page, folder: Path) -> None:
    """Tune for a deployment, copy the flags, download the file."""
    visit(page, "Recommendation")
    pick(page, "GPU", "h100")
    page.wait_for_url(re.compile("gpu=h100"))
    page.get_by_role("textbox", name="SLO (TTFT)").fill("5s")
    page.get_by_role("button", name="Tune", exact=True).click()
    page.wait_for_url(re.compile("slo=5s"))
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download recommendation.toml").click()
    saved.value.save_as(folder / "recommendation.toml")
    assert "verdict = " in (folder / "recommendation.toml").read_text()
    flags = page.get_by_test_id("stCode").first  # the export's is in a closed popover
    flags.hover()
    flags.get_by_role("button").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip()
    assert copied.strip() == flags.locator("code").inner_text().strip()

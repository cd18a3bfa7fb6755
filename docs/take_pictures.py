"""Take the pictures of the docs from the program itself, with Chromium.

python -m docs.take_pictures
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from kvscope.cli.app import run
from kvscope.core.files import data_folder

PICTURES = Path(__file__).parent / "pictures"
_PORT = 8599
_ADDRESS = f"http://127.0.0.1:{_PORT}"
_PATIENCE_MS = 300_000
_DRAWN_MS = 1_500  # charts draw after the script has ended
_PAGES = (
    "Overview",
    "Reuse",
    "Time",
    "Space",
    "Capacity",
    "Policy lab",
    "Recommendation",
    "Validation",
)
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def main() -> int:
    """Take pictures of the report and of every dashboard page, on the sample `to-c`."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no chromium on the PATH; on Debian: apt install chromium", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = Path(folder) / "report.html"
        trace = str(data_folder("sample_traces") / "to-c.jsonl.gz")
        arguments = ["--db", ":memory:", "--model", "qwen2-7b", "--hbm", "80GiB"]
        code = run(["analyze", trace, *arguments, "--html", str(report)])
        if code:
            return int(code)
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        page = browser.new_page(viewport={"width": 1060, "height": 1420})
        page.goto(report.as_uri())
        page.wait_for_selector(".js-plotly-plot .main-svg")
        page.screenshot(path=PICTURES / "report.png")
        _dashboard(browser, Path(folder))
        browser.close()
    return 0


def _dashboard(browser: Browser, folder: Path) -> None:
    """Take a picture of every dashboard page on the same sample."""
    # in the folder, so that the page shows the store by its name
    command = [sys.executable, "-m", "kvscope", "dashboard", "--port", str(_PORT)]
    server = subprocess.Popen(command, cwd=folder)
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(_PATIENCE_MS)
        _until_it_answers(server)
        page.goto(_ADDRESS)
        page.get_by_text("to-c: bailian trace").wait_for()
        for name in _PAGES:
            page.get_by_role("link", name=name, exact=True).click()
            page.get_by_role("heading", name=name, exact=True).wait_for()
            if name == "Policy lab":
                page.get_by_role("button", name="Run", exact=True).click()
                page.get_by_role("heading", name="Time to first token").wait_for()
            if name == "Recommendation":
                page.get_by_role("button", name="Tune", exact=True).click()
                page.get_by_role("button", name="Download recommendation.toml").wait_for()
            page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
            page.wait_for_timeout(_DRAWN_MS)
            page.screenshot(path=PICTURES / f"dashboard-{name.split()[-1].lower()}.png")
            if name == "Policy lab":
                _what_xi_does(page)
    finally:
        server.terminate()
        server.wait()


def _what_xi_does(page: Page) -> None:
    """Take a picture of the lab's chart over xi."""
    page.get_by_role("tab", name="What xi does").click()
    page.get_by_role("button", name="Replay every xi").click()
    page.get_by_role("heading", name="What xi does").wait_for()
    page.mouse.move(800, 600)
    page.mouse.wheel(0, 420)
    page.wait_for_timeout(_DRAWN_MS)
    page.screenshot(path=PICTURES / "dashboard-xi.png")
    page.mouse.wheel(0, -2_000)


def _until_it_answers(server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{_ADDRESS}/_stcore/health"):  # noqa: S310
            return
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())

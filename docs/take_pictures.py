"""Take the pictures of the docs from the program itself, with Chromium.

python -m docs.take_pictures            # those of the docs
python -m docs.take_pictures FOLDER     # and each page, wide and narrow, light and dark, to look at
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from tests.dashboard.browsing import FLAGS, PATIENCE_MS, READY, chromium, serving, visit

PICTURES = Path(__file__).parent / "pictures"
_DRAWN_MS = 1_500  # charts draw after the script has ended
_PAGES = ("Capacity", "Policy lab", "Recommendation", "Fleets", "Runs and jobs", "Compare")
_IN_DOCS = {"Capacity", "Runs and jobs", "Compare"}
_LOOKS = ((1400, "light"), (1400, "dark"), (390, "light"), (390, "dark"))
_HEIGHT = "Math.max(900, document.querySelector('[data-testid=stMain]').scrollHeight)"


def main() -> int:
    """Take pictures of the report and of the dashboard, on the sample `to-c`."""
    path = chromium()
    if path is None:
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
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1060, "height": 1420})
        page.goto(report.as_uri())
        page.wait_for_selector(".js-plotly-plot .main-svg")
        page.screenshot(path=PICTURES / "report.png")
        _dashboard(browser, folder)
        browser.close()
    return 0


def _dashboard(browser: Browser, folder: str) -> None:
    """Take pictures of the dashboard on the same sample."""
    # run in the folder, so that the page shows the store by its name
    with serving("kvscope.duckdb", cwd=folder) as (address, _):
        page = browser.new_page(viewport={"width": 1400, "height": 875})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(address)
        page.get_by_text("to-c: 2,000 requests").wait_for()
        for name in _PAGES:
            visit(page, name)
            if name == "Policy lab":
                page.get_by_role("button", name="Run", exact=True).click()
                page.get_by_role("heading", name="Time to first token").wait_for()
            if name == "Recommendation":
                page.get_by_role("button", name="Tune", exact=True).click()
                page.get_by_role("heading", name="Assumed").wait_for()
            if name == "Fleets":
                page.get_by_role("textbox", name="Capacity of a replica").fill("5000")
                page.get_by_role("button", name="Replay", exact=True).click()
                page.get_by_role("heading", name="Assumed").wait_for()
            if name == "Compare":
                page.get_by_role("tab", name="Runs", exact=True).click()
                page.get_by_role("heading", name="Facts").wait_for()
            page.wait_for_timeout(_DRAWN_MS)
            page.wait_for_selector(READY)
            if name in _IN_DOCS:
                page.screenshot(path=PICTURES / f"dashboard-{name.split()[-1].lower()}.png")
            if name == "Policy lab":
                _effect_of_xi(page)
        for width, scheme in _LOOKS if len(sys.argv) > 1 else ():
            _every_page(browser, address, width, scheme)


def _every_page(
    browser: Browser, address: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    """Take a picture of each page, as long as it is."""
    for path in sorted((data_folder("dashboard") / "views").glob("[!_]*.py")):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(f"{address}/{path.stem}")
        page.wait_for_selector(READY)
        page.wait_for_timeout(_DRAWN_MS)
        page.set_viewport_size({"width": width, "height": min(page.evaluate(_HEIGHT), 6000)})
        page.wait_for_timeout(_DRAWN_MS)
        page.screenshot(path=Path(sys.argv[1]) / f"{path.stem}-{width}-{scheme}.png")
        page.close()


def _effect_of_xi(page: Page) -> None:
    """Take a picture of the lab's chart over xi."""
    page.get_by_role("tab", name="Effect of xi").click()
    page.get_by_role("button", name="Replay every xi").click()
    page.get_by_role("heading", name="Effect of xi").wait_for()
    page.mouse.move(800, 600)
    page.mouse.wheel(0, 620)
    page.wait_for_timeout(_DRAWN_MS)
    page.screenshot(path=PICTURES / "dashboard-xi.png")
    page.mouse.wheel(0, -2_000)


if __name__ == "__main__":
    sys.exit(main())

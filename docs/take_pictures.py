"""Takes the documentation's pictures from the program itself, with Chromium.

python -m docs.take_pictures
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from kvscope.cli.app import run
from kvscope.paths import data_folder

PICTURES = Path(__file__).parent / "pictures"
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def main() -> int:
    """Picture the report on the sample trace of a chat product."""
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
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

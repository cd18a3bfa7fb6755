"""The dashboard as a person sees it: from the click on a page's name to its last chart."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
TITLES = {
    "overview": "Overview",
    "reuse": "Reuse",
    "time": "Time",
    "space": "Space",
    "capacity": "Capacity",
    "lab": "Policy lab",
    "recommendation": "Recommendation",
    "validation": "Validation",
}
_PATIENCE_MS = 300_000
_DRAWN = """() => {
    const app = document.querySelector('[data-testid=stApp]');
    const shown = kind => [...document.querySelectorAll(kind)].filter(one => one.offsetParent);
    return app.dataset.testScriptState === 'notRunning'
        && !shown('button').some(one => one.innerText === 'Stop')
        && shown('[data-testid=stPlotlyChart]').every(one => one.querySelector('.main-svg'));
}"""


def seen(db: str) -> dict[str, tuple[float, float]]:
    """Seconds of the first and second visit to each page of a `kvscope dashboard` just started.

    None without Chromium.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or find_spec("playwright") is None:
        return {}
    from playwright.sync_api import sync_playwright

    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "kvscope", "dashboard", "--db", db, "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        _until_it_answers(server, address)
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(_PATIENCE_MS)
            started_s = time.perf_counter()
            page.goto(address)
            _drawn(page, "Overview")
            first = {"overview": time.perf_counter() - started_s}
            first |= {name: _visit(page, TITLES[name]) for name in list(TITLES)[1:]}
            return {name: (first[name], _visit(page, title)) for name, title in TITLES.items()}
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def _visit(page: Any, title: str) -> float:
    started = time.perf_counter()
    page.get_by_role("link", name=title, exact=True).click()
    _drawn(page, title)
    return time.perf_counter() - started


def _drawn(page: Any, title: str) -> None:
    page.get_by_role("heading", name=title, exact=True).wait_for()
    page.wait_for_function(_DRAWN)


def _until_it_answers(server: subprocess.Popen[bytes], address: str) -> None:
    while server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health"):  # noqa: S310
            return
        time.sleep(0.1)
    raise RuntimeError("the dashboard ended")

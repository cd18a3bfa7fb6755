"""Time the dashboard in Chromium: from a click or a change of a widget to the last chart."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
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
}
FEWEST_CHARTS = {"overview": 1, "reuse": 3, "time": 3, "space": 3, "capacity": 2}
MODEL, OTHER_MODEL = "llama3-8b", "qwen2-7b"
FIRST_OPEN = "first open"
FRESH, BESIDE_A_JOB = "fresh open", "fresh open beside a job"
EMPTY, EMPTY_BESIDE_IT = "empty Streamlit app", "empty Streamlit app beside a job"
JOB = "recommendation?gpu=l40s&model=llama3-8b&slo=155ms&compare=routers"
_FRESH_ROUNDS = 3
_HEADING = "Stored runs"  # of the page of runs, and all that the empty app draws
ANSWER = "Hit rate, "  # begins the title of the Overview's first answer
_TIMEOUT_MS = 300_000
_STREAMLIT = (
    *("streamlit", "run", "--server.headless", "true", "--server.address", "127.0.0.1"),
    *("--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none"),
)
_DRAWN = """fewest => {
    const app = document.querySelector('[data-testid=stApp]');
    const shown = kind => [...document.querySelectorAll(kind)].filter(node => node.offsetParent);
    const charts = shown('[data-testid=stPlotlyChart]');
    return app.dataset.testScriptState === 'notRunning' && window.requested !== false
        && !shown('button').some(node => node.innerText === 'Stop')
        && charts.length >= fewest && charts.every(node => node.querySelector('.main-svg'));
}"""
_WATCH = """() => {
    const app = document.querySelector('[data-testid=stApp]');
    window.requested = false;
    new MutationObserver((_, watching) => {
        window.requested = true;
        watching.disconnect();
    }).observe(app, {attributeFilter: ['data-test-script-state']});
}"""
PageTimes = dict[str, dict[str, float | None]]


def browser_times(db: str) -> PageTimes:
    """Return seconds per page of a newly started `kvscope dashboard`; nothing without Chromium.

    `opened_s`: first visit, `seen_s`: second visit, `moved_s`: change of a widget there. Of
    `FIRST_OPEN`, `opened_s` ends with the Overview's first answer, before its chart.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or find_spec("playwright") is None:
        return {}
    from playwright.sync_api import sync_playwright

    app = Path(db).with_name("empty_app.py")
    app.write_text(f"import streamlit\n\nstreamlit.header({_HEADING!r})\n")
    with (
        _server("kvscope", "dashboard", "--db", db, "--port") as address,
        _server(*_STREAMLIT, str(app), "--server.port") as empty,
        sync_playwright() as started,
    ):
        browser = started.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(_TIMEOUT_MS)
        started_s = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.get_by_text(ANSWER).first.wait_for()
        answered_s = time.perf_counter() - started_s
        _drawn(page, "overview")
        opened = {"overview": time.perf_counter() - started_s}
        opened |= {name: _visit(page, name) for name in list(TITLES)[1:]}
        again = {name: _visit(page, name) for name in TITLES}
        times: PageTimes = {FIRST_OPEN: {"opened_s": answered_s}}
        for name in TITLES:
            seconds = {"opened_s": opened[name], "seen_s": again[name]}
            times[name] = {**seconds, "moved_s": _move(page, name)}
        return times | _beside_a_job(browser, address, empty)


@contextmanager
def _server(*arguments: str) -> Iterator[str]:
    """Run a module of Python with these arguments and a free port; yield the server's address."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", *arguments, str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        _until_it_answers(server, address)
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def _beside_a_job(browser: Any, address: str, empty: str) -> PageTimes:
    """Time new sessions of the page of runs and of the empty app, without and with a job."""
    opened: dict[str, list[float]] = {
        name: [] for name in (FRESH, EMPTY, BESIDE_A_JOB, EMPTY_BESIDE_IT)
    }
    page = browser.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    page.goto(f"{address}/{JOB}")
    for _ in range(_FRESH_ROUNDS):
        opened[FRESH].append(_fresh(browser, f"{address}/runs"))
        opened[EMPTY].append(_fresh(browser, empty))
        for name, to_open in ((BESIDE_A_JOB, f"{address}/runs"), (EMPTY_BESIDE_IT, empty)):
            page.get_by_role("button", name="Tune", exact=True).click()
            stop = page.get_by_role("button", name="Stop", exact=True)
            stop.wait_for()
            time.sleep(1)  # past its beginning
            opened[name].append(_fresh(browser, to_open))
            stop.click()  # it still runs: on the small trace for 4 s
            page.get_by_text("Stopped before").wait_for()
    return {name: {"opened_s": median(seconds)} for name, seconds in opened.items()}


def _fresh(browser: Any, address: str) -> float:
    """Time a page with this heading in a session and a browser's profile of its own."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    began_s = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.get_by_role("heading", name=_HEADING, exact=True).wait_for()
    took_s = time.perf_counter() - began_s
    context.close()
    return took_s


def _visit(page: Any, name: str) -> float:
    link = page.get_by_role("link", name=TITLES[name], exact=True)
    return _timed(page, name, link.click)


def _move(page: Any, name: str) -> float | None:
    """Time moving the page's slider, opening another tab or choosing another model."""
    _visit(page, name)
    if name == "lab":  # what is stored is shown at once
        page.get_by_role("button", name="Run", exact=True).click()
        page.get_by_role("heading", name="Time to first token").wait_for()
        _drawn(page, name)
    tabs = page.locator("[class*=st-key-charts_] [role=tab][aria-selected=false]")
    if name not in ("capacity", "lab") and tabs.count():  # the tab's chart is not drawn before
        return _timed(page, name, tabs.first.click)
    page.evaluate(_WATCH)
    if name in ("capacity", "lab"):
        return _timed(page, name, lambda: page.get_by_role("slider").press("ArrowLeft"))
    took = _timed(page, name, _chosen(page, OTHER_MODEL).click)
    present = _chosen(page, MODEL)
    page.evaluate(_WATCH)
    present.click()
    _drawn(page, name)
    return took


def _chosen(page: Any, model: str) -> Any:
    """Return the option of a model, found by typing its name: the list draws what is in sight."""
    page.get_by_role("combobox", name="Model").press_sequentially(model)
    option = page.get_by_role("option", name=model, exact=True)
    option.wait_for()
    return option


def _timed(page: Any, name: str, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    _drawn(page, name)
    return time.perf_counter() - started


def _drawn(page: Any, name: str) -> None:
    page.get_by_role("heading", name=TITLES[name], exact=True).wait_for()
    page.wait_for_function(_DRAWN, arg=FEWEST_CHARTS.get(name, 0))


def _until_it_answers(server: subprocess.Popen[bytes], address: str) -> None:
    while server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health"):  # noqa: S310
            return
        time.sleep(0.1)
    raise RuntimeError("the dashboard ended")

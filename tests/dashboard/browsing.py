"""The dashboard as its command starts it, and a browser to visit it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

Page = Any  # playwright may be missing
Server = tuple[str, subprocess.Popen[str]]


class Served(NamedTuple):
    """A dashboard that runs, its store, and the record of its connections and look-ups."""

    address: str
    db: str
    record: Path


FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PATIENCE_MS = 240_000  # kernels may have to be compiled
READY = "[data-testid=stApp][data-test-script-state=notRunning]"
ALL_DRAWN = """() => [...document.querySelectorAll('.stPlotlyChart')]
    .every(one => one.querySelector('.main-svg'))"""


def chromium() -> str | None:
    """Return the path of Debian's Chromium, None without one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def tabs() -> Iterator[Callable[[int, str], Page]]:
    """Start Chromium; yield what opens an empty tab of a width and a colour scheme.

    A tab that is closed is emptied and opened again: a new one compiles all scripts anew.
    """
    from playwright import sync_api

    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=FLAGS)
        context, idle = browser.new_context(reduced_motion="reduce"), list[Page]()

        def open_tab(width: int, scheme: str) -> Page:
            tab = idle.pop() if idle else context.new_page()
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme=scheme)
            tab.set_default_timeout(PATIENCE_MS)
            tab.close = lambda: (tab.goto("about:blank"), idle.append(tab))
            return tab

        yield open_tab
        browser.close()


_WATCH = """
import sys

def record(event, arguments):
    if event in {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}:
        asked = [each for each in arguments if isinstance(each, (str, bytes, tuple))]
        with open(%r, "a") as file:
            print(event, *asked, file=file)

sys.addaudithook(record)
"""


@contextmanager
def serving(
    db: str, cwd: str | None = None, record: Path | None = None, folder: Path | None = None
) -> Iterator[Server]:
    """Run `kvscope dashboard` on this store; yield its address and its process.

    Its pages may read files below `folder`. It writes each connection and each look-up of a name to
    `record`, which lies in a folder of its own.
    """
    port = free_port()
    if record is not None:
        (record.parent / "sitecustomize.py").write_text(_WATCH % str(record))
    arguments = ["dashboard", "--db", db, "--port", str(port)]
    arguments += ["--folder", str(folder)] if folder else []
    importable = [*([record.parent] if record else []), *sys.path]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvscope", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, importable))},
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, process)
        yield address, process
    finally:
        process.terminate()
        process.communicate(timeout=30)


_HOLDS = """
import sys
from kvscope.store.db import open_store
with open_store(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holding(db: str) -> Iterator[int]:
    """Have another process write to this store; yield the number of the process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, db],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        yield holder.pid
        holder.communicate("\n")


def free_port() -> int:
    """Return a port that no process listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(address: str, process: subprocess.Popen[str]) -> None:
    """Wait until the server answers."""
    until = monotonic() + PATIENCE_MS / 1e3
    while monotonic() < until and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health"):  # noqa: S310
            return
        sleep(0.1)
    raise AssertionError(process.communicate())


def outside(url: str, address: str) -> bool:
    """Return whether a request leaves this machine."""
    return url.startswith("http") and not url.startswith(address)


def pick(page: Page, label: str, option: str) -> None:
    """Choose an option of a select box by typing; once more where a new drawing closed its list."""
    from playwright.sync_api import TimeoutError as TooLongError

    box = page.get_by_test_id("stSelectbox").filter(has_text=re.compile(f"^{label}"))
    until = monotonic() + PATIENCE_MS / 1e3
    while True:
        box.evaluate("each => each.scrollIntoView({block: 'center'})")  # its list needs room
        box.locator("input").fill("")  # what an earlier try left there opens no list again
        box.locator("input").fill(option)
        try:
            page.get_by_role("option", name=option, exact=True).click(timeout=5_000)
        except TooLongError:
            if monotonic() > until:
                raise
        else:
            return


def visit(page: Page, name: str) -> None:
    """Go to a page by its link in the sidebar, and wait until it is drawn."""
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, exact=True).wait_for()
    page.wait_for_selector(READY)
    assert page.locator("[data-testid=stException]").count() == 0

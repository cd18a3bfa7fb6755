"""Time every page of the dashboard on a trace.

Arguments: TRACE. Prints the trace's size and seconds per page. Kernels and imports are warm; the
pages' caches are emptied before each first visit.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.workers.browser import PageTimes, browser_times
from dashboard import background_cache
from kvscope.__main__ import prepare_collector
from kvscope.core.files import data_folder

FOLDER = data_folder("dashboard")
PAGES = (
    *("overview", "reuse", "time", "space", "capacity", "lab", "recommendation"),
    "validation",
)
PATIENCE_S = 600
POLL_S = 0.3  # as the pages poll


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace")
    options = parser.parse_args()
    prepare_collector()
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "store.duckdb")
        trace = _ingested(options.trace, db)
        sys.argv = ["app.py", "--db", db]
        pages = _scripts()
        for page, seconds in browser_times(db).items():
            pages.setdefault(page, {}).update(seconds)
    print(json.dumps({"trace": trace, "pages": pages}))


def _ingested(path: str, db: str) -> dict[str, Any]:
    from kvscope.cli.app import run

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(["ingest", path, "--db", db, "--json"])
    if code:
        raise SystemExit(int(code))
    trace: dict[str, Any] = json.loads(printed.getvalue())["trace"]
    return trace


def _scripts() -> PageTimes:
    """Return each page's script times: first visit, second visit, change of a widget."""
    import streamlit as st

    for page in PAGES:  # imports, and kernels from their cache
        _finish(_visited(page)[0])
    times: PageTimes = {}
    for page in PAGES:
        background_cache.settle()  # what the previous page did not wait for
        st.cache_resource.clear()
        started = time.perf_counter()
        app, first_s = _visited(page)
        _finish(app)
        whole_s = time.perf_counter() - started
        again_s = _timed(app.run)
        _ready(page, app)
        times[page] = {
            "first_s": first_s,
            "whole_s": whole_s,
            "again_s": again_s,
            "change_s": _changed(page, app),
        }
    background_cache.settle()
    return times


def _visited(page: str) -> tuple[Any, float]:
    """Return the app at a page and the seconds of its script."""
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_file(str(FOLDER / "app.py"), default_timeout=PATIENCE_S)
    app.query_params["policies"] = "lru,tlru,wa,belady"
    return app, _timed(app.switch_page(f"views/{page}.py").run)


def _finish(app: Any) -> None:
    """Run the page again until nothing is missing."""
    while _busy(app):
        time.sleep(POLL_S)
        app.run()


def _busy(app: Any) -> bool:
    return any(button.key.startswith("stop ") for button in app.button if button.key)


def _ready(page: str, app: Any) -> None:
    """Replay what the page needs before a widget can change; not counted."""
    button = {"lab": "run", "recommendation": "tune"}.get(page)
    if button is None:
        return
    app.button(key=button).click().run()
    _finish(app)


def _changed(page: str, app: Any) -> float:
    """Return the seconds of moving the page's slider or choosing another model."""
    if page == "capacity":
        return _timed(app.select_slider(key="capacity").set_value(1).run)
    if page == "lab":
        at = app.select_slider(key="at")
        return _timed(at.set_value(int(at.options[1].replace(",", ""))).run)
    return _timed(app.selectbox(key="model").set_value("qwen2-7b").run)


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    app = work()
    took = time.perf_counter() - started
    if app.exception or app.error:
        raise RuntimeError(f"{app.exception} {app.error}")
    return took


if __name__ == "__main__":
    main()

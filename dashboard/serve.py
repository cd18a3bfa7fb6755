"""Run Streamlit for `kvscope dashboard`, and prepare the first page while the browser opens."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

import streamlit as st
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dashboard.arguments import arguments
from dashboard.gate import Gate
from kvscope.core.addresses import Address
from kvscope.core.files import data_folder

_TABLES = ("pandas", "pyarrow")  # Streamlit imports them for the first table
_CHARTS = ("Bar", "Heatmap", "Icicle", "Scatter")
_FIRST = "overview"
# Where the server is, which the page would guess from its own address; and one entry of the
# browser's history for a page, where Streamlit makes one for each change of its parameters.
_SCRIPT = """<script>
window.__streamlit = {BACKEND_BASE_URL: location.origin + "/"};
const push = history.pushState.bind(history);
history.pushState = (state, title, url) =>
    new URL(url, location).pathname === location.pathname
        ? history.replaceState(state, title, url) : push(state, title, url);
</script>"""
# Scripts that Streamlit loads when it draws the first table and the first chart.
_LARGE = ("arrowFormatUtils", "DataFrame", "PlotlyChart")
_BLUE, _SKY = "#0072B2", "#56B4E9"  # of the charts
SETTINGS = {
    "server.headless": True,
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": False,
    "logger.level": "warning",  # where it listens has been said
    "logger.hideWelcomeMessage": True,  # it would look up this machine's outside address
    "client.showErrorDetails": "none",
    "client.toolbarMode": "viewer",
    "client.allowedOrigins": [],  # pages that frame this one and may then control it
    "theme.light.primaryColor": _BLUE,  # a colour for both would leave no dark theme
    "theme.dark.primaryColor": _SKY,
}
_OWN = ("render", "upload")


def prepare() -> None:
    """Analyze the trace last worked on, and import what the pages will."""
    import plotly.io
    from plotly import graph_objects
    from plotly.graph_objects import Figure

    from dashboard import background_cache, data
    from kvscope import report
    from kvscope.core.errors import KvscopeError

    with suppress(KvscopeError):  # the pages show what is wrong with the store
        for trace in data.all_traces()[:1]:
            background_cache.findings(trace)
    for name in (*_TABLES, *(f"dashboard.{module}" for module in _OWN)):
        importlib.import_module(name)
    for kind in _CHARTS:  # plotly imports each kind when it is first made
        plotly.io.to_json(Figure(getattr(graph_objects, kind)()))
    for module in pkgutil.iter_modules(report.__path__, f"{report.__name__}."):
        importlib.import_module(module.name)


def page_file(request: Request) -> Response:
    """Return Streamlit's page with kvscope's title and script; what is large is loaded at once."""
    if request.url.path == f"/{_FIRST}":  # which Streamlit serves at / alone
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/{query}")
    return HTMLResponse(_page_text(), headers={"Cache-Control": "no-cache"})


@cache
def _page_text() -> str:
    static = Path(st.__file__).parent / "static"
    large = [path for name in _LARGE for path in static.glob(f"static/js/{name}.*.js")]
    links = "".join(
        f'<link rel="modulepreload" crossorigin href="/{path.relative_to(static)}">'
        for path in large
    )
    text = (static / "index.html").read_text("utf-8")
    text = text.replace("<title>Streamlit</title>", f"<title>kvscope</title>{_SCRIPT}")
    # Scripts and fonts lie at the root, not next to the page.
    return text.replace('="./', '="/').replace("</head>", f"{links}</head>")


def serve() -> None:
    """Serve the pages until SIGTERM. The first line of standard input is the token, if any."""
    stated, folder = arguments(), data_folder("dashboard")
    address = Address(stated.host, stated.port, sys.stdin.readline().strip() or None)
    pages = [path.stem for path in (folder / "views").glob("[!_]*.py")]
    app = st.App(
        folder / "app.py",
        routes=[Route(path, page_file) for path in ("/", *(f"/{page}" for page in pages))],
        middleware=[Middleware(Gate, address=address)],
    )
    app.run(config=SETTINGS | {"server.address": stated.host, "server.port": stated.port})


def end(code: object) -> NoReturn:
    """End at once: threads that still use DuckDB would complain while it is torn down."""
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    threading.Thread(target=prepare, name="prepare", daemon=True).start()
    try:
        serve()
    except SystemExit as done:
        end(done.code)
    end(0)

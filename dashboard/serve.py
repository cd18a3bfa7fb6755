"""Run Streamlit for `kvscope dashboard`, and prepare the first page while the browser opens.

Admitted are requests that name this server, come from its own pages and know its token. A page of
another site can have a browser send requests here: under a host name that it points at this machine
(DNS rebinding), or with an `Origin` of its own. Both are refused before Streamlit sees them;
Streamlit would look up this machine's outside address to judge an `Origin`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import threading
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

import streamlit as st
from msgspec import Struct
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from dashboard.arguments import arguments
from kvscope.core.addresses import Address, hostname, is_same
from kvscope.core.files import data_folder

TOKEN = "token"  # noqa: S105  (the name of the query parameter)
_REQUESTS = {"http", "websocket"}
_UNFRAMED = (b"content-security-policy", b"frame-ancestors 'none'")
_OPEN_AS = "Open the address that `kvscope dashboard` printed.\n"


class Gate(Struct, frozen=True):
    """ASGI middleware that refuses other requests with 400 and 403, web sockets' included.

    No page may frame what is answered: clicks there would be this server's own.
    """

    app: ASGIApp
    address: Address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a refusal or with the token's cookie."""

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], _UNFRAMED]}
            await send(message)

        answer = self._answer(HTTPConnection(scope)) if scope["type"] in _REQUESTS else None
        if answer is not None and scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)  # before it is accepted: 403
        else:
            await (answer or self.app)(scope, receive, sealed)

    def _answer(self, request: HTTPConnection) -> Response | None:
        """Return what to answer in place of Streamlit, None for a request to pass on."""
        authority = request.headers.get("host", "")
        if not self.address.names(hostname(authority)):
            return PlainTextResponse(f"This server does not answer to that host. {_OPEN_AS}", 400)
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != authority:
            return PlainTextResponse(f"Another site may not use this server. {_OPEN_AS}", 403)
        token = self.address.token
        if token is None:
            return None
        cookie = f"kvscope_{self.address.port}"  # browsers share cookies between ports
        value = sha256(token.encode()).hexdigest()  # a token may hold what a cookie may not
        if is_same(request.cookies.get(cookie, ""), value):
            return None
        if request.scope["type"] == "http" and is_same(request.query_params.get(TOKEN, ""), token):
            rest = [pair for pair in request.query_params.multi_items() if pair[0] != TOKEN]
            query = f"?{urlencode(rest)}" if rest else ""
            redirect = RedirectResponse(f"/{request.url.path.lstrip('/')}{query}", 303)
            redirect.set_cookie(cookie, value, httponly=True, samesite="lax")
            return redirect
        return PlainTextResponse(f"This server needs its token. {_OPEN_AS}", 403)


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

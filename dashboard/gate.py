"""Admit requests that name this server, come from its own pages and know its token.

A page of another site can have a browser send requests here: under a host name that it points at
this machine (DNS rebinding), or with an `Origin` of its own. Both are refused before Streamlit
sees them; Streamlit would look up this machine's outside address to judge an `Origin`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from secrets import compare_digest
from urllib.parse import urlencode, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

TOKEN = "token"  # noqa: S105  (the name of the query parameter)
_REQUESTS = {"http", "websocket"}
_OPEN_AS = "Open the address that `kvscope dashboard` printed.\n"


@dataclass(frozen=True, slots=True)
class Address:
    """What this server is bound to, and the token to know, None where it needs none."""

    host: str
    port: int
    token: str | None = None

    def names(self, host: str) -> bool:
        """Return whether `host`, of a header and without a port, names this server."""
        bound = _ip(self.host)
        if bound is not None and bound.is_unspecified and _ip(host) is not None:
            return True  # one of this machine's addresses: no name that could be pointed here
        names = {self.host.lower()}
        if self.host.lower() == "localhost" or (bound is not None and bound.is_loopback):
            names |= {"localhost", "127.0.0.1", "::1"}
        else:
            names |= {"localhost", socket.gethostname().lower()}
        return host.lower().removesuffix(".") in names


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware that refuses other requests with 400 and 403, web sockets' included."""

    app: ASGIApp
    address: Address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a refusal or with the token's cookie."""
        answer = self._answer(HTTPConnection(scope)) if scope["type"] in _REQUESTS else None
        if answer is not None and scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)  # before it is accepted: 403
        else:
            await (answer or self.app)(scope, receive, send)

    def _answer(self, request: HTTPConnection) -> Response | None:
        """Return what to answer in place of Streamlit, None for a request to pass on."""
        authority = request.headers.get("host", "")
        if not self.address.names(_hostname(authority)):
            return PlainTextResponse(f"This server does not answer to that host. {_OPEN_AS}", 400)
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != authority:
            return PlainTextResponse(f"Another site may not use this server. {_OPEN_AS}", 403)
        token = self.address.token
        if token is None:
            return None
        cookie = f"kvscope_{self.address.port}"  # browsers share cookies between ports
        value = sha256(token.encode()).hexdigest()  # a token may hold what a cookie may not
        if _equal(request.cookies.get(cookie, ""), value):
            return None
        if request.scope["type"] == "http" and _equal(request.query_params.get(TOKEN, ""), token):
            rest = [pair for pair in request.query_params.multi_items() if pair[0] != TOKEN]
            query = f"?{urlencode(rest)}" if rest else ""
            redirect = RedirectResponse(f"/{request.url.path.lstrip('/')}{query}", 303)
            redirect.set_cookie(cookie, value, httponly=True, samesite="lax")
            return redirect
        return PlainTextResponse(f"This server needs its token. {_OPEN_AS}", 403)


def _equal(text: str, token: str) -> bool:
    return compare_digest(text.encode(), token.encode())


def _hostname(authority: str) -> str:
    """Return the host of a `Host` header, an empty text for one that cannot be read."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None

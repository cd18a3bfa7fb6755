"""Admit requests that name this server, come from its own pages and know its token.

A page of another site can have a browser send requests here: under a host name that it points at
this machine (DNS rebinding), or with an `Origin` of its own. Both are refused before Streamlit
sees them; Streamlit would look up this machine's outside address to judge an `Origin`.
"""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import urlencode, urlsplit

from msgspec import Struct
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from kvscope.core.addresses import Address, hostname, is_same

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

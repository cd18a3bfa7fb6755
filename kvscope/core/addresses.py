"""What a server of kvscope is bound to, by which names it answers, and the token that it needs."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from secrets import compare_digest
from urllib.parse import urlsplit

from msgspec import Struct


class Address(Struct, frozen=True):
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


def is_same(text: str, token: str) -> bool:
    """Return whether two texts are the same, in a time that does not say where they differ."""
    return compare_digest(text.encode(), token.encode())


def hostname(authority: str) -> str:
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

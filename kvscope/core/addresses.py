"""A server's bind address, the host names that it answers to, and its access token."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from secrets import compare_digest
from urllib.parse import urlsplit

from msgspec import Struct


class Address(Struct, frozen=True):
    """A server's bind address, and the access token of its clients, None if it needs none."""

    host: str
    port: int
    token: str | None = None

    def names(self, host: str) -> bool:
        """Return whether `host` (from a header, without a port) names this server."""
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
    """Return whether two texts are equal, in a time that does not depend on where they differ."""
    return compare_digest(text.encode(), token.encode())


def hostname(authority: str) -> str:
    """Return the host of a `Host` header, an empty text if it cannot be parsed."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None

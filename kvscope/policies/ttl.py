"""LRU with a time to live."""

from __future__ import annotations

from msgspec.structs import replace

from kvscope.policies.base import TTL
from kvscope.policies.lru import Lru


class Ttl(Lru):
    """LRU that also drops blocks which no request touched for `ttl_s`, full or not.

    Other path policies take `ttl_s` as a parameter of their own.
    Source: "Layer your cache system like a wedding cake", time to live.
    """

    name = "ttl"
    summary = "LRU that also drops what was not touched for a while"
    source = "wedding-cake caching"
    parameters = (
        replace(TTL, default=600.0, search=(60.0, 300.0, 600.0, 1800.0, 3600.0), required=True),
    )

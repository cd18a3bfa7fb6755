"""Charges of providers for a trace with prompt caching, by the offers in `prices.toml`."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Prompts
from kvscope.replay.traffic import Traffic, traffic
from kvscope.retention.ttls import NOT_HELD, replay_ttls, ttl_curves

PROVIDER = HitDefinition("provider", last_token_rule=False, outputs="ignored")
"""Providers cache prompts alone: an answer is cached as part of the next turn's prompt."""

Multiple = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider's offer of prompt caching, as in `prices.toml`.

    Prices are multiples of that of an uncached input token: of a token written to the cache
    (`write`), read from it (`read`), and held for an hour (`storage_per_hour`). Prompts below
    `minimum_tokens` are not cached; prefixes are read in steps of `step_tokens` beyond it. `ttl_s`
    is the TTL after the last use, None where the client may choose any.
    """

    provider: str
    name: str
    write: Multiple
    read: Multiple
    minimum_tokens: Annotated[int, msgspec.Meta(ge=0)]
    source: str
    ttl_s: float | None = None
    step_tokens: Annotated[int, msgspec.Meta(ge=1)] = 1
    storage_per_hour: Multiple = 0.0
    note: str = ""


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All known offers, and the date on which their sources were read."""

    schema: int
    date: str
    offer: tuple[Offer, ...]


class Charge(Struct, frozen=True):
    """A provider's charge for a trace's input tokens under one offer.

    `cost_ratio` is relative to no caching. `storage` is the charge for it in uncached input tokens.
    """

    DOCUMENT: ClassVar[str] = (
        "provider=offer.provider offer=offer.name ttl_s write=offer.write read=offer.read"
        " minimum_tokens=offer.minimum_tokens read_tokens written_tokens storage cost_ratio"
        " note=offer.note source=offer.source"
    )
    offer: Offer
    ttl_s: float
    read_tokens: int
    written_tokens: int
    storage: float
    cost_ratio: float

    @property
    def offered(self) -> str:
        """The provider and the name of the offer."""
        return f"{self.offer.provider} {self.offer.name}"


@cache
def prices() -> Prices:
    """Return the offers of `prices.toml`."""
    path = Path(__file__).with_name("prices.toml")
    return msgspec.toml.decode(path.read_bytes(), type=Prices)


def charges(prompts: Prompts) -> tuple[Charge, ...]:
    """Return the charges of each offer, sorted by provider, then by cost.

    Of a prompt of at least the offer's minimum, cached tokens (in whole blocks of the trace) are
    charged as read, the others as written; each use renews the TTL. If the client chooses the TTL,
    it is the one with the lowest charge, computed before minimum and steps are applied.
    """
    requests = traffic(prompts, PROVIDER)
    known = [_charge(requests, offer) for offer in prices().offer]
    return tuple(sorted(known, key=lambda charge: (charge.offer.provider, charge.cost_ratio)))


def _charge(requests: Traffic, offer: Offer) -> Charge:
    ttl_s = _cheapest_ttl(requests, offer) if offer.ttl_s is None else offer.ttl_s
    tokens = requests.input_tokens.astype(np.int64)
    cached = tokens >= offer.minimum_tokens
    held = replay_ttls(requests, np.where(cached, ttl_s, NOT_HELD))
    read = _readable(held.hit_blocks.astype(np.int64) * requests.block_size, offer)
    written = np.where(cached, tokens - read, 0)
    storage = offer.storage_per_hour * held.block_seconds * requests.block_size / 3600
    plain = int(tokens.sum())
    more = (offer.read - 1) * int(read.sum()) + (offer.write - 1) * int(written.sum()) + storage
    ratio = 1 + more / plain if plain else math.nan
    return Charge(offer, ttl_s, int(read.sum()), int(written.sum()), storage, ratio)


def _readable(hit_tokens: Int64s, offer: Offer) -> Int64s:
    """Return the cached tokens billed as reads: 0 below the offer's minimum, else whole steps."""
    beyond = hit_tokens - offer.minimum_tokens
    return np.where(beyond >= 0, hit_tokens - beyond % offer.step_tokens, 0)


def _cheapest_ttl(requests: Traffic, offer: Offer) -> float:
    """Return the TTL, in seconds, with the largest saving after the cost of storage."""
    curve = ttl_curves(requests, 0).overall
    ttl_s: Float64s = curve.knots()
    stored = offer.storage_per_hour * curve.held(ttl_s) * requests.block_size / 3600
    saved = (offer.write - offer.read) * curve.hits(ttl_s)
    return float(ttl_s[np.argmax(saved - stored)])

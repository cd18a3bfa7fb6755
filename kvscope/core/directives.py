"""What a client states about how long its blocks are to live: retention directives of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Struct

if TYPE_CHECKING:  # a stored trace is looked up without loading NumPy
    from kvscope.core.arrays import Int32s, Int64s

DEFAULT_PRIORITY = 35
"""Of blocks without a directive. Source: TensorRT-LLM, KvCacheRetentionConfig."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=100)]
TtlSeconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Retain(msgspec.Struct, frozen=True, omit_defaults=True, rename={"start": "from"}):
    """How to retain the prompt's tokens from `start` until before `to` (None: its output too).

    `ttl_s` counts from the request; None: for good. `priority` (0–100, higher stays longer) holds
    so long, then the default one.
    """

    start: Tokens = 0
    to: Tokens | None = None
    priority: Priority = DEFAULT_PRIORITY
    ttl_s: TtlSeconds | None = None


class Directives(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one request states: `retain` by range of tokens; the last that covers a token counts.

    `ends`: the conversation has ended. `pause`: the next turn comes after a pause, such as a tool
    call. `refresh`: False if the request is not to renew what others stated about its blocks.
    """

    retain: tuple[Retain, ...] = ()
    refresh: bool = True
    ends: bool = False
    pause: bool = False

    @property
    def text(self) -> str:
        """The directives as JSON, equal for equal ones."""
        return msgspec.json.encode(self).decode()


class StatedDirectives(Struct, frozen=True):
    """The directives of R requests: `number` (R entries) is an index into `distinct`, -1: none."""

    number: Int32s
    distinct: tuple[Directives, ...]

    def select(self, requests: Int64s) -> StatedDirectives:
        """Return the directives of the requests with these numbers."""
        return StatedDirectives(self.number[requests], self.distinct)

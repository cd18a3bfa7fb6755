"""Mooncake JSONL with nothing but its own fields, so that every tool that reads it can."""

from __future__ import annotations

import math

import msgspec

from kvscope.ingest.export.base import LineExporter, Row
from kvscope.ingest.formats.mooncake import Mooncake


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None
    block_size: int | None = None


class MooncakeExport(LineExporter):
    """Times, lengths and blocks: no conversations, turns, users or types.

    Conversations can be inferred again from the prompts. Times that are no whole milliseconds are
    written as fractions of one, exact to a float's last place.
    """

    name = Mooncake.name
    summary = Mooncake.summary

    def line(self, row: Row, block_size: int) -> _Line:
        """A line in the field order of the published trace."""
        return _Line(
            timestamp=milliseconds(row.arrival_s),
            input_length=row.input_tokens,
            output_length=row.output_tokens,
            hash_ids=row.hash_ids or None,
            block_size=None if block_size == Mooncake.default_block_size else block_size,
        )


def milliseconds(seconds: float) -> int | float:
    """The number of ms that gives `seconds` again when divided by 1,000, where there is one."""
    nearest = round(seconds * 1000)
    if nearest / 1000 == seconds:
        return nearest
    scaled = seconds * 1000
    around = (scaled, math.nextafter(scaled, 0), math.nextafter(scaled, math.inf))
    return next((one for one in around if one / 1000 == seconds), scaled)

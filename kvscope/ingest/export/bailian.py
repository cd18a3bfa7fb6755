"""Qwen-Bailian JSONL, as the ATC'25 traces are published."""

from __future__ import annotations

import msgspec

from kvscope.ingest.export.base import LineExporter, Row
from kvscope.ingest.formats.bailian import Bailian
from kvscope.ingest.identifiers import ROOT


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    chat_id: int
    parent_chat_id: int
    user_id: int | None = None
    timestamp: float
    input_length: int
    output_length: int
    type: str
    turn: int
    hash_ids: list[int] | None = None
    block_size: int | None = None


class BailianExport(LineExporter):
    """Everything but how conversations are known: an inferred parent is written as a given one.

    Also lost: ids that were strings (their digests are written), what the original block hashes
    were, and whether a parent that the trace names was missing from it.
    """

    name = Bailian.name
    summary = Bailian.summary

    def line(self, row: Row, block_size: int) -> _Line:
        """A line in the field order of the published traces."""
        return _Line(
            chat_id=row.chat_id,
            parent_chat_id=ROOT if row.parent_chat_id is None else row.parent_chat_id,
            user_id=row.user_id,
            timestamp=row.arrival_s,
            input_length=row.input_tokens,
            output_length=row.output_tokens,
            type=row.type,
            turn=row.turn,
            hash_ids=row.hash_ids or None,
            block_size=None if block_size == Bailian.default_block_size else block_size,
        )

"""The Qwen-Bailian format: JSON lines with chat ids, seconds, and blocks of 16 tokens."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kvscope.ingest.formats.base import ROOT, Identifier, Request, common_keys, in_seconds
from kvscope.ingest.formats.exporter import LineExporter, milliseconds
from kvscope.ingest.formats.json_lines import RowFormat, ServiceRow

_ROOT = str(ROOT)
_SPELLED = {
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "arrival_s": "timestamp",
    "delay_s": "delay_ms",
}


class _BailianRow(ServiceRow, gc=False, kw_only=True, rename=_SPELLED):
    """A line as it is written; unknown fields are ignored.

    It has all attributes of a `Request` and is used as one: converting takes as long as decoding.
    """

    chat_id: Identifier
    input_tokens: int
    output_tokens: int
    parent_chat_id: Identifier | None = None
    arrival_s: float | None = None
    timestamp_ms: float | None = None
    type: str | None = None
    turn: int | None = None
    hash_ids: msgspec.Raw = msgspec.Raw()
    request_id: Identifier | None = None  # not needed beside chat_id
    user_id: Identifier | None = None
    block_size: int | None = None
    delay_s: float | None = None  # decoded as ms
    waits_for: Identifier | None = None
    clock: Identifier | None = None  # of kvscope's exports
    session_id: ClassVar[None] = None
    scope: ClassVar[None] = None


class Bailian(RowFormat):
    """Qwen-Bailian JSONL; `chat_id` distinguishes it from the other JSON lines."""

    name = "bailian"
    summary = "Qwen-Bailian JSONL: chat ids, times in s, blocks of 16 tokens"
    source = "Qwen-Bailian anonymized traces (KVCache Cache in the Wild, ATC'25)"
    fields = ("chat_id", "timestamp", "input_length", "output_length", "hash_ids")
    default_block_size = 16
    places_sessions = True  # of an export whose rows have a clock
    row = _BailianRow

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the lines have the key `chat_id`, but not a session's key `requests`."""
        keys = common_keys(head)
        return "chat_id" in keys and "requests" not in keys

    def request(self, row: _BailianRow) -> Request:
        if row.parent_chat_id == _ROOT:
            row.parent_chat_id = ROOT
        if row.delay_s is not None:
            row.delay_s = in_seconds(row.delay_s)
        if row.arrival_s is None:
            row.arrival_s = in_seconds(row.timestamp_ms)
        return row  # type: ignore[return-value]  # see _BailianRow


class BailianExport(LineExporter):
    """Export of one Bailian line per request.

    Lost: that parents were inferred, or stated but missing from the trace; session ids (parents are
    written), string ids (digests are written), cache salts (numbers are written), block hashes.
    """

    name = Bailian.name
    summary = Bailian.summary

    def line(self, row: Request, block_size: int) -> dict[str, object]:
        """Return a line in the field order of the published traces."""
        return {
            "chat_id": row.chat_id,
            "parent_chat_id": ROOT if row.parent_chat_id is None else row.parent_chat_id,
            "user_id": row.user_id,
            "timestamp": row.arrival_s,
            "clock": row.clock,
            "input_length": row.input_tokens,
            "output_length": row.output_tokens,
            "type": row.type,
            "turn": row.turn,
            "hash_ids": row.hash_ids or None,
            "block_size": None if block_size == Bailian.default_block_size else block_size,
            "model": row.model,
            "lora_name": row.adapter,
            "cache_salt": row.cache_salt,
            "worker": row.worker,
            "ttft_ms": milliseconds(row.ttft_s),
            "queue_ms": milliseconds(row.queue_s),
            "duration_ms": milliseconds(row.duration_s),
            "cached_tokens": row.cached_tokens,
            "delay_ms": milliseconds(row.delay_s),
            "waits_for": row.waits_for,
            "retention": row.retention,
            "repeated_tokens": row.repeated_tokens,
            "parts": row.parts,
        }

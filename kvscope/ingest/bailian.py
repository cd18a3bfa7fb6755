"""The Qwen-Bailian format: JSON lines with chat ids, seconds, and blocks of 16 tokens."""

from __future__ import annotations

import msgspec

from kvscope.ingest.base import Reader, ReadOptions, Request, TraceFormat
from kvscope.ingest.identifiers import ROOT, Identifier
from kvscope.ingest.json_lines import RowReader, common_keys

_ABSENT = msgspec.Raw()
_ROOT = str(ROOT)


class _Row(msgspec.Struct, gc=False):
    """A line as it is written; whatever else it holds is ignored."""

    chat_id: Identifier
    input_length: int
    output_length: int
    parent_chat_id: Identifier | None = None
    timestamp: float | None = None
    type: str | None = None
    turn: int | None = None
    hash_ids: msgspec.Raw = _ABSENT
    user_id: Identifier | None = None
    block_size: int | None = None


class _BailianReader(RowReader[_Row]):
    def request(self, row: _Row) -> Request:
        return Request(
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            arrival_s=row.timestamp,
            hash_ids=row.hash_ids,
            chat_id=row.chat_id,
            parent_chat_id=ROOT if row.parent_chat_id == _ROOT else row.parent_chat_id,
            type=row.type,
            turn=row.turn,
            user_id=row.user_id,
            block_size=row.block_size,
        )


class Bailian(TraceFormat):
    """Qwen-Bailian JSONL; `chat_id` tells it from the other JSON lines."""

    name = "bailian"
    summary = "Qwen-Bailian JSONL: chat_id, timestamp in seconds, blocks of 16 tokens"
    default_block_size = 16

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Whether the lines carry a `chat_id`, and are not sessions."""
        keys = common_keys(head)
        return "chat_id" in keys and "requests" not in keys

    @classmethod
    def reader(cls, options: ReadOptions) -> Reader:
        """A reader of one request a line."""
        return _BailianReader(options, _Row)

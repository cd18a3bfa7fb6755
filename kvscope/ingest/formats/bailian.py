"""The Qwen-Bailian format: JSON lines with chat ids, seconds, and blocks of 16 tokens."""

from __future__ import annotations

from typing import ClassVar, cast

import msgspec

from kvscope.ingest.formats.base import Reader, ReadOptions, Request, TraceFormat
from kvscope.ingest.formats.json_lines import RowReader, common_keys
from kvscope.ingest.identifiers import ROOT, Identifier

_ROOT = str(ROOT)
_SPELLED = {
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "arrival_s": "timestamp",
}


class _Row(msgspec.Struct, gc=False, kw_only=True, rename=_SPELLED):
    """A line as it is written; whatever else it holds is ignored.

    It has all that a `Request` has, and does for one: to make another of each takes as long as to
    decode them.
    """

    chat_id: Identifier
    input_tokens: int
    output_tokens: int
    parent_chat_id: Identifier | None = None
    arrival_s: float | None = None
    type: str | None = None
    turn: int | None = None
    hash_ids: msgspec.Raw = msgspec.Raw()
    user_id: Identifier | None = None
    block_size: int | None = None
    session_id: ClassVar[None] = None
    delay_s: ClassVar[None] = None
    scope: ClassVar[None] = None


class _BailianReader(RowReader[_Row]):
    def request(self, row: _Row) -> Request:
        return self.requests([row])[0]

    def requests(self, rows: list[_Row]) -> list[Request]:
        for row in rows:
            if row.parent_chat_id == _ROOT:
                row.parent_chat_id = ROOT
        return cast(list[Request], rows)


class Bailian(TraceFormat):
    """Qwen-Bailian JSONL; `chat_id` tells it from the other JSON lines."""

    name = "bailian"
    summary = "Qwen-Bailian JSONL: chat ids, times in s, blocks of 16 tokens"
    source = "Qwen-Bailian anonymized traces (KVCache Cache in the Wild, ATC'25)"
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

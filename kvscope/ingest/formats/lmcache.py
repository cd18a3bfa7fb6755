"""LMCache's lookup logs: JSON lines with the hashes of each request's full chunks.

Source: LMCache/LMCache, lmcache/tools/cache_simulator (README.md, simulator.py), commit 090b924.
"""

from __future__ import annotations

import msgspec

from kvscope.ingest.formats.base import Identifier, Request
from kvscope.ingest.formats.json_lines import RowFormat

_NO_OUTPUTS = "lookup logs have no output lengths: taken as 0 tokens"


class _LookupRow(msgspec.Struct, gc=False):
    timestamp: float
    seq_len: int
    chunk_size: int
    chunk_hashes: list[int | str]
    model_name: str | None = None
    request_id: Identifier | None = None


class LmcacheLookups(RowFormat):
    """Logs that LMCache's server writes with --lookup-hash-log-dir."""

    name = "lmcache"
    summary = "LMCache lookup logs: hashes of full chunks, no output lengths"
    source = "LMCache, lmcache/tools/cache_simulator/README.md (commit 090b924)"
    fields = ("timestamp", "seq_len", "chunk_size", "chunk_hashes")
    marks = ("chunk_hashes",)
    default_block_size = 256
    row = _LookupRow

    def request(self, row: _LookupRow) -> Request:
        self.note(_NO_OUTPUTS)
        return Request(
            input_tokens=row.seq_len,
            output_tokens=0,
            arrival_s=row.timestamp,
            hash_ids=row.chunk_hashes,
            block_size=row.chunk_size,
            chat_id=row.request_id,
            model=row.model_name,
        )

"""Tair KVCache's optimizer traces: JSON lines of dialog turns, lookups and writes.

A dialog turn has lengths, a lookup its full blocks only. A write repeats the blocks that a lookup
missed, and is left out. Source: alibaba/tair-kvcache, kv_cache_manager/optimizer/trace_converter
(optimizer_schema_trace.h, optimizer_schema_converter.cc), commit f6aa2b2.
"""

from __future__ import annotations

import msgspec

from kvscope.ingest.formats.base import BadLine, Request
from kvscope.ingest.formats.json_lines import RowFormat

_BLOCK_SIZE = 16
_WRITES = "records of writes, which repeat the blocks of lookups,"
_LOOKUPS = "lookups without lengths: as long as their blocks, with 0 output tokens"


class _TairRow(msgspec.Struct, gc=False):
    timestamp_us: float
    keys: list[int | str]
    instance_id: str | None = None
    input_len: int | None = None
    output_len: int | None = None
    query_type: str | None = None


class Tair(RowFormat):
    """Tair KVCache's optimizer schema; instances, read as the `model`, share no blocks."""

    name = "tair"
    summary = "Tair KVCache optimizer traces: times in us, blocks of 16 tokens"
    source = "alibaba/tair-kvcache, kv_cache_manager/optimizer (commit f6aa2b2)"
    fields = ("timestamp_us", "keys", "input_len", "output_len")
    marks = ("timestamp_us keys",)
    default_block_size = _BLOCK_SIZE
    row = _TairRow

    def request(self, row: _TairRow) -> Request | None:
        inputs = row.input_len
        if inputs is None:
            if row.query_type is None:
                self.left_out[_WRITES] += 1
                return None
            if not row.keys:
                raise BadLine("a lookup without input_len and without keys")
            self.note(_LOOKUPS)
            inputs = len(row.keys) * (self.options.block_size or _BLOCK_SIZE)
        return Request(
            input_tokens=inputs,
            output_tokens=row.output_len or 0,
            arrival_s=row.timestamp_us / 1e6,
            hash_ids=row.keys,
            model=row.instance_id,  # instances share no blocks
        )

"""Writes records as JSONL, compressed by the file's ending, one record at a time."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvscope.ingest.export.sink import sink
from kvscope.synth.base import Record


def write_jsonl(records: Iterable[Record], path: Path | str) -> int:
    """Write a trace file (`-`: standard output); returns the number of records.

    `.gz` and `.zst` endings compress, anything else is plain. Memory: one record.
    Equal records give equal bytes: no time and no file name is stored. The file appears under
    its name only when it is complete.
    """
    encoder = msgspec.json.Encoder()
    line = bytearray()
    count = 0
    with sink(str(path)) as stream:
        for record in records:
            count += 1
            encoder.encode_into(record, line)
            line += b"\n"
            stream.write(line)
    return count

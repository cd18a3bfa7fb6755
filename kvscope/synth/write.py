"""Writes records as JSONL, compressed by the file's ending, one record at a time."""

import gzip
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvscope.synth.base import Record

GZIP_LEVEL = 6
"""Level 9 takes three times as long for files a few percent smaller."""


def write_jsonl(records: Iterable[Record], path: Path) -> int:
    """Write a trace file; returns the number of records. Memory: one record.

    `.gz` and `.zst` endings compress, anything else is plain.
    Equal records give equal bytes: no time and no file name is stored. The file appears under
    its name only when it is complete.
    """
    part = path.with_name(path.name + ".part")
    try:
        with ExitStack() as stack:
            file = stack.enter_context(part.open("wb"))
            count = write_stream(records, _compressed(file, path.suffix, stack))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


def write_stream(records: Iterable[Record], stream: BinaryIO) -> int:
    """Write JSONL to an open binary stream (stdout, say); returns the number of records."""
    encoder = msgspec.json.Encoder()
    line = bytearray()
    count = 0
    for record in records:
        count += 1
        encoder.encode_into(record, line)
        line += b"\n"
        stream.write(line)
    return count


def _compressed(file: BinaryIO, suffix: str, stack: ExitStack) -> BinaryIO:
    """The stream that compresses into `file` as the ending asks."""
    if suffix == ".gz":
        # An empty name and time 0 keep the header the same on every run.
        opened = gzip.GzipFile(
            filename="", mode="wb", fileobj=file, mtime=0, compresslevel=GZIP_LEVEL
        )
        return stack.enter_context(opened)  # type: ignore[return-value]
    if suffix == ".zst":
        import zstandard  # late: the other endings do without

        writer = zstandard.ZstdCompressor(level=10).stream_writer(file, closefd=False)
        return stack.enter_context(writer)
    return file

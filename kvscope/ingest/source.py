"""Bytes of a trace: a path or standard input, plain, gzip or zstd, hashed while they are read."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import zstandard

from kvscope.core.errors import InputError
from kvscope.core.files import STANDARD_STREAM

HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 1024 * 1024
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF8_BOM = b"\xef\xbb\xbf"
_LINE_FEED = ord("\n")


class Source:
    """One pass over a trace's decompressed bytes.

    `advance` gets the number of bytes of each read from disk, for a progress bar.
    """

    def __init__(self, path: str, advance: Callable[[int], None] | None = None) -> None:
        self.path = path
        self._raw = _Counted(_open(path), advance)
        self._stream = _decompressed(self._raw)
        self._digest = hashlib.blake2b(digest_size=16)
        self._line = 0
        try:
            self.head = self._read(HEAD_BYTES)
        except InputError:
            self.close()
            raise

    @property
    def bytes_on_disk(self) -> int:
        """The file's size; for standard input, the bytes read so far."""
        return (
            self._raw.bytes_read if self.path == STANDARD_STREAM else Path(self.path).stat().st_size
        )

    def content_hash(self) -> str:
        """Return the digest of the decompressed bytes read so far (32 hex digits)."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes from the beginning on, about a megabyte at a time."""
        chunk = self.head
        while chunk:
            yield chunk
            chunk = self._read(_CHUNK_BYTES)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines, a chunk's at a time with the number of the first.

        Lines are numbered from 1; a byte order mark and the last line feed are cut off.
        """
        rest = b""
        first = 1
        for chunk in self.chunks():
            whole, feed, rest = (rest + chunk).rpartition(b"\n")
            if feed:
                yield first, whole.removeprefix(_UTF8_BOM) if first == 1 else whole
                first += _line_feeds(whole) + 1
                self._line = first - 1
        self._line = first
        yield first, rest.removeprefix(_UTF8_BOM) if first == 1 else rest

    def drain(self) -> str:
        """Read to the end and return the content hash."""
        for _ in self.chunks():
            pass
        return self.content_hash()

    def _read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise InputError(
                f"the compressed data ends or breaks after line {self._line} ({error})",
                where=self.path,
                remedy="copy the file again, or decompress what can be saved",
            ) from error
        except OSError as error:
            raise InputError(error.strerror or str(error), where=self.path) from error
        self._digest.update(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


def _line_feeds(text: bytes) -> int:
    """Return the number of line feeds without holding the interpreter as `bytes.count` does."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == _LINE_FEED))


class _Counted(io.RawIOBase):
    """A raw stream that reports how far it was read."""

    def __init__(self, raw: BinaryIO, advance: Callable[[int], None] | None) -> None:
        self._inner = raw
        self._advance = advance
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        count = cast(io.BufferedReader, self._inner).readinto(cast(bytearray, buffer))
        self.bytes_read += count
        if self._advance is not None:
            self._advance(count)
        return count

    def close(self) -> None:
        if self._inner is not sys.stdin.buffer:
            self._inner.close()
        super().close()


def _open(path: str) -> BinaryIO:
    if path == STANDARD_STREAM:
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except FileNotFoundError as error:
        raise InputError("no such file", where=path) from error
    except OSError as error:
        raise InputError(error.strerror or str(error), where=path) from error


def _decompressed(raw: _Counted) -> BinaryIO:
    buffered = io.BufferedReader(raw, buffer_size=_CHUNK_BYTES)
    magic = buffered.peek(4)[:4]
    if magic.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=buffered))
    if magic == _ZSTD:
        frames = _Zstd(cast(BinaryIO, buffered))
        return cast(BinaryIO, io.BufferedReader(frames, buffer_size=_CHUNK_BYTES))
    return buffered


class _Zstd(io.RawIOBase):
    """Decompressed zstd frames; unlike zstandard's own reader it detects a cut-off file."""

    def __init__(self, compressed: BinaryIO) -> None:
        self._compressed = compressed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._within_frame = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = cast(memoryview, buffer)
        while not self._ready:
            data = self._compressed.read(HEAD_BYTES)
            if not data:
                if self._within_frame:
                    raise EOFError("zstd frame is incomplete")
                return 0
            self._ready = memoryview(self._decompress(data))
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        parts = []
        while data:
            parts.append(self._frame.decompress(data))
            self._within_frame = not self._frame.eof
            if self._within_frame:
                break
            data = self._frame.unused_data
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        return b"".join(parts)

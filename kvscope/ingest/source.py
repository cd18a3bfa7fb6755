"""Bytes of a trace: a file, several files or standard input, hashed while they are read.

Files are plain, gzip or zstd. The files of a folder, or of a pattern, are read as one file with
lines numbered throughout; `Source.place` returns the file that a line is in.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import zstandard

from kvscope.core.errors import InputError
from kvscope.core.files import (
    STANDARD_STREAM,
    ChunkReader,
    files_of,
    is_remote,
    missing_from,
    opened,
    parts_of,
    size_of,
)
from kvscope.core.units import MIB
from kvscope.ingest.limits import (
    EXPANSION_FREE_BYTES,
    MAX_ENDLESS_BYTES,
    MAX_EXPANSION,
    MAX_LINE_BYTES,
    MAX_REQUESTS,
)

HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 2 << 20
_ZSTD_FEED_BYTES = 512  # at most 16 MiB decompressed: a block of 4 bytes may hold 128 KiB
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF8_BOM = b"\xef\xbb\xbf"
_LINE_FEED = ord("\n")


class Lines(NamedTuple):
    """Whole lines with their line feeds; the last line of a trace may lack its line feed.

    `first` is the number of the first line, from 1. `text` is None for a line that is too long.
    """

    first: int
    text: bytes | None


class Source:
    """One pass over a trace's decompressed bytes, in constant memory.

    `advance` gets the number of bytes of each read from disk, for a progress bar;
    `bytes_decompressed` counts the bytes read so far. After the pass, `is_cut` says whether
    compressed data is incomplete, and `unterminated` is the number of a last line without a line
    feed, else 0. Raises InputError beyond the limits of files.
    """

    def __init__(self, path: str, advance: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.is_cut = False
        self.unterminated = 0
        self._files = list[tuple[int, str]]()  # with the number of each one's first line
        raw = _open(path)
        self._begins = raw.begins if isinstance(raw, _Joined) else deque[tuple[int, str]]()
        self._raw = _Counted(raw, advance)
        self._digest = hashlib.blake2b(digest_size=16)
        self._line = 0
        self.bytes_decompressed = 0
        try:
            self._stream = _decompressed(self._raw)
            self.head = self._read(HEAD_BYTES)
            self._check_head()
        except BaseException:
            self.close()
            raise

    @property
    def bytes_on_disk(self) -> int:
        """The size of the files; where unknown, the bytes read so far."""
        size = None if self.path == STANDARD_STREAM else size_of(self.path)
        return self._raw.bytes_read if size is None else size

    def content_hash(self) -> str:
        """Return the digest of the decompressed bytes read so far (32 hex digits)."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes from the beginning on, some megabytes at a time."""
        chunk = self.head
        while chunk:
            yield chunk
            chunk = self._read(_CHUNK_BYTES)

    def lines(self) -> Iterator[Lines]:
        """Yield the whole lines of one chunk after another, without a byte order mark.

        A line longer than MAX_LINE_BYTES comes alone, with None as its text.
        """
        first, parts, size = 1, list[bytes](), 0  # of the line that goes on in the next chunk
        offset = 0
        for chunk in self.chunks():
            while self._begins and (at := self._begins[0][0] - offset) < len(chunk):
                self.begin_file(first + chunk.count(b"\n", 0, at), self._begins.popleft()[1])
            offset += len(chunk)
            end = chunk.find(b"\n")
            if end >= 0 and size + end > MAX_LINE_BYTES:
                yield Lines(first, None)
                first, parts, size = first + 1, [], 0
                chunk = chunk[end + 1 :]  # noqa: PLW2901  (what follows the long line)
            end = chunk.rfind(b"\n") + 1
            rest = chunk[end:]
            if end:
                text = b"".join([*parts, memoryview(chunk)[:end]])
                characters = np.frombuffer(text, dtype=np.uint8)
                yield Lines(first, text.removeprefix(_UTF8_BOM) if first == 1 else text)
                first += int(np.count_nonzero(characters == _LINE_FEED))  # `count` holds the GIL
                parts, size = [], 0
            size += len(rest)
            parts = [*parts, rest] if size <= MAX_LINE_BYTES else []
            self._line = first
            self._check_lines(first, size)
        if size > MAX_LINE_BYTES:
            yield Lines(first, None)
        elif size:
            self.unterminated = first
            rest = b"".join(parts)
            yield Lines(first, rest.removeprefix(_UTF8_BOM) if first == 1 else rest)

    def begin_file(self, line: int, path: str) -> None:
        """Record `line` as the first line of the file at `path`, one of several."""
        self._files.append((line, path))

    @property
    def has_several_files(self) -> bool:
        """Return True once `begin_file` has recorded a file: one of several, or Parquet."""
        return bool(self._files)

    def place(self, line: int) -> tuple[str, int]:
        """Return the file that a line read so far is in, and the line's number in that file."""
        at = bisect_right(self._files, line, key=lambda file: file[0]) - 1
        if at < 0:
            return self.path, line
        first, path = self._files[at]
        return path, line - first + 1

    def line_in_words(self, line: int) -> str:
        """Return `line 1,204`, with the file where there are several."""
        path, number = self.place(line)
        return f"line {number:,}" + (f" of {path}" if path != self.path else "")

    def drain(self) -> str:
        """Read to the end and return the content hash."""
        for _ in self.chunks():
            pass
        return self.content_hash()

    def _read(self, size: int) -> bytes:
        """Return `size` decompressed bytes, or fewer at the end."""
        parts = []
        try:
            while size and (part := self._stream.read1(size)):
                parts.append(part)
                size -= len(part)
        except EOFError:
            self.is_cut = True
        except (zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            begun = (self._begins[-1][1], 0) if self._begins else None
            path, line = begun or self.place(self._line)
            raise InputError(
                f"the compressed data is damaged after line {line} ({error})",
                where=path,
                remedy="copy the file again, or decompress what can be saved",
            ) from error
        except OSError as error:
            raise InputError(error.strerror or str(error), where=self.path) from error
        data = b"".join(parts)
        self._digest.update(data)
        self.bytes_decompressed += len(data)
        if self.bytes_decompressed > max(
            EXPANSION_FREE_BYTES, MAX_EXPANSION * self._raw.bytes_read
        ):
            raise InputError(
                f"decompresses to more than {MAX_EXPANSION:,} times its size, as no trace does",
                where=self.path,
                remedy="decompress it first, if it is one",
            )
        return data

    def _check_head(self) -> None:
        if self.is_cut and not self.head:
            raise InputError(
                "the compressed data is cut before its first line",
                where=self.path,
                remedy="copy the file again",
            )

    def _check_lines(self, line: int, size: int) -> None:
        """Raise InputError for too many lines, or too many bytes (`size`) without a line feed."""
        if line > MAX_REQUESTS:
            raise InputError(
                f"more than {MAX_REQUESTS:,} lines",
                where=self.path,
                remedy="split the trace, or take part of it",
            )
        if size > MAX_ENDLESS_BYTES:
            raise InputError(
                f"no line feed within {MAX_ENDLESS_BYTES // MIB} MiB: not lines of text",
                where="{}:{}".format(*self.place(line)),
                remedy="see `kvscope formats`",
            )

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


class _Counted(io.RawIOBase):
    """A raw stream that counts the bytes read from disk, and reports them to `advance`."""

    def __init__(self, raw: BinaryIO, advance: Callable[[int], None] | None) -> None:
        self._inner = raw
        self._advance = advance
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        count = cast(io.BufferedReader, self._inner).readinto(cast(bytearray, buffer))
        inner = self._inner
        read = inner.bytes_read - self.bytes_read if isinstance(inner, _Joined) else count
        self.bytes_read += read
        if self._advance is not None:
            self._advance(read)
        return count

    def close(self) -> None:
        if self._inner is not sys.stdin.buffer:
            self._inner.close()
        super().close()


class _Joined(ChunkReader):
    """Decompressed files one after another, with a line feed between where the first lacks one.

    `begins`: offset of the first byte, and path, of each file opened but not yet seen by `Source`.
    """

    def __init__(self, files: list[str]) -> None:
        self.begins = deque[tuple[int, str]]()
        self._files = iter(files)
        self._size = 0  # of what was returned so far
        self._raw: _Counted | None = None
        self._current: io.BufferedIOBase | None = None
        self._ended = True  # by a line feed
        self.bytes_read = 0  # from disk

    def _count(self, size: int) -> None:
        self.bytes_read += size

    def chunk(self, size: int) -> bytes:
        while True:
            if self._current is None:
                file = next(self._files, None)
                if file is None:
                    return b""
                if not self._ended:
                    self._files = chain([file], self._files)
                    self._ended = True
                    self._size += 1
                    return b"\n"
                self.begins.append((self._size, file))
                self._raw = _Counted(_opened(file), self._count)
                self._current = _decompressed(self._raw)
            if data := self._current.read1(size):
                self._ended = data.endswith(b"\n")
                self._size += len(data)
                return data
            self._close_current()

    def close(self) -> None:
        self._close_current()
        super().close()

    def _close_current(self) -> None:
        if self._raw is not None:
            self._raw.close()  # which a stream that decompresses leaves open
        self._raw = self._current = None


def _open(path: str) -> BinaryIO:
    if path == STANDARD_STREAM:
        return sys.stdin.buffer
    if missing := missing_from(path):
        where = path if missing == parts_of(path) else missing[0]
        raise InputError("no such file", where=where)
    try:
        if (files := files_of(path)) != [path]:
            return cast(BinaryIO, _Joined(files))
        return _opened(path)
    except FileNotFoundError as error:
        raise InputError("no such file", where=path) from error
    except OSError as error:
        raise InputError(error.strerror or str(error), where=path) from error


def _opened(path: str) -> BinaryIO:
    if is_remote(path):
        from kvscope.core.remote import open_remote  # loads HTTP

        return open_remote(path)
    return opened(Path(path))


def _decompressed(raw: _Counted) -> io.BufferedIOBase:
    """Return a decompressed stream; where its data is cut, it ends in EOFError."""
    buffered = io.BufferedReader(raw, buffer_size=_CHUNK_BYTES)
    magic = buffered.peek(4)[:4]
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=buffered)
    if magic == _ZSTD:
        return io.BufferedReader(_Zstd(buffered), buffer_size=_CHUNK_BYTES)
    return buffered


class _Zstd(ChunkReader):
    """Decompressed zstd frames; unlike zstandard's own reader it detects a cut-off file."""

    def __init__(self, compressed: io.BufferedIOBase) -> None:
        self._compressed = compressed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._within_frame = False
        self._ready = memoryview(b"")

    def chunk(self, size: int) -> memoryview:
        while not self._ready:
            data = self._compressed.read(_ZSTD_FEED_BYTES)
            if not data:
                if self._within_frame:
                    raise EOFError("zstd frame is incomplete")
                break
            self._ready = memoryview(self._decompress(data))
        ready, self._ready = self._ready[:size], self._ready[size:]
        return ready

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

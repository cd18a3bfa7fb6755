"""Follow a file, or the latest file of a folder, while another process writes lines to it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from kvscope.ingest.limits import MAX_LINE_BYTES

CHUNK_BYTES = 8 << 20  # of one read, so that a long file is read in steps
LAST_BYTES = 4096  # of what was read; other bytes there are of a file that was truncated
FILES_AT_START = 2  # of a folder: the file being written, and the one before
_NUMBER = re.compile(r"-\d+(?=\.[^.]*$)")


class Follower:
    """Reader of the whole lines added to a file since the last call.

    A replaced (rotated) file is read to its end, then the new one from its beginning. A truncated
    file is read from its beginning again, even if it has outgrown its former size. A folder's
    *.jsonl files are read in order of name, from the last but one of the latest recording (its
    names differ only in the final number) on. `switches` counts openings after the first (also of a
    truncated file), `recordings` those of another recording. A line without a line feed is kept
    until the next opening; a blank line, or one longer than MAX_LINE_BYTES, is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.switches = self.recordings = 0
        self._file: BinaryIO | None = None
        self._current: Path | None = None
        self._rest = self._last = b""
        self._too_long = False

    def lines(self) -> list[bytes]:
        """Return the new whole lines, without line feeds; reads at most CHUNK_BYTES."""
        if self._file is None and not self._open_next():
            return []
        data = self._read()
        if not data and self._has_successor():
            data = self._read()  # what was written since the last look
            if not data and self._open_next():
                data = self._read()
        return self._split(data) if data else []

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> bytes:
        """Return up to CHUNK_BYTES new bytes; none if the file was truncated."""
        assert self._file is not None  # noqa: S101  (`lines` opened it)
        data = b"" if self._is_truncated() else self._file.read(CHUNK_BYTES)
        self._last = (self._last + data[-LAST_BYTES:])[-LAST_BYTES:]
        return data

    def _is_truncated(self) -> bool:
        """Return whether the file has lost or changed the bytes read last."""
        assert self._file is not None  # noqa: S101
        place = self._file.tell() - len(self._last)
        return os.pread(self._file.fileno(), len(self._last), place) != self._last

    def _split(self, data: bytes) -> list[bytes]:
        *whole, rest = (self._rest + data).split(b"\n")
        if self._too_long and whole:
            del whole[0]
            self._too_long = False
        if self._too_long or len(rest) > MAX_LINE_BYTES:
            self._too_long, rest = True, b""
        self._rest = rest
        return [line for line in whole if line.strip() and len(line) <= MAX_LINE_BYTES]

    def _files(self) -> list[Path]:
        """Return the files to read, in order of name."""
        if not self.path.is_dir():
            return [self.path]
        return sorted(each for each in self.path.glob("*.jsonl") if each.is_file())

    def _has_successor(self) -> bool:
        """Return whether the current file is truncated or replaced, or another one follows it."""
        assert self._file is not None  # noqa: S101
        assert self._current is not None  # noqa: S101
        if self._is_truncated():
            return True
        with suppress(FileNotFoundError):
            opened, named = os.fstat(self._file.fileno()), self._current.stat()
            if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
                return True
        return self._after(self._current) is not None

    def _after(self, current: Path | None) -> Path | None:
        """Return the file after `current` (None: the file to begin with); None if none exists."""
        files = self._files()
        if current is None:
            latest = [each for each in files if _recording(each) == _recording(files[-1])]
            return latest[-FILES_AT_START:][0] if latest else None
        return next((each for each in files if each.name > current.name), None)

    def _open_next(self) -> bool:
        """Open the next file, or the same path after a rotation; return False if none exists."""
        following = self._after(self._current) or self._current
        if following is None:
            return False
        try:
            file = following.open("rb")
        except FileNotFoundError:
            return False
        if self._file is not None:
            self._file.close()
            self.switches += 1
            if self._current is not None and _recording(following) != _recording(self._current):
                self.recordings += 1
        self._file, self._current = file, following
        self._rest, self._last, self._too_long = b"", b"", False
        return True


def _recording(path: Path) -> str:
    """Return the name of a recording's files without their number."""
    return _NUMBER.sub("", path.name)

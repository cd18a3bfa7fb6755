"""Files of machine code, shared safely by processes, checkouts and CI workers.

A file's name says what it holds, so processes that write the same file write the same content, and
no index has to be kept. Files of other users and damaged ones are never handed out: what is read
here is unpickled and executed. What a wheel brings is trusted as its code is, and only read. Files
are compressed: most of a large kernel is long symbol names and bitcode, and shrinks to a tenth.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import zstandard

from kvscope.core.files import PACKED, is_private, private_cache

UNUSED_DAYS = 30
MAX_BYTES = 256 << 20

_DAY_S = 86_400
_SUFFIX = ".kernel"
_SHIPPED = PACKED / "kernels"
_CHECKSUM_BYTES = 16
# Before kernels had names of their own, a folder held those of one state of the sources.
_OLD_FOLDER = re.compile("kernels-[0-9a-f]{16}")


class KernelFiles:
    """A folder of machine code: one file per kernel, its sources and its argument types."""

    @cached_property
    def folder(self) -> Path:
        """The folder, looked for at its first use: most commands need no kernel to start."""
        return private_cache("kernels")

    @cached_property
    def _lock(self) -> int:
        return os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)

    def has(self, *names: str) -> bool:
        """Return True if there is a file of one of the names, damaged or not."""
        return any(self._path(name).exists() or _shipped(name).exists() for name in names)

    def read(self, *names: str) -> bytes | None:
        """Return the content saved or shipped under the first of the names that has a sound one.

        A damaged file is removed, unless it was shipped.
        """
        for name in names:
            content = self._saved(name)
            if content is None:
                with suppress(OSError):
                    content = _content(name, _shipped(name).read_bytes())
            if content is not None:
                return content
        return None

    def _saved(self, name: str) -> bytes | None:
        try:
            with self._path(name).open("rb") as file:
                status = os.fstat(file.fileno())
                if not is_private(status):
                    return None
                data = file.read()
        except OSError:
            return None
        content = _content(name, data)
        if content is None:
            self.remove(name)
        elif status.st_mtime < time.time() - _DAY_S:  # when it was last used, to the day
            with suppress(OSError):
                os.utime(self._path(name))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Save `content` as `name`, at once for all readers; a full disk only costs the file."""
        with suppress(OSError):
            number, temporary = tempfile.mkstemp(dir=self.folder)
            try:
                compressed = zstandard.compress(content)
                with os.fdopen(number, "wb") as file:
                    file.write(_checksum(name, compressed) + compressed)
                os.replace(temporary, self._path(name))  # noqa: PTH105
            except BaseException:
                os.unlink(temporary)  # noqa: PTH108
                raise
            self._remove_unused()

    def remove(self, name: str) -> None:
        """Remove the file `name`, if it is there."""
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """Let one process at a time make the file `name`; the others then read it.

        Every name locks its own byte of one file. Where files cannot be locked, processes compile
        the same kernel side by side.
        """
        byte = int.from_bytes(_checksum(name, b"")[:7])
        with suppress(OSError):
            fcntl.lockf(self._lock, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, byte)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _remove_unused(self) -> None:
        """Remove files unused for `UNUSED_DAYS`, then the longest unused above `MAX_BYTES`.

        A process that runs a kernel has read its file, so a removed one costs the next process a
        compilation and nothing else.
        """
        now, total = time.time(), 0
        with os.scandir(self.folder) as entries:
            files = [(entry.stat(), entry.path) for entry in entries if entry.name != "lock"]
        for status, path in sorted(files, key=lambda file: -file[0].st_mtime):
            total += status.st_size
            if status.st_mtime < now - UNUSED_DAYS * _DAY_S or total > MAX_BYTES:
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108
        for folder in self.folder.parent.glob("kernels-*"):
            status = folder.lstat()
            is_old = status.st_mtime < now - UNUSED_DAYS * _DAY_S
            if is_old and is_private(status) and _OLD_FOLDER.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)


def _shipped(name: str) -> Path:
    return _SHIPPED / f"{name}{_SUFFIX}"


def _content(name: str, data: bytes) -> bytes | None:
    """Return the content of a file `name`, None of a damaged one."""
    checksum, compressed = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    if checksum != _checksum(name, compressed):
        return None
    try:
        return zstandard.decompress(compressed)
    except zstandard.ZstdError:  # from a version that did not compress
        return None


def _checksum(name: str, content: bytes) -> bytes:
    """Return the checksum of a file's name and content: a file under another's name is damaged."""
    return hashlib.blake2b(name.encode() + b"\0" + content, digest_size=_CHECKSUM_BYTES).digest()

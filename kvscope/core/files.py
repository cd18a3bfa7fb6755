"""Files that appear when they are whole: traces, reports, recommendations, profiles."""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

DASH = "-"


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


@contextmanager
def sink(path: str) -> Iterator[BinaryIO]:
    """Open `path` for writing, compressed as `.gz` or `.zst` ask for; `-` is standard output."""
    if path == DASH:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with whole_file(Path(path)) as file, _compressed(file, Path(path).suffix) as stream:
        yield stream


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; who reads it finds the old content or all of the new.

    The content goes to a temporary file in the same folder, which takes the name only when the
    block ends well. What is there and is no file (a pipe, /dev/null) is written to as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))  # a link stays one
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's is for its owner alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _compressed(file: BinaryIO, suffix: str) -> Iterator[BinaryIO]:
    if suffix == ".gz":
        # Neither name nor time in the header: equal traces give equal bytes.
        with gzip.GzipFile(
            filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6
        ) as packed:
            yield cast(BinaryIO, packed)
    elif suffix == ".zst":
        import zstandard  # reports and recommendations do without it

        with zstandard.ZstdCompressor(level=6).stream_writer(file, closefd=False) as writer:
            yield cast(BinaryIO, writer)
    else:
        yield file

"""Where written traces go: a file that appears when it is whole, or standard output."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

DASH = "-"


@contextmanager
def sink(path: str) -> Iterator[BinaryIO]:
    """Open `path` for writing, compressed as `.gz` or `.zst` ask for; `-` is standard output.

    The file gets its name only when the block ends well, so a broken export leaves none behind.
    What is there and is no file (a pipe, /dev/null) is written to as it is.
    """
    if path == DASH:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    if target.exists() and not target.is_file():
        with _opened(target, target.suffix) as stream:
            yield stream
        return
    part = Path(f"{path}.part")
    try:
        with _opened(part, target.suffix) as stream:
            yield stream
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path, suffix: str) -> Iterator[BinaryIO]:
    with ExitStack() as stack:
        yield _compressed(stack.enter_context(path.open("wb")), suffix, stack)


def _compressed(file: BinaryIO, suffix: str, stack: ExitStack) -> BinaryIO:
    if suffix == ".gz":
        # Neither name nor time in the header: equal traces give equal bytes.
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6)
        return cast(BinaryIO, stack.enter_context(packed))
    if suffix == ".zst":
        writer = zstandard.ZstdCompressor(level=6).stream_writer(file, closefd=False)
        return cast(BinaryIO, stack.enter_context(writer))
    return file

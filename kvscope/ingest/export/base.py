"""The contract of an export format: what one file in this folder has to provide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import BinaryIO, ClassVar

import msgspec

from kvscope.facts import Trace
from kvscope.ingest.export.rows import Row, rows
from kvscope.store.db import Store

Advance = Callable[[int], None]


class Exporter(ABC):
    """One format that traces are written in; its docstring says what it cannot carry.

    Abilities are declared: `is_text` is True where the output may go to a terminal or a pipe of
    lines, `needs_hashes` where a trace that only tells lengths has nothing to say.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    is_text: ClassVar[bool] = True
    needs_hashes: ClassVar[bool] = False

    @abstractmethod
    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write all of `trace` to `stream`, some thousand requests in memory at a time.

        `advance` is told how many requests have been written.
        """


class LineExporter(Exporter):
    """A format of one JSON object a request and line; subclasses write `line` alone."""

    @abstractmethod
    def line(self, row: Row, block_size: int) -> msgspec.Struct:
        """What the line of one request says."""

    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write a line a request."""
        for chunk in _encoded(self, store, trace):
            stream.write(chunk)
            advance(chunk.count(b"\n"))


def _encoded(exporter: LineExporter, store: Store, trace: Trace) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    for chunk in rows(store, trace):
        lines = [encode(exporter.line(row, trace.block_size)) for row in chunk]
        yield b"\n".join([*lines, b""])

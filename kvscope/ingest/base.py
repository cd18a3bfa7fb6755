"""The contract of a trace format: what one file in this folder has to provide.

A format recognizes its traces by their first bytes, and reads them as canonical requests. Most
formats are lines of text: they subclass `LineReader` and write `parse` alone. The loop around it,
defects, interning, lineage and the store are the same for all and live elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from kvscope.errors import InputError
from kvscope.ingest.source import Source

Identifier = int | str


class Request(msgspec.Struct, gc=False, kw_only=True):
    """One request as any trace may tell it; everything but the token counts may be missing.

    `hash_ids` name the prompt's blocks from the first on, a partial last one included or not.
    `scope` marks ids that mean something only inside one session. A request without `arrival_s`
    arrives `delay_s` after its predecessor in its session, or with the line before it.
    """

    input_tokens: int
    output_tokens: int
    arrival_s: float | None = None
    hash_ids: list[int | str] | None = None
    chat_id: Identifier | None = None
    parent_chat_id: Identifier | None = None
    session_id: Identifier | None = None
    delay_s: float | None = None
    user_id: Identifier | None = None
    type: str | None = None
    turn: int | None = None
    block_size: int | None = None
    scope: str | None = None


class BadLine(Exception):
    """A line that cannot be used; the message is the reason that the user reads."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user may say about a trace that the trace does not say itself.

    `session_arrivals` places sessions that have no common clock: sessions per second of a Poisson
    process, or None for back to back.
    """

    block_size: int | None = None
    session_arrivals: float | None = None
    seed: int = 0

    def fingerprint(self) -> str:
        """What a content hash adds for these options: another reading is another trace."""
        return f"{self.block_size}/{self.session_arrivals}/{self.seed}"


@dataclass(slots=True)
class Rejects:
    """Lines that could not be used, counted by reason; nothing vanishes.

    `accepted + count` is the number of lines read, blank lines and headers aside.
    """

    path: str
    strict: bool = False
    kept: int = 10_000
    line: int = 0
    accepted: int = 0
    count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)

    def reject(self, reason: str) -> None:
        """Record the current line as unusable; in strict mode that ends the ingest."""
        if self.strict:
            raise InputError(reason, where=f"{self.path}:{self.line}")
        self.count += 1
        kind = reason.split(" - at ", 1)[0].split(":", 1)[0]
        self.reasons[kind] = self.reasons.get(kind, 0) + 1
        if len(self.lines) < self.kept:
            self.lines.append((self.line, reason))


class Reader(ABC):
    """Reads one trace; made anew for each, so it may keep state between lines."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.notes: list[str] = []

    @abstractmethod
    def records(self, source: Source, rejects: Rejects) -> Iterator[Sequence[Request]]:
        """Yield the requests of each record, in file order, `rejects.line` being its number.

        A record is a line of text or a row of a table. One that cannot be used goes to `rejects`.
        """


class LineReader(Reader):
    """A reader of formats with one record a line of text."""

    @abstractmethod
    def parse(self, line: bytes) -> Sequence[Request] | None:
        """The requests that `line` holds, or None where the line is no record (a header).

        Raises BadLine, or any of msgspec's errors, with the reason.
        """

    def records(self, source: Source, rejects: Rejects) -> Iterator[Sequence[Request]]:
        """Yield the requests of each line that `parse` accepts."""
        parse = self.parse
        for number, line in source.lines():
            rejects.line = number
            try:
                requests = parse(line)
            except (BadLine, msgspec.MsgspecError) as error:
                rejects.reject(str(error))
                continue
            except UnicodeDecodeError:
                rejects.reject("text that is not UTF-8")
                continue
            except RecursionError:
                rejects.reject("values nested too deeply")
                continue
            if requests is not None:
                yield requests


class TraceFormat(ABC):
    """One trace format: its name, how it is recognized, how it is read.

    Abilities are declared: `has_hashes` is False for formats that only tell lengths.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    default_block_size: ClassVar[int]
    has_hashes: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def recognizes(cls, head: bytes) -> bool:
        """Whether a trace that begins with `head` (up to 64 KiB) is of this format.

        No two formats may claim the same trace.
        """

    @classmethod
    @abstractmethod
    def reader(cls, options: ReadOptions) -> Reader:
        """A reader for one trace."""

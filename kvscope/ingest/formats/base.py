"""The contract of a trace format: what one file in this folder has to provide.

A format recognizes its traces by their first bytes, and reads them as canonical requests. Most
formats are lines of text: they subclass `LineReader` and write `parse` alone. The loop around it,
defects, interning, lineage and the store are the same for all and live elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import msgspec

from kvscope.core.errors import InputError
from kvscope.ingest.identifiers import Identifier
from kvscope.ingest.source import Source

HashIds = list[int | str] | msgspec.Raw | None
"""A prompt's hash ids, or the JSON text of them, which is read many prompts at a time."""

NOT_UTF8 = "text that is not UTF-8"


class Request(msgspec.Struct, gc=False, kw_only=True):
    """One request as any trace may tell it; everything but the token counts may be missing.

    `hash_ids` name the prompt's blocks from the first on, a partial last one included or not; JSON
    formats leave them undecoded, and `msgspec.Raw()` is none, like None.
    `parent_chat_id` is ROOT (-1) where the trace says that there is no parent, None where it says
    nothing. `scope` marks ids that mean something only inside one session. A request without
    `arrival_s` arrives `delay_s` after its predecessor in its session, or with the line before it.
    """

    input_tokens: int
    output_tokens: int
    arrival_s: float | None = None
    hash_ids: HashIds = None
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


@dataclass(slots=True)
class Records:
    """Some records (lines of text, rows of a table) that follow each other in the trace.

    Records that can be used have their numbers in `lines`; their requests are in one list, those of
    record k up to ends[k]. The others are in `refused`, with the reason.
    """

    requests: list[Request] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def one_each(cls, first: int, requests: list[Request]) -> Self:
        """Records that have one request each and are numbered from `first`, without a gap."""
        count = len(requests)
        return cls(requests, list(range(first, first + count)), list(range(1, count + 1)))

    def add(self, line: int, requests: Sequence[Request]) -> None:
        """Append a record and all of its requests."""
        self.requests += requests
        self.lines.append(line)
        self.ends.append(len(self.requests))

    def refuse(self, line: int, reason: str) -> None:
        """Append a record that cannot be used."""
        self.refused.append((line, reason))

    def __iter__(self) -> Iterator[tuple[int, list[Request]]]:
        """Yield each record that is not refused: its number, and its requests."""
        first = 0
        for line, end in zip(self.lines, self.ends, strict=True):
            yield line, self.requests[first:end]
            first = end


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user may say about a trace that the trace does not say itself.

    `session_arrivals` places sessions that have no common clock: sessions per second of a Poisson
    process, or None for back to back.
    """

    block_size: int | None = None
    session_arrivals: float | None = None
    seed: int = 0

    def fingerprint(self, *, places_sessions: bool = True) -> str:
        """What a content hash adds for these options: another reading is another trace.

        What the format (see TraceFormat) does not heed counts as not told, nor does a seed of which
        nothing is drawn.
        """
        arrivals = self.session_arrivals if places_sessions else None
        return f"{self.block_size}/{arrivals}/{self.seed if arrivals is not None else 0}"


@dataclass(slots=True)
class Rejects:
    """Lines that could not be used, counted by reason; nothing vanishes.

    `accepted + count` is the number of lines read, blank lines and headers aside.
    """

    path: str
    strict: bool = False
    kept: int = 10_000
    accepted: int = 0
    count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)

    def reject(self, line: int, reason: str) -> None:
        """Record a line as unusable, in file order; in strict mode that ends the ingest."""
        if self.strict:
            raise InputError(reason, where=f"{self.path}:{line}")
        self.count += 1
        kind = reason.split(" - at ", 1)[0].split(":", 1)[0]
        self.reasons[kind] = self.reasons.get(kind, 0) + 1
        if len(self.lines) < self.kept:
            self.lines.append((line, reason))


class Reader(ABC):
    """Reads one trace; made anew for each, so it may keep state between lines."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.notes: list[str] = []

    @abstractmethod
    def records(self, source: Source) -> Iterator[Records]:
        """Yield all records in file order, numbered from 1, about a megabyte of them at a time."""


class LineReader(Reader):
    """A reader of formats with one record a line of text."""

    @abstractmethod
    def parse(self, line: bytes) -> Sequence[Request] | None:
        """The requests that `line` holds, or None where the line is no record (a header).

        Raises BadLine, or any of msgspec's errors, with the reason.
        """

    def parse_at_once(self, text: bytes) -> list[Request] | None:
        """The requests of several lines, one each; None where each has to be parsed by itself.

        For formats that can do so faster than line by line.
        """
        return None

    def records(self, source: Source) -> Iterator[Records]:
        """Yield what `parse` makes of the lines that are not blank."""
        for first, text in source.lines():
            requests = self.parse_at_once(text)
            if requests is None:
                yield self._one_by_one(first, text.split(b"\n"))
            else:
                yield Records.one_each(first, requests)

    def _one_by_one(self, first: int, lines: list[bytes]) -> Records:
        read = Records()
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                continue
            try:
                requests = self.parse(line)
            except (BadLine, msgspec.MsgspecError) as error:
                read.refuse(number, str(error))
            except UnicodeDecodeError:
                read.refuse(number, NOT_UTF8)
            except RecursionError:
                read.refuse(number, "values nested too deeply")
            else:
                if requests is not None:
                    read.add(number, requests)
        return read


class TraceFormat(ABC):
    """One trace format: its name, how it is recognized, how it is read.

    Abilities are declared: `has_hashes` is False for formats that only tell lengths,
    `places_sessions` is True for those that heed `session_arrivals` and `seed`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str] = ""  # where the format is described
    default_block_size: ClassVar[int]
    has_hashes: ClassVar[bool] = True
    places_sessions: ClassVar[bool] = False

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

"""The contract of a trace format: what one file in this folder has to provide.

A format recognizes its traces by their first bytes and reads them as canonical requests. Most
formats are lines of text: they subclass `LineFormat` and implement only `parse`. The loop over
lines, defects, interning, lineage and the store are the same for all formats and live elsewhere.
"""

from __future__ import annotations

import math
import re
import reprlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar, Literal, Self, TypedDict

import msgspec
from msgspec import Struct, field

from kvscope.core.errors import InputError, UsageError
from kvscope.core.trace import Directives, Part
from kvscope.core.units import MIB
from kvscope.ingest.limits import HOPELESS_LINES, MAX_LINE_BYTES, MAX_NESTING
from kvscope.ingest.source import Source

Identifier = int | str

Turns = Literal["whole", "delta"]
"""What a session's follow-up row holds: its whole prompt, or only what is new in it."""

ROOT = -1
"""The parent id of a request that has no parent according to its trace."""

HashIds = list[int | str] | msgspec.Raw | None
"""A prompt's hash ids, or the JSON text of them, which is read many prompts at a time."""

NOT_UTF8 = "text that is not UTF-8"
UNREAD_PROMPTS = (
    "prompts are logged but not read: `kvscope hash` makes a trace with block hashes of them"
)
# msgspec fails at the interpreter's own limit only, which lies some times higher.
TOO_DEEP = f"values nested more than {MAX_NESTING} levels deep: flatten what it holds"
TOO_LONG = f"line longer than {MAX_LINE_BYTES // MIB} MiB: split what it holds"
_UTF8_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]')
_object_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_TRUNCATED = "Input data was truncated"  # msgspec's words
_MOST_KINDS = 5
_MOST_NAMES = 6
_FIELD = re.compile(r"[A-Za-z_]{1,32}")
_TELLING = re.compile(
    r"time|stamp|date|^ts|epoch|_at$|arriv|delay|session|conv|chat_|thread|dialog|trace_?id|turn"
    r"|parent|length|_len$|tokens|^[io]sl$|hash|block|_(s|ms|us|ns)$",
    re.IGNORECASE,
)
_LONGEST_REASON = 300
"""Most characters of a reason, which may quote values as long as their line."""


class Request(msgspec.Struct, gc=False, kw_only=True):
    """A request of a trace of any format; everything but the token counts may be missing.

    `hash_ids` name the prompt's blocks from the first on, with or without a partial last one; JSON
    formats leave them undecoded, and `msgspec.Raw()` means None.
    `parent_chat_id` is ROOT where the trace says that there is no parent, None where it says
    nothing. Hash ids of different `scope` (a session, a play) never match. Requests that
    differ in `model`, `adapter` (LoRA) or `cache_salt` share no blocks. A request without
    `arrival_s` arrives `delay_s` after the answer to its session's previous request; without
    `delay_s`, with that request; in a new or no session, with the line before it. Only times of the
    same `clock` are comparable; None is the trace's clock.

    Measured values: the `worker` (engine, replica) that served the request; from its arrival, the
    times to first token, to admission and to last token; prompt tokens found in the cache.
    `delay_s` is the time that a user or a tool took, for closed loops, kept even if the arrival is
    known. It counts from the end of the session's previous request, or of the request with
    `chat_id` `waits_for`. `repeated_tokens`: tokens of the parent's prompt whose messages this
    prompt's messages repeat, even if a chat template renders them otherwise. `parts` of the prompt
    are as `kvscope hash` finds them. `retention`: the client's directives on its blocks' lifetime.
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
    model: str | None = None
    adapter: Identifier | None = None
    cache_salt: str | None = None
    clock: Identifier | None = None
    worker: Identifier | None = None
    ttft_s: float | None = None
    queue_s: float | None = None
    duration_s: float | None = None
    cached_tokens: int | None = None
    waits_for: Identifier | None = None
    retention: Directives | None = None
    repeated_tokens: int | None = None
    parts: list[Part] | None = None


class Service(TypedDict, total=False):
    """Fields of `Request` that a serving log states, apart from prompt and lengths."""

    arrival_s: float | None
    session_id: Identifier | None
    user_id: Identifier | None
    model: str | None
    worker: Identifier | None
    ttft_s: float | None
    queue_s: float | None
    duration_s: float | None
    cached_tokens: int | None


class BadLine(Exception):
    """A line that cannot be used; the message is the reason for the user, with the bad value.

    `private` is the message with a description in place of the value, for logs with prompts.
    """

    def __init__(self, reason: str, *value: object) -> None:
        shown, kind = map(reprlib.repr, value), map(described, value)
        super().__init__(": ".join([reason, *shown]))
        self.private = ": ".join([reason, *kind])


UNUSABLE = (BadLine, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of a line that cannot be used."""


def reason_of(error: BaseException) -> str:
    """Return why a line cannot be used, for an error of a type in UNUSABLE, such as BadLine."""
    if isinstance(error, UnicodeDecodeError):
        return NOT_UTF8
    return TOO_DEEP if isinstance(error, RecursionError) else str(error)


class Records(Struct):
    """Consecutive records (lines of text, rows of a table) of a trace.

    Usable record k has the number lines[k] and the `requests` from ends[k - 1] to before ends[k].
    `refused` has the number of each unusable record, and the reason.
    """

    requests: list[Request] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def one_each(cls, first: int, requests: list[Request]) -> Self:
        """Return records of one request each, numbered from `first` without a gap."""
        count = len(requests)
        return cls(requests, list(range(first, first + count)), list(range(1, count + 1)))

    def add(self, line: int, requests: Sequence[Request]) -> None:
        """Append the record of number `line`, with all of its requests."""
        self.requests += requests
        self.lines.append(line)
        self.ends.append(len(self.requests))

    def refuse(self, line: int, reason: str) -> None:
        """Append the record of number `line`, which cannot be used for this `reason`."""
        self.refused.append((line, reason))

    def __iter__(self) -> Iterator[tuple[int, list[Request]]]:
        """Yield each usable record: its number, and its requests."""
        first = 0
        for line, end in zip(self.lines, self.ends, strict=True):
            yield line, self.requests[first:end]
            first = end


class ReadOptions(Struct, frozen=True):
    """Reading options: facts about a trace that its file does not state.

    `session_arrivals`: the rate (per second) at which sessions without a common clock begin, as a
    Poisson process; None keeps their times. `turns`: what rows of sessions hold, prompts ("whole")
    or new parts ("delta"; None: detected). Raises UsageError for a rate not above 0 and finite.
    """

    block_size: int | None = None
    session_arrivals: float | None = None
    seed: int = 0
    turns: Turns | None = None

    def __post_init__(self) -> None:
        rate = self.session_arrivals
        if rate is not None and not 0 < rate < float("inf"):
            raise UsageError(
                f"the rate of sessions must be above 0, not {rate:g}",
                where="--session-arrivals",
                remedy="give sessions per second, such as poisson:0.5",
            )

    def fingerprint(self, *, places_sessions: bool = True) -> str:
        """Return the text that stands for these options in the content hash of a stored trace.

        Leaves out the rate and `seed` unless `places_sessions`, and a `seed` without a rate.
        """
        arrivals = self.session_arrivals if places_sessions else None
        stated = f"{self.block_size}/{arrivals}/{self.seed if arrivals is not None else 0}"
        return stated if self.turns is None else f"{stated}/{self.turns}"


class Rejects(Struct):
    """Unusable lines, counted by kind of reason, so that none is dropped silently.

    `accepted` and `count` are the numbers of usable and unusable lines; blank lines and headers do
    not count. `lines` holds the first `limit` unusable lines as (line, reason). `place` returns a
    line's file and its number in that file, for traces of several files.
    """

    path: str
    strict: bool = False
    place: Callable[[int], tuple[str, int]] | None = None
    limit: int = 10_000
    accepted: int = 0
    count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)

    @property
    def is_hopeless(self) -> bool:
        """True once `HOPELESS_LINES` lines have been read and none of them is usable."""
        return not self.accepted and self.count >= HOPELESS_LINES

    def reject(self, line: int, reason: str) -> None:
        """Record the next unusable line, in file order; in strict mode raise InputError."""
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[: _LONGEST_REASON - 1]}…"
        if self.strict:
            raise InputError(reason, where=self.where(line))
        self.count += 1
        kind = _kind(reason)
        self.reasons[kind] = self.reasons.get(kind, 0) + 1
        if len(self.lines) < self.limit:
            self.lines.append((line, reason))

    def where(self, line: int) -> str:
        """Return the place of a line as path:line."""
        return "{}:{}".format(*self.where_exactly(line))

    def where_exactly(self, line: int) -> tuple[str, int]:
        """Return the file of a line, and the line's number in that file."""
        return self.place(line) if self.place else (self.path, line)

    def in_words(self) -> list[str]:
        """Return a line of text with the count, then one for each of the commonest kinds of reason.

        Each kind shows its first place and reason, rarer kinds share a line; [] if all are usable.
        """
        if not self.count:
            return []
        first: dict[str, str] = {}
        for line, reason in self.lines:
            first.setdefault(_kind(reason), f"{self.where(line)}: {reason}")
        common = sorted(self.reasons.items(), key=lambda item: -item[1])
        lines = self.accepted + self.count
        words = [f"{self.path}: {self.count:,} of {lines:,} lines cannot be used:"]
        for kind, count in common[:_MOST_KINDS]:
            more = f" (and {count - 1:,} more like it)" if count > 1 else ""
            words.append(first.get(kind, kind) + more)
        if len(common) > _MOST_KINDS:
            others = sum(count for _, count in common[_MOST_KINDS:])
            words.append(f"{others:,} more for {len(common) - _MOST_KINDS} other reasons")
        return words


def described(value: object) -> str:
    """Describe a value without quoting it, as logs hold prompts and messages must not."""
    if isinstance(value, str | bytes):
        return f"text of {len(value):,} characters"
    if isinstance(value, Mapping):
        return f"an object of {len(value):,} fields"
    if isinstance(value, Sequence):
        return f"a list of {len(value):,} values"
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    return "a number" if isinstance(value, int | float) else "a value"


def named(value: object) -> str:
    """Return a value as it is if it is one word; else its description by `described`."""
    is_word = isinstance(value, str) and _FIELD.fullmatch(value)
    return str(value) if is_word else described(value)


def field_names(names: Sequence[str]) -> str:
    """Return the first few field names for a message; names that may be log text are described."""
    shown = map(named, names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(shown)}{more}"


def unread_notes(names: Iterable[str]) -> list[str]:
    """Return a note on unread `names` that look like times, sessions, lengths or hashes."""
    telling = sorted(name for name in names if _TELLING.search(name))
    return [f"fields not read: {field_names(telling)}"] if telling else []


def counted(left_out: Mapping[str, int]) -> list[str]:
    """Return a line of text with the count of each reason in `left_out`, commonest first."""
    return [f"left out: {count:,} {reason}" for reason, count in Counter(left_out).most_common()]


def _kind(reason: str) -> str:
    """Return a reason without the place and the value that it names."""
    return reason.split(" - at ", 1)[0].split(":", 1)[0]


class TraceFormat(ABC):
    """A trace format: class methods recognize it, and one instance reads one trace.

    A reader may keep state between lines. `left_out` counts, by reason, what is readable but no
    served request. Where the trace ends too early, `cut` says where and what is left out.

    JSON lines are recognized by their keys: `marks` are alternatives, each a text of required keys
    with blanks between them. Abilities of formats: `has_hashes` is False if they have only lengths,
    `places_sessions` is True if they use `session_arrivals` and `seed`, `has_deltas` if rows may
    hold only the new part of a prompt, `in_ms` if times in ms may be in seconds by mistake.
    `fields`: names that most records have, for messages about files of no known format.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str] = ""  # where the format is described
    fields: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()
    default_block_size: ClassVar[int]
    has_hashes: ClassVar[bool] = True
    places_sessions: ClassVar[bool] = False
    has_deltas: ClassVar[bool] = False
    in_ms: ClassVar[bool] = False

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.notes: list[str] = []
        self.left_out: Counter[str] = Counter()
        self.cut = ""

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if a trace that begins with `head` (up to 64 KiB) is of this format.

        Of several formats that recognize a trace, the first in the registry reads it.
        """
        return is_marked(cls.marks, common_keys(head))

    @classmethod
    def unread(cls, head: bytes) -> list[str]:  # noqa: ARG003  (readers of fields override it)
        """Return the unread fields in `head`, in order of name."""
        return []

    def all_notes(self) -> list[str]:
        """Return the notes on the trace as a whole."""
        return [*self.notes, *counted(self.left_out), *([self.cut] if self.cut else [])]

    def note(self, text: str) -> None:
        """Add `text` to the notes on the trace, unless they have it."""
        if text not in self.notes:
            self.notes.append(text)

    @abstractmethod
    def records(self, source: Source) -> Iterator[Records]:
        """Yield all records in file order, numbered from 1, some megabytes at a time."""


class LineFormat(TraceFormat):
    """A format with one record per line of text."""

    @abstractmethod
    def parse(self, line: bytes) -> Sequence[Request] | None:
        """Return the requests of a line, or None for a line that is no record (a header).

        Raises an error of a type in UNUSABLE, such as BadLine, with the reason.
        """

    def is_cut(self, line: bytes) -> bool:
        """Return True if the last line of a trace, which has no line feed, is incomplete.

        This default is for JSON; other formats override it.
        """
        try:
            msgspec.json.decode(line, type=msgspec.Raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            return str(error) == _TRUNCATED
        return False

    def records(self, source: Source) -> Iterator[Records]:
        """Yield the results of `parse` for all lines that are not blank."""
        for first, text in source.lines():
            if text is None:
                yield Records(refused=[(first, TOO_LONG)])
                continue
            if not text or text.isspace():
                continue
            if first == source.unterminated and (source.is_cut or self.is_cut(text)):
                self.cut = f"the last line is cut: {source.line_in_words(first)} is left out"
                break
            yield self._parsed(first, text)
        if source.is_cut:
            last = source.unterminated
            left_out = f" {source.line_in_words(last)} and" if last else ""
            self.cut = f"the compressed data is cut:{left_out} all that follows is left out"

    def _parsed(self, first: int, text: bytes) -> Records:
        records = Records()
        for number, line in enumerate(text.removesuffix(b"\n").split(b"\n"), first):
            if not line or line.isspace():
                continue
            try:
                requests = self.parse(line)
            except UNUSABLE as error:
                records.refuse(number, reason_of(error))
            else:
                if requests is not None:
                    records.add(number, requests)
        return records


def is_marked(marks: Sequence[str], keys: frozenset[str]) -> bool:
    """Return whether lines with these `keys` have all keys of one of the `marks`."""
    return any(keys.issuperset(mark.split()) for mark in marks)


def common_keys(head: bytes) -> frozenset[str]:
    """Return the keys that at least half of the JSON objects in `head`, one per line, carry.

    Half, so that neither a broken line nor a stray one decides. Without any whole object, as with a
    line longer than `head`, return the keys in the beginning of the first line.
    """
    lines = head.removeprefix(_UTF8_BOM).split(b"\n")
    objects = [keys for keys in map(_keys, lines) if keys]
    if not objects:
        return frozenset(_keys_of_beginning(next((x for x in lines if x.strip()), b"")))
    votes = Counter(key for keys in objects for key in keys)
    return frozenset(key for key, count in votes.items() if 2 * count >= len(objects))


def _keys(line: bytes) -> frozenset[str]:
    try:
        return frozenset(_object_of(line))
    except (ValueError, RecursionError):
        return frozenset()


def _keys_of_beginning(line: bytes) -> Iterator[str]:
    """Yield the outermost keys of a JSON object that may be cut off anywhere."""
    if not line.lstrip().startswith(b"{"):
        return
    depth = 0
    for token in _TOKEN.finditer(line):
        if token[0] in b"{[":
            depth += 1
        elif token[0] in b"}]":
            depth -= 1
        elif depth == 1 and token[2]:
            yield token[1].decode(errors="replace")


_NANOSECONDS, _MICROSECONDS, _MILLISECONDS = 1e17, 1e14, 1e11  # since 1970, from 1973 on
_LATEST_S = 1e11


def moment(value: object, name: str) -> float | None:
    """Return a time in s, None for a missing value; raise BadLine for anything but a time.

    Numbers that would lie after the year 5138 in seconds are taken for milli-, micro- or
    nanoseconds since 1970. Texts are numbers or ISO 8601, UTC unless they name a zone.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str) and (at_s := _iso(value)) is not None:
            return at_s
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise BadLine(f"{name} is neither a number nor an ISO 8601 time", value)
    for least, divisor in ((_NANOSECONDS, 1e9), (_MICROSECONDS, 1e6), (_MILLISECONDS, 1e3)):
        if abs(number) >= least:
            number /= divisor
            break
    if abs(number) > _LATEST_S:
        raise BadLine(f"{name} is no time", value)
    return number


def _iso(text: str) -> float | None:
    """Return seconds since 1970, None for text that is not ISO 8601. Raises OverflowError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.replace(tzinfo=at.tzinfo or UTC).timestamp()


def between(start_s: float | None, end_s: float | None) -> float | None:
    """Return the time (s) between two moments; None if one is missing or they are reversed."""
    return None if start_s is None or end_s is None or end_s < start_s else end_s - start_s


def in_seconds(ms: float | None) -> float | None:
    """Return milliseconds in s, None for None."""
    return None if ms is None else ms / 1000

"""CSV traces of lengths and arrivals without block hashes: Azure, BurstGPT, Vidur."""

from __future__ import annotations

import csv
import datetime as dt
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import (
    BadLine,
    LineFormat,
    ReadOptions,
    Records,
    Request,
)
from kvscope.ingest.source import Source

# What each column is called, as `_plain` spells it: Azure's name, BurstGPT's, Vidur's, others'.
_TIME = ("timestamp", "arrivedat", "arrivaltime", "arrival", "time", "starttime")
_INPUTS = (
    "contexttokens", "requesttokens", "numprefilltokens", "prefilltokens", "prompttokens",
    "inputtokens", "inputlength", "promptlength", "promptlen", "inputlen", "isl",
)  # fmt: skip
_OUTPUTS = (
    "generatedtokens", "responsetokens", "numdecodetokens", "decodetokens", "completiontokens",
    "outputtokens", "outputlength", "outputlen", "responselength", "osl",
)  # fmt: skip
_TYPE = ("logtype", "type")
_SESSION = ("sessionid", "conversationid")
_MODEL = ("model",)

_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_DATETIME = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(\.(?P<fraction>\d{1,9}))?"
    r" ?(?P<zone>Z|[+-]\d\d(:?\d\d)?)?",
    re.ASCII | re.IGNORECASE,
)
_NS = 1_000_000_000


class LengthsCsv(LineFormat):
    """CSV with lengths and arrivals: no analysis of reuse."""

    name = "lengths"
    summary = "CSV of token counts (Azure, BurstGPT, Vidur, BLIS), no block hashes"
    source = "Azure LLM inference 2023, BurstGPT, Vidur, BLIS"
    fields = ("timestamp", "prompt_tokens", "completion_tokens")
    default_block_size = 16
    has_hashes = False

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the first line names columns for both lengths."""
        header = csv_header(head)
        return _column(header, _INPUTS) is not None and _column(header, _OUTPUTS) is not None

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._path = ""
        self._header: list[str] = []
        self._first_ns: int | None = None
        self._time_kind = ""

    def records(self, source: Source) -> Iterator[Records]:
        self._path = source.path
        return super().records(source)

    def parse(self, line: bytes) -> Sequence[Request] | None:
        if not self._header:
            self._read_header(_header(line))
            return None
        fields = csv_fields(line)
        if self._is_header(fields):  # of the next file of a folder, or of one appended to this
            if fields != self._header:
                self.note("columns change within the trace: each header names those below it")
                self._read_header(fields)
            return None
        if len(fields) != len(self._header):
            raise BadLine(
                f"columns unlike the header's: expected {len(self._header)}, got {len(fields)}"
            )
        return (
            Request(
                input_tokens=_whole(self._header[self._inputs], fields[self._inputs]),
                output_tokens=_whole(self._header[self._outputs], fields[self._outputs]),
                arrival_s=None if self._time is None else self._arrival_s(fields[self._time]),
                type=None if self._type is None else fields[self._type] or None,
                session_id=None if self._session is None else fields[self._session] or None,
                model=None if self._model is None else fields[self._model] or None,
            ),
        )

    @classmethod
    def unread(cls, head: bytes) -> list[str]:
        """Return the columns that are not read, in order of name."""
        known = {*_TIME, *_INPUTS, *_OUTPUTS, *_TYPE, *_SESSION, *_MODEL}
        return sorted(name for name in csv_header(head) if _plain(name) not in known)

    def is_cut(self, line: bytes) -> bool:
        """Return True if the line has too few columns; a cut number goes unnoticed."""
        return line.count(b",") < len(self._header) - 1

    def _is_header(self, fields: list[str]) -> bool:
        """Return True if a line within the trace is a header: it names both length columns.

        Most lines are ruled out first, as they have the last header's number of columns, and a
        whole number in its column of input tokens.
        """
        if len(fields) == len(self._header) and _WHOLE.fullmatch(fields[self._inputs]):
            return False
        return _column(fields, _INPUTS) is not None and _column(fields, _OUTPUTS) is not None

    def _read_header(self, header: list[str]) -> None:
        inputs, outputs = _column(header, _INPUTS), _column(header, _OUTPUTS)
        if inputs is None or outputs is None:
            lengths = "prompt" if inputs is None else "output"
            raise InputError(
                f"no column of {lengths} lengths: the first line must name the columns",
                where=self._path,
                remedy=f"call it {'prompt_tokens' if inputs is None else 'completion_tokens'}",
            )
        self._inputs, self._outputs = inputs, outputs
        self._time = _column(header, _TIME)
        self._type = _column(header, _TYPE)
        self._session = _column(header, _SESSION)
        self._model = _column(header, _MODEL)
        self._header = header

    def _arrival_s(self, text: str) -> float:
        """Return the arrival in s: a number as written, a date minus the trace's first date."""
        if _DECIMAL.fullmatch(text):
            self._require_kind("seconds", text)
            return float(text)
        at_ns = _since_epoch_ns(text)
        self._require_kind("a date", text)
        if self._first_ns is None:
            self._first_ns = at_ns
        # Integers up to here: a double cannot hold 100 ns beside the seconds since 1970.
        return (at_ns - self._first_ns) / _NS

    def _require_kind(self, kind: str, text: str) -> None:
        self._time_kind = self._time_kind or kind
        if kind != self._time_kind:
            raise BadLine(f"time is not {self._time_kind}, as before: {reprlib.repr(text)}")


def csv_fields(line: bytes) -> list[str]:
    """Return the fields of a CSV line. Raises BadLine or UnicodeDecodeError if it is no CSV."""
    text = line.decode().rstrip("\r")
    if '"' not in text:
        return [field.strip() for field in text.split(",")]
    try:
        row = next(csv.reader((text,), strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise BadLine(f"CSV is malformed: {error}") from error
    return [field.strip() for field in row]


def csv_header(head: bytes) -> list[str]:
    """Return the fields of the first line in `head` that is not blank; empty if it is no CSV."""
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return _header(next((line for line in lines if line.strip()), b""))


def _header(line: bytes) -> list[str]:
    """Return the names of the columns; empty where the line is no CSV."""
    try:
        return csv_fields(line)
    except (BadLine, UnicodeDecodeError):
        return []


def _column(header: list[str], names: Sequence[str]) -> int | None:
    """Return the position of the first column with one of `names`, None if none has."""
    return next((index for index, name in enumerate(header) if _plain(name) in names), None)


def _plain(name: str) -> str:
    """Return a column's name in lower case, without separators between its words."""
    return re.sub(r"[\s_.-]", "", name.lower())


def _whole(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise BadLine(f"expected a whole number in {name}: {reprlib.repr(text)}")
    return int(text)


def _since_epoch_ns(text: str) -> int:
    """Return ns since 1970, exactly; without an offset the time counts as UTC."""
    match, at = _DATETIME.fullmatch(text), None
    if match is not None:
        with suppress(ValueError):  # no such day
            at = dt.datetime.fromisoformat(match["time"] + (match["zone"] or "Z").upper())
    if match is None or at is None:
        raise BadLine("expected a date and time, or seconds", text)
    fraction_ns = int((match["fraction"] or "").ljust(9, "0"))
    return int(at.timestamp()) * _NS + fraction_ns

"""JSON formats with one object per line: telling them apart, and decoding lines.

What programs write mostly has lines of one shape: the same keys in the same order, and plain
values. A kernel reads those as columns, and no Python object is made of any request. Whatever else
a line may hold (other keys, escapes, exponents, nested objects) is left to msgspec, which reads all
of JSON and names every defect: the kernel takes a text as a whole or not at all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.trace import Directives
from kvscope.ingest.formats.base import (
    UNUSABLE,
    Identifier,
    LineFormat,
    ReadOptions,
    Request,
    RequestColumns,
    common_keys,
    in_seconds,
)
from kvscope.ingest.hash_ids import (
    NO_ID,
    UNUSUAL,
    after_spaces,
    byte_at,
    ids_at,
    integer_at,
    is_null,
)

INTEGER, INTEGER_OR_NULL, NUMBER, NAME, HASH_IDS = range(5)
"""What a column holds; HASH_IDS: arrays of integers, or null."""
_ARRAY = (INTEGER, INTEGER, NUMBER, NAME, HASH_IDS)
"""By kind: the kind whose array has such values."""

_MOST_NAMES = 64
"""Distinct strings of a column in one text."""
_EXACT_DIGITS = 15
"""So many are an exact float, and so is a power of ten that scales it: one division is exact."""
_INTEGER_DIGITS = 18  # below 2^63, whatever they are
_OPEN, _CLOSE, _COLON, _COMMA, _QUOTE, _BACKSLASH = b'{}:,"\\'
_MINUS, _POINT, _ZERO, _NINE, _SMALL_E, _LARGE_E, _LINE_FEED, _SPACE = b"-.09eE\n "
_ASCII_END = 127
_keys_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class LineColumn(Struct, frozen=True):
    """A key of a line: its field of `Request`, the kind of its values, its units in a second."""

    field: str
    kind: int
    per_s: int = 1


def read_lines(
    text: bytes, count: int, known: Mapping[str, LineColumn], always: AbstractSet[str]
) -> RequestColumns | None:
    """Return the requests of `count` lines, an entry each; None where msgspec has to read them.

    All lines have the keys of the first one: only `known` ones, and those that are there `always`.
    The last line feed may be missing.
    """
    first = text[: text.index(b"\n")] if b"\n" in text else text
    try:
        keys = list(_keys_of(first))
    except (ValueError, RecursionError):
        return None
    if not always <= set(keys) <= known.keys():
        return None
    columns = [known[key] for key in keys]
    return _Text(text if text.endswith(b"\n") else text + b"\n", count, keys, columns).read()


class _Text:
    """Lines of one shape, and room for what they hold: a place per column of its kind."""

    def __init__(self, text: bytes, rows: int, keys: list[str], columns: list[LineColumn]) -> None:
        self._text = text
        self._characters = np.frombuffer(text, dtype=np.uint8)
        spelled = [f'"{key}"'.encode() for key in keys]
        self._keys = np.frombuffer(b"".join(spelled), dtype=np.uint8)
        self._key_ends = np.cumsum([0, *map(len, spelled)])
        self._columns: dict[int, list[LineColumn]] = {kind: [] for kind in set(_ARRAY)}
        self._kinds, self._places = np.zeros((2, len(columns)), dtype=np.int64)
        for k, column in enumerate(columns):
            same = self._columns[_ARRAY[column.kind]]
            self._kinds[k], self._places[k] = column.kind, len(same)
            same.append(column)
        integers, numbers, names = (len(self._columns[kind]) for kind in (INTEGER, NUMBER, NAME))
        self._integers = np.empty((integers, rows), dtype=np.int64)
        self._numbers = np.empty((numbers, rows), dtype=np.float64)
        self._long = np.empty((numbers * rows, 4), dtype=np.int64)
        self._codes = np.empty((names, rows), dtype=np.int64)
        self._names = np.zeros((names, _MOST_NAMES, 2), dtype=np.int64)
        self._starts = np.zeros(rows + 1, dtype=np.int64)
        self._ids = np.empty(len(text) // 2, dtype=np.int64)  # an id takes a digit and what ends it

    def read(self) -> RequestColumns | None:
        """Return what the lines hold; None if the kernel cannot read one of them."""
        count, long = _read(
            self._characters, self._keys, self._key_ends, self._kinds, self._places,
            self._integers, self._numbers, self._codes, self._names, self._long, self._starts,
            self._ids,
        )  # fmt: skip
        if count == UNUSUAL:
            return None
        for place, row, begin, end in self._long[:long].tolist():
            self._numbers[place, row] = float(self._text[begin:end])
        return RequestColumns(
            integers={x.field: self._integers[k] for k, x in enumerate(self._columns[INTEGER])},
            numbers={
                x.field: self._numbers[k] / x.per_s for k, x in enumerate(self._columns[NUMBER])
            },
            names={
                x.field: (
                    [self._text[i:j].decode() for i, j in self._names[k].tolist() if j],
                    self._codes[k],
                )
                for k, x in enumerate(self._columns[NAME])
            },
            starts=self._starts,
            ids=self._ids[:count],
        )


@kernel
def _read(
    text: NDArray[np.uint8],
    keys: NDArray[np.uint8],
    key_ends: Int64s,
    kinds: Int64s,
    places: Int64s,
    integers: Int64s,
    numbers: Float64s,
    codes: Int64s,
    names: Int64s,
    long: Int64s,
    starts: Int64s,
    ids: Int64s,
) -> tuple[int, int]:
    """Fill the arrays; return the numbers of hash ids and of `long`, -1 for what is unusual.

    `names` has the begin and the end of each distinct string of a column, `long` the numbers of
    too many digits: (place, row, begin, end). No loop leaves its line: each stops at a line feed.
    """
    at, count, inexact = 0, 0, 0
    for row in range(len(starts) - 1):
        for k in range(len(kinds)):
            at = _value_begin(text, at, _COMMA if k else _OPEN, keys[key_ends[k] : key_ends[k + 1]])
            if at == UNUSUAL:
                return UNUSUAL, 0
            place, kind, begin = places[k], kinds[k], at
            if kind == INTEGER_OR_NULL and is_null(text, at):
                integers[place, row], at = NO_ID, at + 4
            elif kind in (INTEGER, INTEGER_OR_NULL):
                integers[place, row], at = _integer(text, at)
            elif kind == NUMBER:
                numbers[place, row], at = _number(text, at)
                if np.isnan(numbers[place, row]):
                    long[inexact, 0], long[inexact, 1] = place, row
                    long[inexact, 2], long[inexact, 3] = begin, at
                    inexact += 1
            elif kind == NAME:
                codes[place, row], at = _name(text, at, names, place)
            else:
                count, at = ids_at(text, at, ids, count)
            if at == UNUSUAL:
                return UNUSUAL, 0
            at = after_spaces(text, at)
        at = _next_line(text, at)
        if at == UNUSUAL:
            return UNUSUAL, 0
        starts[row + 1] = count
    return count, inexact


@callable_in_kernels
def _value_begin(text: NDArray[np.uint8], at: int, before: int, key: NDArray[np.uint8]) -> int:
    """Return where the value of `key` begins; -1 unless `before`, the key and a colon are next."""
    if byte_at(text, at) != before:
        return UNUSUAL
    at = after_spaces(text, at + 1)
    for character in key:
        if byte_at(text, at) != character:
            return UNUSUAL
        at += 1
    at = after_spaces(text, at)
    return after_spaces(text, at + 1) if byte_at(text, at) == _COLON else UNUSUAL


@callable_in_kernels
def _next_line(text: NDArray[np.uint8], at: int) -> int:
    """Return where the next line begins; -1 unless an object and its line end here."""
    if byte_at(text, at) != _CLOSE:
        return UNUSUAL
    at = after_spaces(text, at + 1)
    return at + 1 if byte_at(text, at) == _LINE_FEED else UNUSUAL


@callable_in_kernels
def _integer(text: NDArray[np.uint8], at: int) -> tuple[np.int64, int]:
    """Return the integer that begins at `at` and where it ends, -1 without one of 18 digits."""
    value, end = integer_at(text, at)
    return value, (end if end - at <= _INTEGER_DIGITS else UNUSUAL)


@callable_in_kernels
def _digits_end(text: NDArray[np.uint8], at: int) -> int:
    """Return the first place from `at` on without a digit."""
    while _ZERO <= byte_at(text, at) <= _NINE:
        at += 1
    return at


@callable_in_kernels
def _number(text: NDArray[np.uint8], at: int) -> tuple[float, int]:
    """Return the number that begins at `at` and where it ends, -1 without a plain one.

    It is NaN where one division would not give the nearest float.

    Source: Clinger, How to read floating point numbers accurately (PLDI 1990), the exact case.
    """
    negative = byte_at(text, at) == _MINUS
    first = at + 1 if negative else at
    end = _digits_end(text, first)
    whole, fraction = end - first, 0
    if whole == 0 or (whole > 1 and byte_at(text, first) == _ZERO):
        return 0.0, UNUSUAL
    if byte_at(text, end) == _POINT:
        point, end = end, _digits_end(text, end + 1)
        fraction = end - point - 1
        if fraction == 0:
            return 0.0, UNUSUAL
    if byte_at(text, end) == _SMALL_E or byte_at(text, end) == _LARGE_E:
        return 0.0, UNUSUAL
    if whole + fraction > _EXACT_DIGITS:
        return np.nan, end
    digits, power = 0.0, 1.0
    for i in range(first, end):
        if byte_at(text, i) != _POINT:
            digits = 10.0 * digits + np.float64(byte_at(text, i) - _ZERO)
    for _ in range(fraction):
        power *= 10.0
    if negative and digits == 0.0:  # minus zero, which an integer is not
        return 0.0, UNUSUAL
    return (-digits / power if negative else digits / power), end


@callable_in_kernels
def _name(text: NDArray[np.uint8], at: int, names: Int64s, place: int) -> tuple[int, int]:
    """Return which of the column's `names` the string at `at` is, added if new, and its end.

    The end is -1 for what is no string of printable ASCII without escapes, and for one too many.
    """
    if byte_at(text, at) != _QUOTE:
        return 0, UNUSUAL
    begin = at + 1
    end = begin
    while (
        _SPACE <= byte_at(text, end) < _ASCII_END
        and byte_at(text, end) != _QUOTE
        and byte_at(text, end) != _BACKSLASH
    ):
        end += 1
    if byte_at(text, end) != _QUOTE:
        return 0, UNUSUAL
    for code in range(_MOST_NAMES):
        known, known_end = names[place, code, 0], names[place, code, 1]
        if known_end == 0:
            names[place, code, 0] = begin
            names[place, code, 1] = end
            return code, end + 1
        if known_end - known == end - begin:
            same = 0
            while same < end - begin and byte_at(text, known + same) == byte_at(text, begin + same):
                same += 1
            if same == end - begin:
                return code, end + 1
    return 0, UNUSUAL


_OPEN, _CLOSE, _LINE_FEED = b"{}\n"


class ServiceRow(msgspec.Struct, gc=False, kw_only=True):
    """The keys that say how a request was served, in all formats of one JSON object per request.

    Times are decoded as ms and are in s from then on: plain fields, since each is read of each row.
    """

    model: str | None = None
    lora_id: Identifier | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    worker: Identifier | None = None
    ttft_s: float | None = msgspec.field(default=None, name="ttft_ms")
    queue_s: float | None = msgspec.field(default=None, name="queue_ms")
    duration_s: float | None = msgspec.field(default=None, name="duration_ms")
    cached_tokens: int | None = None
    repeated_tokens: int | None = None
    retention: Directives | None = None

    @property
    def adapter(self) -> Identifier | None:
        """The LoRA adapter; 0 and "" are the model itself."""
        return self.lora_name or self.lora_id

    def __post_init__(self) -> None:
        """Convert the times; most rows have none, for which no call is made."""
        if self.ttft_s is not None:
            self.ttft_s = in_seconds(self.ttft_s)
        if self.queue_s is not None:
            self.queue_s = in_seconds(self.queue_s)
        if self.duration_s is not None:
            self.duration_s = in_seconds(self.duration_s)


class RowFormat(LineFormat):
    """A format whose lines are a `row` each, a struct whose `hash_ids` stay JSON text.

    Errors are those of a line with decoded hash ids: the first defect, and its place.
    """

    row: ClassVar[type[msgspec.Struct]]
    redundant: ClassVar[frozenset[str]] = frozenset()  # fields that repeat what others say
    in_columns: ClassVar[Mapping[str, LineColumn]] = {}  # keys that need no `request`
    always: ClassVar[frozenset[str]] = frozenset()  # keys of each such line

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        decoder = msgspec.json.Decoder(self.row)
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        hash_ids = ("hash_ids", list[int | str] | None, None)
        decoded = msgspec.defstruct("Row", [hash_ids], bases=(self.row,))
        self._explain = msgspec.json.Decoder(decoded).decode

    @classmethod
    def unread(cls, head: bytes) -> list[str]:
        """Return the keys of lines in `head` that are no fields of `row`, in order of name."""
        known = {field.encode_name for field in msgspec.structs.fields(cls.row)}
        return sorted(common_keys(head) - known - cls.redundant)

    @abstractmethod
    def request(self, row: Any) -> Request | None:
        """Return the request of a line, None for a line that is none (a header, a tool's event).

        Raises BadLine with the reason if it cannot be used.

        May be called twice for one line: together with others and, if one of them is bad, alone.
        """

    def parse(self, line: bytes) -> Sequence[Request] | None:
        """Return the line's request, None where it has none."""
        try:
            row = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._explain(line)
            raise
        request = self.request(row)
        return None if request is None else (request,)

    def columns_at_once(self, text: bytes, count: int) -> RequestColumns | None:
        """Return the requests of the lines; None unless all have the same, well-known keys."""
        return read_lines(text, count, self.in_columns, self.always) if self.in_columns else None

    def parse_at_once(self, text: bytes) -> list[Request] | None:
        """Return the requests of the lines, None if some are unusual or unusable."""
        others = _further_lines(text)
        if others is None:
            return None
        left_out = self.left_out.copy()
        try:
            rows = self._decode_lines(text)
            requests = [request for row in rows if (request := self.request(row)) is not None]
            if len(requests) == others + 1:
                return requests
        except UNUSABLE:
            pass
        self.left_out = left_out  # each line is counted when it is parsed by itself
        return None


def _further_lines(text: bytes) -> int | None:
    """Return the number of lines after the first if every line feed is between a "}" and a "{".

    No JSON value has these three in a row, so such a line feed ends one and begins another.
    """
    characters = np.frombuffer(text, dtype=np.uint8)
    feeds = np.flatnonzero(characters == _LINE_FEED)
    if not len(feeds):
        return 0
    before, after = characters.take([feeds - 1, feeds + 1], mode="clip")
    return len(feeds) if (before == _CLOSE).all() and (after == _OPEN).all() else None

"""What the formats with one JSON object a line share: telling them apart, and decoding a line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

_UTF8_BOM = b"\xef\xbb\xbf"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]')

Row = TypeVar("Row", bound=msgspec.Struct)


def row_decoder(row: type[Row]) -> Callable[[bytes], Row]:
    """What decodes a line as `row`, a struct whose `hash_ids` stay the JSON text that they are.

    What is wrong with a line is told as if they did not: the first defect, and its place.
    """
    hash_ids = ("hash_ids", list[int | str] | None, None)
    decode = msgspec.json.Decoder(row).decode
    explain = msgspec.json.Decoder(msgspec.defstruct("Row", [hash_ids], bases=(row,))).decode

    def decoded(line: bytes) -> Row:
        try:
            return decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            explain(line)
            raise

    return decoded


def common_keys(head: bytes) -> frozenset[str]:
    """The keys that at least half of the JSON objects in `head`, one a line, carry.

    A vote, so that neither a broken line nor a stray one decides. Where no line is whole, as with
    one line longer than `head`, the keys that its beginning shows.
    """
    lines = head.removeprefix(_UTF8_BOM).split(b"\n")
    objects = [keys for keys in map(_keys, lines) if keys]
    if not objects:
        return frozenset(_keys_of_beginning(next((x for x in lines if x.strip()), b"")))
    votes = Counter(key for keys in objects for key in keys)
    return frozenset(key for key, count in votes.items() if 2 * count >= len(objects))


def _keys(line: bytes) -> frozenset[str]:
    try:
        return frozenset(_OBJECT.decode(line))
    except (ValueError, RecursionError):
        return frozenset()


def _keys_of_beginning(line: bytes) -> Iterator[str]:
    """The outermost keys of an object that may break off anywhere."""
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

"""What the formats with one JSON object a line share: telling them apart by their keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

_UTF8_BOM = b"\xef\xbb\xbf"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]')


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

"""How large a Parquet file's index says that it is, before any library believes it.

DuckDB allocates some 430 bytes for each element that a list in the index announces, before it reads
the first: a file of 150 bytes could take any amount of memory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvscope.ingest.limits import MAX_INDEX_BYTES

MAGIC = b"PAR1"
_LENGTH_BYTES = 4
_DEEPEST = 64  # structures in one another, where DuckDB gives up
_LONGEST_VARINT = 10
_FIXED_BYTES = {1: 1, 2: 1, 3: 1, 7: 8}  # booleans in a list, bytes, doubles
_INTEGERS, _BINARY, _LISTS, _MAP, _STRUCT = (4, 5, 6), 8, (9, 10), 11, 12


class MalformedError(ValueError):
    """The index does not follow Thrift's compact protocol."""


def read_index(path: str) -> bytes:
    """Return the index at the end of a file; raises MalformedError where it is cut or too long."""
    with Path(path).open("rb") as file:
        end = file.seek(0, os.SEEK_END) - len(MAGIC) - _LENGTH_BYTES
        file.seek(max(end, 0))
        size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size > end or file.read() != MAGIC:
            raise MalformedError("no index at the end")
        if size > MAX_INDEX_BYTES:
            raise MalformedError(f"an index longer than {MAX_INDEX_BYTES >> 20} MiB")
        file.seek(end - size)
        return file.read(size)


def listed_elements(index: bytes) -> int:
    """Return how many elements the lists and maps of an index announce, up to where it is cut.

    Source: Apache Thrift, doc/specs/thrift-compact-protocol.md.
    """
    walk = _Walk(index)
    with suppress(IndexError, MalformedError):  # DuckDB names the damage
        walk.struct(0)
    return walk.listed


class _Walk:
    """A walk through values of Thrift's compact protocol, which counts elements of lists."""

    def __init__(self, data: bytes) -> None:
        self.listed = 0
        self._data = data
        self._at = 0

    def struct(self, depth: int) -> None:
        """Walk through fields up to the one that ends a structure."""
        if depth > _DEEPEST:
            raise MalformedError("too deep")
        while header := self._byte():
            if not header >> 4:
                self._varint()  # the field's number
            kind = header & 15
            if kind not in (1, 2):  # a boolean is its field's type
                self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> None:
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            size = self._varint()
            self._at += size
        elif kind in _LISTS:
            header = self._byte()
            size = header >> 4
            self._elements(self._varint() if size == 15 else size, (header & 15,), depth)
        elif kind == _MAP:
            if size := self._varint():
                kinds = self._byte()
                self._elements(size, (kinds >> 4, kinds & 15), depth)
        elif kind == _STRUCT:
            self.struct(depth + 1)
        elif kind in _FIXED_BYTES:
            self._at += _FIXED_BYTES[kind]
        else:
            raise MalformedError(f"no type {kind}")

    def _elements(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        self.listed += count
        if depth > _DEEPEST:
            raise MalformedError("too deep")
        for _ in range(count):
            if self._at >= len(self._data):
                raise MalformedError("cut")
            for kind in kinds:
                self._value(kind, depth + 1)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = 0
        for place in range(_LONGEST_VARINT):
            byte = self._byte()
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value
        raise MalformedError("a number without an end")

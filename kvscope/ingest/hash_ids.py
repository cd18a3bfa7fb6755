"""Identifiers and hash ids as signed 64-bit numbers.

Integers stay as they are, strings become digests. A kernel parses JSON arrays of integers, many
prompts at once. Anything else (strings, integers beyond 64 bits, lists of other formats) is decoded
prompt by prompt by msgspec, which also names every defect.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int64s
from kvscope.core.jit import kernel
from kvscope.ingest.formats.base import UNUSABLE, BadLine, HashIds, Identifier, reason_of
from kvscope.ingest.limits import MAX_HASH_IDS

NO_ID = -(2**63)
"""Stands for "none" among 64-bit identifiers."""

IdPaths = tuple[Int64s, Int64s]
"""(starts, ids): the hash ids of prompt k are ids[starts[k]:starts[k + 1]]."""

_TOO_MANY = f"request with more than {MAX_HASH_IDS:,} hash ids: use larger blocks"
_UNUSUAL = -1  # what the kernel does not read
_OPEN, _CLOSE, _COMMA, _MINUS = b"[],-"
_SPACE, _TAB, _RETURN, _LINE_FEED = b" \t\r\n"
_ZERO = np.uint64(ord("0"))
_ONE, _NINE, _TEN = np.uint64(1), np.uint64(9), np.uint64(10)
_LARGEST_NEGATED = np.uint64(2**63)
_LEAST_OF_20_DIGITS = np.uint64(10**19)


class _HashIdsLine(msgspec.Struct, gc=False):
    hash_ids: list[Identifier] | None = None


_decode = msgspec.json.Decoder(_HashIdsLine).decode


def key(identifier: Identifier) -> int:
    """Return an identifier as a signed 64-bit number: 64-bit integers as they are, or a digest.

    Decimal strings count as the integers they spell; integers from 2^63 on wrap around.
    """
    # 20 digits hold every 64-bit number; longer ones are strings like any other.
    if isinstance(identifier, str) and len(identifier) <= 20 and identifier.isdecimal():
        number = int(identifier)
        identifier = number if str(number) == identifier else identifier
    if isinstance(identifier, int) and -(2**63) <= identifier < 2**64:
        return identifier if identifier < 2**63 else identifier - 2**64
    digest = hashlib.blake2b(str(identifier).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def keys(identifiers: Sequence[Identifier | None]) -> Int64s:
    """Return the 64-bit numbers of identifiers, NO_ID for None."""
    if identifiers.count(None) == len(identifiers):  # the usual case, and a fast one
        return np.full(len(identifiers), NO_ID)
    numbers = [NO_ID if identifier is None else identifier for identifier in identifiers]
    try:
        # Not numpy's: it takes the string "007" for 7.
        column = array("q", cast(Sequence[int], numbers))  # strings raise
    except (TypeError, OverflowError):  # OverflowError: an integer of 2^63 or more
        column = array("q", [key(number) for number in numbers])
    return np.frombuffer(column, dtype=np.int64)


def decoded(hash_ids: HashIds) -> list[Identifier] | None:
    """Return the hash ids as a list; raise BadLine for too many, or for no list of ids."""
    if not isinstance(hash_ids, msgspec.Raw):
        if hash_ids is not None and len(hash_ids) > MAX_HASH_IDS:
            raise BadLine(_TOO_MANY)
        return hash_ids
    text = bytes(hash_ids)
    if not text:
        return None
    if text.count(b",") >= MAX_HASH_IDS:  # not decoded: a list takes 20 times the text
        raise BadLine(_TOO_MANY)
    try:
        # Within an object, so that the place in an error is the place in the line.
        return _decode(b'{"hash_ids":%b}' % text).hash_ids
    except UNUSABLE as error:
        raise BadLine(reason_of(error)) from error


def gathered(prompts: Sequence[HashIds]) -> IdPaths:
    """Return offsets and 64-bit hash ids of all prompts; raise BadLine for invalid ids."""
    try:
        text = b"\n".join(prompts) + b"\n"  # type: ignore[arg-type]  # lists raise
    except TypeError:
        return _gathered_singly(prompts)
    starts = np.empty(len(prompts) + 1, dtype=np.int64)
    ids = np.empty(len(text) // 2, dtype=np.int64)  # an id takes a digit and what ends it
    count = parse(np.frombuffer(text, dtype=np.uint8), starts, ids)
    return _gathered_singly(prompts) if count == _UNUSUAL else (starts, ids[:count])


def _gathered_singly(prompts: Sequence[HashIds]) -> IdPaths:
    paths = [keys(decoded(hash_ids) or ()) for hash_ids in prompts]
    starts = np.zeros(len(prompts) + 1, dtype=np.int64)
    np.cumsum([len(path) for path in paths], out=starts[1:])
    return starts, np.concatenate([*paths, np.empty(0, dtype=np.int64)])


@kernel
def parse(text: NDArray[np.uint8], starts: Int64s, ids: Int64s) -> int:
    """Fill `starts` and `ids`; return the number of ids, or -1 if `text` has anything unusual.

    `text` has len(starts) - 1 lines, one per prompt, each with its line feed: empty or valid JSON.
    Usual: up to MAX_HASH_IDS integers from -2^63 to 2^64 - 1; integers from 2^63 on wrap around.
    """
    count = line = 0
    at = np.uint64(0)  # whether an index is negative would take a third of the time to find out
    negative = opened = closed = False
    starts[0] = 0
    while at < len(text):
        byte = text[at]
        first, digit, value = at, np.uint64(byte) - _ZERO, np.uint64(0)
        while digit <= _NINE:  # what comes before "0" wraps around to far above 9
            value = _TEN * value + digit
            at += _ONE
            digit = np.uint64(text[at]) - _ZERO
        digits = at - first
        if digits == 0:
            at += _ONE
            if byte == _MINUS:
                negative = True
            elif byte == _OPEN and not opened:
                opened = True
            elif byte == _CLOSE:
                closed = True
            elif byte == _LINE_FEED:
                too_many = count - starts[line] > MAX_HASH_IDS
                line += 1
                if opened != closed or too_many or line == len(starts):
                    return _UNUSUAL
                opened = closed = False
                starts[line] = count
            elif byte not in (_COMMA, _SPACE, _TAB, _RETURN):
                return _UNUSUAL
            continue
        # Of 20 digits, those that begin with a 1 are below 2 * 10^19, so that they wrapped around
        # if they are so small.
        small = digits < 20 or (
            digits == 20 and text[first] == _ZERO + _ONE and value >= _LEAST_OF_20_DIGITS
        )
        if not opened or not small or (negative and value > _LARGEST_NEGATED):
            return _UNUSUAL
        ids[count] = -np.int64(value) if negative else np.int64(value)
        count += 1
        negative = False
    return count if line == len(starts) - 1 else _UNUSUAL

"""Identifiers as signed 64-bit numbers: integers stay what they are, strings become digests."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

Identifier = int | str

NO_ID = -(2**63)  # stands for "none" among 64-bit identifiers
ROOT = -1  # the parent of a request of which the trace says that it has none


def key(identifier: Identifier) -> int:
    """An identifier as a signed 64-bit number: 64-bit integers themselves, the rest by digest.

    Decimal strings count as the integers they spell; integers from 2^63 on wrap around.
    """
    if isinstance(identifier, str) and _spells_integer(identifier):
        identifier = int(identifier)
    if isinstance(identifier, int) and -(2**63) <= identifier < 2**64:
        return identifier if identifier < 2**63 else identifier - 2**64
    digest = hashlib.blake2b(str(identifier).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _spells_integer(text: str) -> bool:
    # 20 digits hold every 64-bit number; longer ones are strings like any other.
    return len(text) <= 20 and text.isdecimal() and str(int(text)) == text


def keys(identifiers: list[Identifier | None]) -> NDArray[np.int64]:
    """The identifiers as 64-bit numbers, NO_ID where there is none."""
    return numbers([NO_ID if one is None else one for one in identifiers])


def numbers(identifiers: Sequence[Identifier]) -> NDArray[np.int64]:
    """The identifiers as 64-bit numbers."""
    try:
        # Not numpy's: it takes the string "007" for 7.
        found = array("q", cast(Sequence[int], identifiers))  # strings raise
    except (TypeError, OverflowError):  # OverflowError: an integer of 2^63 or more
        found = array("q", [key(one) for one in identifiers])
    return np.frombuffer(found, dtype=np.int64)

"""Sets of requests whose least member is found in three steps, many sets side by side.

A set is a row of 64-bit words on three levels, one behind the other: a bit of a higher level says
that the word below is not empty. The last word caches the least member plus 1, or 0 until `least`
has found it. Members count from 0; the least is the oldest request. `words` is `words_for` of the
number of members.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, lowest_bit

_ONE = np.uint64(1)
_WORD = np.uint64(63)
_UNKNOWN, _NONE = np.uint64(0), np.uint64(2**64 - 1)  # in place of one more than the least


@callable_in_kernels
def words_for(members: int) -> int:
    """Return the number of words in the lowest level of a set of 0 to `members` - 1."""
    return (members >> 6) + 1


def empty_sets(sets: int, members: int) -> NDArray[np.uint64]:
    """Return `sets` empty sets, one per row, for members 0 to `members` - 1."""
    words = words_for(members)
    upper = words_for(words)
    empty = np.zeros((sets, words + upper + words_for(upper) + 1), dtype=np.uint64)
    empty[:, -1] = _NONE
    return empty


@callable_in_kernels
def add(sets: NDArray[np.uint64], words: int, row: int, member: int) -> None:
    """Add `member` to set `row`."""
    word = member >> 6
    upper = word >> 6
    top = words + words_for(words)
    sets[row, word] |= _ONE << (np.uint64(member) & _WORD)
    sets[row, words + upper] |= _ONE << (np.uint64(word) & _WORD)
    sets[row, top + (upper >> 6)] |= _ONE << (np.uint64(upper) & _WORD)
    last = sets.shape[1] - 1
    sets[row, last] = min(sets[row, last], np.uint64(member + 1))


@callable_in_kernels
def discard(sets: NDArray[np.uint64], words: int, row: int, member: int) -> None:
    """Remove `member` from set `row`, if it is there."""
    word = member >> 6
    sets[row, word] &= ~(_ONE << (np.uint64(member) & _WORD))
    if sets[row, word] == 0:
        upper = word >> 6
        sets[row, words + upper] &= ~(_ONE << (np.uint64(word) & _WORD))
        if sets[row, words + upper] == 0:
            top = words + words_for(words) + (upper >> 6)
            sets[row, top] &= ~(_ONE << (np.uint64(upper) & _WORD))
    last = sets.shape[1] - 1
    if sets[row, last] == np.uint64(member + 1):
        sets[row, last] = _UNKNOWN


@callable_in_kernels
def least(sets: NDArray[np.uint64], words: int, row: int) -> int:
    """Return the least member of set `row`, -1 if it is empty."""
    last = sets.shape[1] - 1
    if sets[row, last] == _UNKNOWN:
        sets[row, last] = _NONE
        top = words + words_for(words)
        for at in range(top, last):
            if sets[row, at] != 0:
                upper = ((at - top) << 6) + lowest_bit(sets[row, at])
                word = (upper << 6) + lowest_bit(sets[row, words + upper])
                sets[row, last] = np.uint64((word << 6) + lowest_bit(sets[row, word]) + 1)
                break
    return -1 if sets[row, last] == _NONE else int(sets[row, last]) - 1

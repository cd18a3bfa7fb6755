"""Names of the array types of kernels; functions for distinct numbers and for random numbers."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels

Int32s = NDArray[np.int32]
UInt32s = NDArray[np.uint32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]
Records = np.recarray[Any, Any]

N = TypeVar("N", np.int32, np.int64)

STEP = np.uint64(0x9E3779B97F4A7C15)
"""Difference between a state of splitmix64 and the next one, modulo 2^64."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def record_type(whole: str, real: str = "") -> np.dtype[Any]:
    """Return a dtype with int64 fields `whole` and float fields `real`, names split at blanks."""
    return np.dtype(
        [(name, np.int64) for name in whole.split()] + [(name, float) for name in real.split()]
    )


def unsigned(numbers: Int32s) -> UInt32s:
    """Return an unsigned view of indices, which kernels use without a check for negative indices.

    The check of a signed index takes a quarter of the time of some kernels.
    """
    return numbers.view(np.uint32)


def distinct(*numbers: NDArray[N]) -> NDArray[N]:
    """Return the distinct numbers of all arrays, ascending.

    NumPy's `unique` hashes whole numbers: for millions, ten times slower than the sort here.
    """
    every = np.sort(np.concatenate(numbers))
    begins = np.ones(len(every), dtype=np.bool_)
    begins[1:] = every[1:] != every[:-1]
    return every[begins]


@callable_in_kernels
def mixed(state: Any) -> Any:
    """Return splitmix64's random number of a state, or of each of an array of states (uint64).

    Source: Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    x = (state ^ (state >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@callable_in_kernels
def fraction(number: Any) -> Any:
    """Return a random number of 64 bits, or an array of such numbers, scaled to [0, 1)."""
    return (number >> np.uint64(11)) * 2.0**-53

"""Names for arrays of one type, as kernels take them, and the distinct numbers of several."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
UInt32s = NDArray[np.uint32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]
Records = np.recarray[Any, Any]

N = TypeVar("N", np.int32, np.int64)


def record_type(whole: str, real: str = "") -> np.dtype[Any]:
    """Return the dtype of records with fields of whole numbers, then of floats: names by blanks."""
    return np.dtype(
        [(name, np.int64) for name in whole.split()] + [(name, float) for name in real.split()]
    )


def unsigned(numbers: Int32s) -> UInt32s:
    """Return a view as unsigned numbers, by which kernels index without a check for negatives.

    Of a signed index a kernel first looks whether it is negative: a quarter of the time of some.
    """
    return numbers.view(np.uint32)


def distinct(*numbers: NDArray[N]) -> NDArray[N]:
    """Return all numbers in ascending order, each once.

    NumPy's `unique` hashes whole numbers, which takes some ten times as long as to sort millions.
    """
    every = np.sort(np.concatenate(numbers))
    begins = np.ones(len(every), dtype=np.bool_)
    begins[1:] = every[1:] != every[:-1]
    return every[begins]

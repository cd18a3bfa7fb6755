"""Nearest-rank percentiles: the value that at least p % of all are not above."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.facts import Percentiles

_PERCENTS = np.array([50, 90, 95, 99])


def percentiles(values: NDArray[Any]) -> Percentiles:
    """The percentiles of at least one value, which need not be in order.

    NumPy sorts faster than it partitions by four ranks: its sort uses vector instructions.
    """
    rank = -(-_PERCENTS * len(values) // 100) - 1
    return Percentiles(*(float(value) for value in np.sort(values)[rank]))

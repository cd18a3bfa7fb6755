"""Nearest-rank percentiles: the least value that at least p % of all do not exceed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Quantiles(Struct, frozen=True):
    """Nearest-rank quantiles of a quantity; the field that holds them names the unit."""

    p50: float
    p80: float
    p90: float
    p99: float


class Percentiles(Struct, frozen=True):
    """Nearest-rank percentiles as in SLOs; the field that holds them names the unit."""

    p50: float
    p90: float
    p95: float
    p99: float


_PERCENTS = (50, 90, 95, 99)


def percentiles(values: NDArray[Any]) -> Percentiles:
    """Return the percentiles of at least one value, in any order.

    NumPy sorts faster than it partitions by four ranks: its sort uses vector instructions.
    """
    import numpy as np  # late: mistakes in a command are answered without it

    rank = -(-np.array(_PERCENTS) * len(values) // 100) - 1
    return Percentiles(*(float(value) for value in np.sort(values)[rank]))


def at_rank(values: NDArray[Any], rank: float) -> float:
    """Return the percentile `rank` (0-1, 0 excluded) of at least one value, in any order."""
    import numpy as np  # late, as above

    at = int(np.ceil(rank * len(values) - 1e-9)) - 1
    return float(np.partition(values, at)[at])

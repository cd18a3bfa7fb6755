"""Nearest-rank percentiles: the least value that at least p % of all values do not exceed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Quantiles(Struct, frozen=True):
    """Nearest-rank quantiles; a record's field with such quantiles carries the unit in its name."""

    p50: float
    p80: float
    p90: float
    p99: float


class Percentiles(Struct, frozen=True):
    """Nearest-rank percentiles of SLOs; a record's field with them carries the unit in its name."""

    p50: float
    p90: float
    p95: float
    p99: float


_PERCENTS = (50, 90, 95, 99)


def percentiles(values: NDArray[Any]) -> Percentiles:
    """Return the percentiles of `values`, which must not be empty, in any order.

    Sorting is faster than partitioning by four ranks: NumPy's sort uses vector instructions.
    """
    import numpy as np  # late: mistakes in a command are answered without it

    rank = -(-np.array(_PERCENTS) * len(values) // 100) - 1
    return Percentiles(*(float(value) for value in np.sort(values)[rank]))


def at_rank(values: NDArray[Any], rank: float) -> float:
    """Return the percentile at `rank` (above 0, at most 1) of `values`, which must not be empty."""
    import numpy as np  # late, as above

    at = int(np.ceil(rank * len(values) - 1e-9)) - 1
    return float(np.partition(values, at)[at])

"""Capacities worth a look where nobody named any."""

from __future__ import annotations

import numpy as np

from kvscope.simulate.curve import HitCurve

SMALLEST_SHARE = 0.01


def spread(curve: HitCurve, points: int) -> list[int]:
    """`points` capacities in blocks, up to the least one with which LRU loses no reuse at all.

    They grow by a constant factor from a hundredth of that; where it is small there are fewer.
    """
    whole = max(curve.capacity_for(curve.ideal), 1)
    lowest = max(whole * SMALLEST_SHARE, 1.0) if points > 1 else whole
    grid = np.geomspace(lowest, whole, points).round().astype(np.int64)
    return [int(capacity) for capacity in np.unique(grid)]

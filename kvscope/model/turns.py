"""Who goes on with a conversation, and when: the waits that the conversation model is fitted to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.model.observations import RESOLUTION_S, Floats, Observations


def next_turn_s(parent: NDArray[np.integer], arrival_s: Floats) -> Floats:
    """When the turn after each request arrives; of several the earliest, infinity for none."""
    child = np.flatnonzero(parent >= 0)
    found = np.full(len(parent), np.inf)
    np.minimum.at(found, parent[child], arrival_s[child])
    return found


def turn_waits(
    arrival_s: Floats,
    next_s: Floats,
    end_s: float,
    cluster: NDArray[np.integer] | None = None,
    resolution_s: float = RESOLUTION_S,
) -> Observations:
    """The wait for the turn after each request, as seen at `end_s`, not included."""
    reused = next_s < end_s
    waited_s = np.where(reused, next_s, end_s) - arrival_s
    return Observations.of(waited_s, reused, None, cluster, resolution_s)

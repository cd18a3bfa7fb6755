"""Replicas added and removed with the load, as Kubernetes scales a deployment.

The number of replicas follows from arrival times alone: the autoscaler's target is a number of
requests a second for each replica, which does not depend on how they are served.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int64s
from kvscope.fleet.options import RATE_S, SETTLE_S, SYNC_S, Scaling

_TOLERANCE = 0.1
_ROUNDING = 1e-9
_MOST_ADDED = 4


class Schedule(Struct, frozen=True):
    """The number of `replicas` that serve from each time `from_s` on (K, ascending from -inf)."""

    from_s: Float64s
    replicas: Int64s

    def at(self, now_s: float) -> tuple[int, float]:
        """Return the number of replicas at a time, and the time of its next change (inf: none)."""
        place = int(np.searchsorted(self.from_s, now_s, side="right"))
        changes_s = float(self.from_s[place]) if place < len(self.from_s) else math.inf
        return int(self.replicas[place - 1]), changes_s

    def mean(self, begin_s: float, end_s: float) -> float:
        """Return the mean number of replicas between two times."""
        edges = np.clip(np.append(self.from_s, np.inf), begin_s, end_s)
        if end_s <= begin_s:
            return float(self.replicas[0])
        return float(np.diff(edges) @ self.replicas) / (end_s - begin_s)


def schedule(arrival_s: Float64s, scaling: Scaling) -> Schedule:
    """Return the number of replicas over time; it starts with that of the first RATE_S seconds.

    `arrival_s` (R) are seconds since the trace's start. An added replica serves `ready_s` later; a
    removed one gets no further requests. The newest are removed first.
    """
    arrivals = np.sort(arrival_s)

    def share_at(now_s: float) -> float:
        """Return the number of replicas, not rounded, for the rate of the last RATE_S seconds."""
        begin, end = np.searchsorted(arrivals, (now_s - RATE_S, now_s))
        return float(end - begin) / RATE_S / scaling.requests_per_s

    def suiting(share: float) -> int:
        return min(max(math.ceil(share - _ROUNDING), scaling.low), scaling.high)

    first = suiting(share_at(RATE_S))
    serves_from = [-math.inf] * first  # each of the present ones, the oldest first
    changes = {-math.inf: first}
    recent = deque([(RATE_S, first)])
    syncs = np.arange(RATE_S + SYNC_S, arrivals[-1] + SYNC_S if len(arrivals) else 0.0, SYNC_S)
    for now_s in syncs.tolist():
        share, present = share_at(now_s), len(serves_from)
        near = abs(share / present - 1) <= _TOLERANCE + _ROUNDING
        wanted = suiting(present if near else share)
        recent.append((now_s, wanted))
        while recent[0][0] <= now_s - SETTLE_S:
            recent.popleft()
        if wanted < present:
            wanted = min(present, max(each for _, each in recent))
        wanted = min(wanted, max(2 * present, present + _MOST_ADDED))
        for _ in range(wanted, present):
            began_s = serves_from.pop()
            at_s = max(now_s, began_s)  # one that never served adds nothing to the changes
            changes[at_s] = changes.get(at_s, 0) - 1
        for _ in range(present, wanted):
            serves_from.append(now_s + scaling.ready_s)
            changes[serves_from[-1]] = changes.get(serves_from[-1], 0) + 1
    times = sorted(at_s for at_s, change in changes.items() if change)
    counts = np.cumsum([changes[at_s] for at_s in times])
    return Schedule(np.array(times), counts.astype(np.int64))

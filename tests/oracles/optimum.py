"""The best that any choice of evictions can do, by trying them all: for tiny traces."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import combinations

from kvscope.replay.traffic import Traffic
from tests.oracles.replay import left_behind, paths

Gain = Callable[[int, int], float]


def best(traffic: Traffic, capacity: int, gain: Gain) -> float:
    """Return the largest sum of gain(request, hit blocks) over all ways to keep so many blocks."""
    states: dict[frozenset[Hashable], float] = {frozenset(): 0.0}
    for at, (path, blocks) in enumerate(zip(paths(traffic), left_behind(traffic), strict=True)):
        after: dict[frozenset[Hashable], float] = {}
        for cached, gained in states.items():
            leading = next((d for d, block in enumerate(path) if block not in cached), len(path))
            total = gained + gain(at, min(leading, int(traffic.look[at])))
            there = cached | set(blocks)
            for kept in combinations(there, min(capacity, len(there))):
                after[frozenset(kept)] = max(after.get(frozenset(kept), total), total)
        states = after
    return max(states.values())

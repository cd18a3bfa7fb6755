"""The best that any choice of evictions can do, by trying them all: for tiny traces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import combinations

from kvscope.replay.traffic import Traffic
from tests.oracles.replay import left_behind, paths

Gain = Callable[[int, int], float]


def best(traffic: Traffic, capacity: int, gain: Gain, *, leaf: bool = False) -> float:
    """Return the largest sum of gain(request, hit blocks) over all ways to keep so many blocks.

    `leaf`: over those that keep no block without the blocks before it.
    """
    states: dict[frozenset[Hashable], float] = {frozenset(): 0.0}
    for at, (path, blocks) in enumerate(zip(paths(traffic), left_behind(traffic), strict=True)):
        after: dict[frozenset[Hashable], float] = {}
        for cached, gained in states.items():
            leading = next((d for d, block in enumerate(path) if block not in cached), len(path))
            total = gained + gain(at, min(leading, int(traffic.look[at])))
            there = cached | set(blocks)
            for kept in combinations(there, min(capacity, len(there))):
                state = _reachable(traffic, kept) if leaf else frozenset(kept)
                after[state] = max(after.get(state, total), total)
        states = after
    return max(states.values())


def _reachable(traffic: Traffic, kept: Iterable[Hashable]) -> frozenset[Hashable]:
    """Return the blocks that are kept with all blocks before them, and those without a name."""
    roots = {0}
    for block in sorted(block for block in kept if isinstance(block, int)):
        if int(traffic.block_parent[block]) in roots:
            roots.add(block)
    return frozenset(block for block in kept if block in roots or not isinstance(block, int))

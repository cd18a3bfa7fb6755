"""Runs that are wanted of a trace: those that the store keeps, and those still to be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.replay.curve import HitCurve
from kvscope.replay.workload import Asked, Workload, sources_digest
from kvscope.store import results
from kvscope.store.db import Store

SMALLEST_SHARE = 0.01


def spread(curve: HitCurve, points: int) -> list[int]:
    """`points` capacities in blocks, up to the least one with which LRU loses no reuse at all.

    They grow by a constant factor from a hundredth of that; where it is small there are fewer.
    """
    whole = max(curve.capacity_for(curve.ideal), 1)
    lowest = max(whole * SMALLEST_SHARE, 1.0) if points > 1 else whole
    grid = np.geomspace(lowest, whole, points).round().astype(np.int64)
    return [int(capacity) for capacity in np.unique(grid)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted, each once: `known` of it is in the store, `missing` has to be replayed."""

    known: tuple[Run, ...]
    missing: tuple[Asked, ...]

    @property
    def count(self) -> int:
        """How many runs are wanted."""
        return len(self.known) + len(self.missing)


def wanted(store: Store, trace: Trace, setting: RunSetting, asked: Sequence[Asked]) -> Wanted:
    """What the store has of the runs that are `asked` for, made by these very sources."""
    by_digest: Mapping[str, Asked] = {
        results.request_digest(
            one.policy.name, one.policy.evicts, one.policy.values, one.capacity_blocks, setting
        ): one
        for one in asked
    }
    known = results.known_runs(store, trace, list(by_digest), sources_digest())
    missing = tuple(one for digest, one in by_digest.items() if digest not in known)
    return Wanted(tuple(known.values()), missing)


def keep(store: Store, trace: Trace, run: Run) -> Run:
    """Keep a run that these sources made."""
    return results.add_run(store, trace, run, sources_digest())


def grid(workload: Workload, named: Iterable[int], points: int | None, usual: int) -> list[int]:
    """The capacities to replay at: those named, and a spread where asked for or none is named."""
    named = list(named)
    if points is None and named:
        return named
    return sorted({*named, *spread(workload.curve, points or usual)})

"""What reuse models are fitted to: touches of blocks, and how long each was watched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESOLUTION_S = 1e-3  # what clocks of traces tell at best
_LEAST_S = 1e-6  # a shorter wait that goes on counts as this
BIN_WIDTH = 0.01  # relative: waits that lie closer than that may be taken together


@dataclass(frozen=True)
class Observations:
    """K runs of touched blocks, each with one wait.

    Run k: `weight[k]` blocks were touched together and, `waited_s[k]` later, touched again
    (`reused[k]`) or, where not, still waiting when the window closed: right-censored. Runs of one
    `cluster` (0 to C - 1) may depend on each other, those of different ones do not.
    """

    waited_s: Floats
    reused: NDArray[np.bool_]
    weight: Floats
    cluster: Ints
    resolution_s: float = RESOLUTION_S

    @classmethod
    def of(
        cls,
        waited_s: NDArray[np.floating],
        reused: NDArray[np.bool_],
        weight: NDArray[np.generic] | None = None,
        cluster: NDArray[np.integer] | None = None,
        resolution_s: float = RESOLUTION_S,
    ) -> Self:
        """Runs in any order and of any weight; each a cluster of its own unless told otherwise."""
        least_s = np.where(reused, resolution_s, _LEAST_S)
        waited = np.maximum(np.asarray(waited_s, dtype=np.float64), least_s)
        weights = np.ones(len(waited)) if weight is None else np.asarray(weight, dtype=np.float64)
        some = weights > 0
        named = np.arange(len(waited)) if cluster is None else np.asarray(cluster)
        _, numbered = np.unique(named[some], return_inverse=True)
        return cls(
            waited[some],
            np.asarray(reused, dtype=np.bool_)[some],
            weights[some],
            numbered.astype(np.int64),
            resolution_s,
        )

    @cached_property
    def total(self) -> float:
        """Touched blocks."""
        return float(self.weight.sum())

    @cached_property
    def total_reused(self) -> float:
        """Those of them that were touched again in time."""
        return float(self.weight[self.reused].sum())

    @cached_property
    def reused_runs(self) -> int:
        """Runs that were touched again."""
        return int(np.count_nonzero(self.reused))

    @cached_property
    def clusters(self) -> int:
        """Parts of the data that do not depend on each other."""
        return int(self.cluster.max()) + 1 if len(self.cluster) else 0

    @cached_property
    def effective(self) -> float:
        """So many independent blocks would tell as much: Kish's size, by clusters."""
        by_cluster = np.bincount(self.cluster, self.weight)
        squares = float(by_cluster @ by_cluster)
        return self.total**2 / squares if squares else 0.0

    @cached_property
    def effective_reused(self) -> float:
        """The same of the reused blocks."""
        by_cluster = np.bincount(self.cluster[self.reused], self.weight[self.reused])
        squares = float(by_cluster @ by_cluster)
        return self.total_reused**2 / squares if squares else 0.0

    @cached_property
    def at_once(self) -> NDArray[np.bool_]:
        """Runs that were touched again before the clock could tell when."""
        return self.reused & (self.waited_s <= self.resolution_s * (1 + 1e-9))

    def merged(self) -> Observations:
        """The same with waits closer than `BIN_WIDTH` as one, at their mean; without clusters.

        A likelihood is smooth over so short a stretch, so what this changes is of the second order:
        about a part in 100,000.
        """
        place = np.floor(np.log(self.waited_s / _LEAST_S) / BIN_WIDTH).astype(np.int64)
        key = np.where(self.at_once, 1, 2 * (place + 1) + self.reused)
        blocks: Floats = np.bincount(key, self.weight).astype(np.float64)
        seconds = np.bincount(key, self.weight * self.waited_s)
        found = np.flatnonzero(blocks)
        mean_s: Floats = seconds[found] / blocks[found]
        numbered = np.arange(len(found), dtype=np.int64)
        return Observations(mean_s, found % 2 == 1, blocks[found], numbered, self.resolution_s)

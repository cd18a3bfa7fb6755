"""Observations for reuse models: touches of blocks with their wait, censored or not."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESOLUTION_S = 1e-3  # resolution of a trace's clock at best
_LEAST_S = 1e-6  # a shorter censored wait counts as this
BIN_WIDTH = 0.01  # relative: waits that lie closer than that may be taken together


class Observations(Struct, frozen=True, dict=True):
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
        """Return runs in any order and of any weight; by default each is its own cluster."""
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
        """Touched blocks that were reused."""
        return float(self.weight[self.reused].sum())

    @cached_property
    def reused_runs(self) -> int:
        """Runs that were reused."""
        return int(np.count_nonzero(self.reused))

    @cached_property
    def clusters(self) -> int:
        """Number of independent parts of the data."""
        return int(self.cluster.max()) + 1 if len(self.cluster) else 0

    @cached_property
    def effective(self) -> float:
        """Number of independent blocks with as much evidence: Kish's effective size, by cluster."""
        by_cluster = np.bincount(self.cluster, self.weight)
        squares = float(by_cluster @ by_cluster)
        return self.total**2 / squares if squares else 0.0

    @cached_property
    def effective_reused(self) -> float:
        """Kish's effective size of the reused blocks."""
        by_cluster = np.bincount(self.cluster[self.reused], self.weight[self.reused])
        squares = float(by_cluster @ by_cluster)
        return self.total_reused**2 / squares if squares else 0.0

    @cached_property
    def at_once(self) -> NDArray[np.bool_]:
        """Runs reused within the clock's resolution."""
        return self.reused & (self.waited_s <= self.resolution_s * (1 + 1e-9))

    def merged(self) -> Observations:
        """Return the runs binned by wait (`BIN_WIDTH`, at the bin's mean); without clusters.

        A likelihood is smooth within a bin, so the change is of the second order: about 1e-5.
        """
        place = np.floor(np.log(self.waited_s / _LEAST_S) / BIN_WIDTH).astype(np.int64)
        key = np.where(self.at_once, 1, 2 * (place + 1) + self.reused)
        blocks: Floats = np.bincount(key, self.weight).astype(np.float64)
        seconds = np.bincount(key, self.weight * self.waited_s)
        bins = np.flatnonzero(blocks)
        mean_s: Floats = seconds[bins] / blocks[bins]
        numbered = np.arange(len(bins), dtype=np.int64)
        return Observations(mean_s, bins % 2 == 1, blocks[bins], numbered, self.resolution_s)

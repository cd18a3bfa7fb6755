"""From a sample's hit rates to the whole trace's, with their error: anchored at LRU's exact curve.

What a miniature gets wrong is known for LRU, whose exact curve costs one pass over the whole trace.
So an estimate takes a policy's lead over LRU from the sample and adds it to LRU's exact rate (a
control variate): the error that both share cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import UsageError
from kvscope.facts import HitDefinition
from kvscope.simulate.curve import HitCurve, first_counted, lru_curve
from kvscope.simulate.distances import LruDistances, lru_distances
from kvscope.simulate.misses import lru_hit_blocks
from kvscope.simulate.sampling import Sample
from kvscope.store.prompts import Prompts

LEAST_HELD = 20  # requests in a scaled cache: with fewer, whole requests are too coarse a grain


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rate (0-1) and how far the exact one may be: within `error` of it, 19 times of 20."""

    rate: float
    error: float


@dataclass(frozen=True, slots=True)
class Anchor:
    """LRU's exact curve of the `whole` trace beside what the sample makes of LRU.

    `total` is what each sampled request asks for, in the weight of `definition`; those from `first`
    on are counted.
    """

    sample: Sample
    definition: HitDefinition
    whole: HitCurve
    runs: LruDistances
    total: NDArray[np.int64]
    first: int

    def estimate(self, hit_blocks: NDArray[np.int32], capacity_blocks: int) -> Estimate:
        """The whole trace's hit rate at `capacity_blocks`, from a policy's replay of the sample.

        `hit_blocks` is what each sampled request hit at `sample.capacity(capacity_blocks)`. The
        error is twice that of the lead over LRU, by the spread of the subtrees, and of the most
        that the miniature gets wrong about LRU between half and twice the capacity: other policies
        suffer from what the miniature lacks, too. It is 1 where the scaled cache holds so few
        requests that nothing can be said.

        Source: Cochran, "Sampling Techniques", sections 6.3 and 9A (ratios over clusters).
        """
        counted = slice(self.first, None)
        total = self.total[counted]
        asked = int(total.sum())
        if not asked:
            return Estimate(0.0, 0.0)
        lead = (self._weighted(hit_blocks) - self._lru_hits(capacity_blocks))[counted]
        gain = float(lead.sum()) / asked
        around = (round(capacity_blocks * factor) for factor in (0.5, 0.7, 1.0, 1.4, 2.0))
        wrong = max(abs(self._wrong(capacity, counted, asked)) for capacity in around)
        spread = _standard_error(self.sample.group[counted], lead - gain * total, self.sample.rate)
        rate = float(self.whole.rate(capacity_blocks)) + gain
        return Estimate(
            rate=min(max(rate, 0.0), 1.0),
            error=self._error(spread / asked, wrong, capacity_blocks),
        )

    def _error(self, spread: float, wrong: float, capacity_blocks: int) -> float:
        sample = self.sample
        if sample.rate == 1 and sample.coarsen == 1:
            return 0.0
        request_blocks = float(np.mean(sample.prompts.cached_blocks))
        if sample.rate < 1 and sample.capacity(capacity_blocks) < LEAST_HELD * request_blocks:
            return 1.0
        return min(2 * math.hypot(spread, wrong), 1.0)

    def _lru_hits(self, capacity_blocks: int) -> NDArray[np.int64]:
        capacity = self.sample.capacity(capacity_blocks)
        return self._weighted(lru_hit_blocks(self.runs, len(self.sample.requests), capacity))

    def _wrong(self, capacity_blocks: int, counted: slice, asked: int) -> float:
        """LRU's rate in the miniature less its exact one."""
        hits = float(self._lru_hits(capacity_blocks)[counted].sum())
        return hits / asked - float(self.whole.rate(capacity_blocks))

    def _weighted(self, hit_blocks: NDArray[np.int32]) -> NDArray[np.int64]:
        if self.definition.weight == "request":
            return (hit_blocks > 0).astype(np.int64)
        if self.definition.weight == "block":
            return hit_blocks.astype(np.int64)
        size = self.sample.prompts.block_size
        return np.minimum(hit_blocks.astype(np.int64) * size, self.total)


def anchored(prompts: Prompts, sample: Sample, definition: HitDefinition) -> Anchor:
    """What makes rates of `sample`, which was drawn from `prompts`, rates of the whole trace.

    Raises UsageError for a flat definition, whose blocks are not in subtrees, and for one that
    keeps partial blocks where blocks were coarsened.
    """
    if definition.flat:
        raise UsageError(
            "a sample keeps prefixes together, a flat cache knows none",
            where=definition.name,
            remedy="replay the whole trace",
        )
    if definition.partial and sample.coarsen > 1:
        raise UsageError(
            "coarser blocks lose the partial ones",
            where=definition.name,
            remedy="sample by rate alone, or drop partial blocks",
        )
    inside = sample.prompts
    asked: dict[str, NDArray[np.int32]] = {
        "token": inside.input_tokens,
        "block": inside.blocks if definition.partial else inside.full_blocks,
        "request": np.ones(len(inside.leaf), dtype=np.int32),
    }
    return Anchor(
        sample=sample,
        definition=definition,
        whole=lru_curve(prompts, definition),
        runs=lru_distances(inside, definition),
        total=asked[definition.weight].astype(np.int64),
        first=int(np.searchsorted(sample.requests, first_counted(prompts, definition))),
    )


def _standard_error(group: NDArray[np.int64], residual: NDArray[np.float64], rate: float) -> float:
    """Standard error of a sum over subtrees that were chosen at this rate."""
    _, subtree = np.unique(group, return_inverse=True)
    by_subtree = np.bincount(subtree, residual)
    if len(by_subtree) < 2:
        return math.inf
    correction = (1 - rate) * len(by_subtree) / (len(by_subtree) - 1)
    return math.sqrt(correction * float(by_subtree @ by_subtree))

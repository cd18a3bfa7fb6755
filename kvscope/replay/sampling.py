"""Estimate the hit rates of a whole dataset from a sample, with their error, by LRU's exact curve.

The error of a sample in a scaled-down cache is known for LRU, whose exact curve costs one pass over
the whole trace. So an estimate takes a policy's lead over LRU from the sample and adds it to LRU's
exact rate (a control variate): the error common to both cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import STEP, Bools, Float64s, Int32s, Int64s, fraction, mixed
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import kernel
from kvscope.core.trace import Prompts
from kvscope.ingest.lineage import SHARED_HEAD_CONTINUATIONS
from kvscope.replay.curve import HitCurve, looked_up, weighted
from kvscope.replay.derived_traces import at_rate, select
from kvscope.replay.misses import lru_hit_blocks
from kvscope.replay.stack_distances import LruDistances, lru_distances

SHARED_BY = 0.01  # of all requests: a subtree of more is no unit to sample, but cut below its head


class Sample(Struct, frozen=True):
    """Part of a trace: `prompts` are its requests with the ascending numbers `requests`.

    `group` numbers the subtree of the trie that each request is in; subtrees are sampled as a
    whole. `rate` is the share that was requested of the trace's `whole_requests`.
    """

    prompts: Prompts
    requests: Int64s
    group: Int64s
    rate: float
    whole_requests: int

    def capacity(self, capacity_blocks: int) -> int:
        """Return the sample's capacity that corresponds to a capacity of the trace, in blocks."""
        return round(self.rate * capacity_blocks)


class DrawnTrace(Struct, frozen=True):
    """A dataset too large to load: a `sample` of it, and LRU's exact curve of the whole."""

    sample: Sample
    curve: HitCurve

    @property
    def without_measurements(self) -> Prompts:
        """The prompts of the sample, without measurements."""
        return replace(self.sample.prompts, measurements=None)

    def at_rate(self, factor: float) -> DrawnTrace:
        """Return the drawn trace with requests that arrive `factor` times as fast."""
        prompts = at_rate(self.sample.prompts, factor)
        return replace(self, sample=replace(self.sample, prompts=prompts))


def sampled(source: Sample, rate: float, part: int = 0) -> Sample:
    """Return a sample of a share `rate` of the trace's subtrees; `source` has at least that share.

    Samples of the same rate and another `part` are disjoint. Raises UsageError for an empty one.
    """
    chosen = np.flatnonzero(is_drawn(source.group, rate, part))
    if not len(chosen):
        raise nothing_left(source.whole_requests, rate)
    return replace(
        source,
        prompts=select(source.prompts, chosen),
        requests=source.requests[chosen],
        group=source.group[chosen],
        rate=rate,
    )


def is_drawn(group: Int64s, rate: float, part: int = 0) -> Bools:
    """Return a mask of the requests in a sample of this rate; `group` (R) has their subtrees."""
    place = uniform(group, 0)
    return (part * rate <= place) & (place < (part + 1) * rate)


def nothing_left(requests: int, rate: float) -> UsageError:
    """Return the error for an empty sample of a trace with this number of `requests`."""
    return UsageError(
        f"nothing is left of {requests:,} requests at rate {rate}", remedy="sample at a higher rate"
    )


def shared_limit(requests: int) -> int:
    """Return the most requests that may share a sampled subtree, of a trace with `requests`."""
    return max(SHARED_HEAD_CONTINUATIONS, int(SHARED_BY * requests))


def subtree_roots(block_parent: Int32s, leaf: Int32s, limit: int) -> Int32s:
    """Return the first block of the subtree that each block is in, N + 1 entries, the root's first.

    Subtrees are the largest that at most `limit` requests use; blocks above have 0. `leaf` are the
    last blocks of the requests.
    """
    requests, root = np.zeros((2, len(block_parent)), dtype=np.int32)
    _find_roots(block_parent, leaf, limit, requests, root)
    return root


@kernel
def _find_roots(
    block_parent: Int32s, leaf: Int32s, limit: int, requests: Int32s, root: Int32s
) -> None:
    """Fill two arrays by block (N + 1 entries, 0 at first), for `subtree_roots`.

    `requests` is the number of requests whose path has the block, `root` the first block of its
    subtree: the highest block on its path that at most `limit` requests have; 0 without one.
    """
    for block in leaf:
        requests[block] += 1
    for block in range(len(block_parent) - 1, 0, -1):  # children have higher numbers
        requests[block_parent[block]] += requests[block]
    for block in range(1, len(block_parent)):
        root[block] = root[block_parent[block]]
        if root[block] == 0 and requests[block] <= limit:
            root[block] = block


def uniform(numbers: Int64s, seed: int) -> Float64s:
    """Return a pseudo-random value in [0, 1) for each number; number and `seed` determine it."""
    states = numbers.astype(np.uint64) + np.uint64((seed + 1) * int(STEP) % 2**64)
    return np.asarray(fraction(mixed(states)))


LEAST_RATE = 0.1
"""The least share to sample: smaller samples cannot state errors (docs/evidence/sampling.md)."""
PARTS = 3  # that a sample is cut into
LEAST_HELD = 20  # requests in a scaled cache: with fewer, whole requests are too coarse a grain


class Estimate(Struct, frozen=True):
    """A rate (0-1) and its error: the exact rate is within it with 95 % confidence."""

    rate: float
    error: float


class Anchor(Struct, frozen=True):
    """LRU's exact curve of the `whole` trace, and its stack distances (`runs`) on the sample.

    Both turn rates of the sample into the whole's. `total` is the amount that each sampled request
    looks up, in the weight of `definition`; sampled requests from number `first` on are counted.
    """

    sample: Sample
    definition: HitDefinition
    whole: HitCurve
    runs: LruDistances
    total: Int64s
    first: int

    def estimate(self, hit_blocks: Int32s, capacity_blocks: int) -> Estimate:
        """Return the whole trace's hit rate at `capacity_blocks`, from a replay of the sample.

        `hit_blocks` are the hits of each sampled request at `sample.capacity(capacity_blocks)`. The
        error is 1 if the scaled cache holds too few requests; else twice the root sum of squares of
        two: the standard error, over subtrees, of the lead over LRU, and LRU's largest error on the
        sample between half and twice the capacity, since other policies suffer from scaling, too.

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
            rate=min(max(rate, 0.0), 1.0), error=self._error(spread / asked, wrong, capacity_blocks)
        )

    def _error(self, spread: float, wrong: float, capacity_blocks: int) -> float:
        sample = self.sample
        request_blocks = float(np.mean(sample.prompts.cached_blocks))
        if sample.capacity(capacity_blocks) < LEAST_HELD * request_blocks:
            return 1.0
        return min(2 * math.hypot(spread, wrong), 1.0)

    def _lru_hits(self, capacity_blocks: int) -> Int64s:
        capacity = self.sample.capacity(capacity_blocks)
        return self._weighted(lru_hit_blocks(self.runs, len(self.sample.requests), capacity))

    def _wrong(self, capacity_blocks: int, counted: slice, asked: int) -> float:
        """Return LRU's hit rate on the sample minus its exact one on the whole trace.

        The sample's cache is scaled. `counted` are the sampled requests that count, `asked` (above
        0) the amount that these look up, in the definition's weight.
        """
        hits = float(self._lru_hits(capacity_blocks)[counted].sum())
        return hits / asked - float(self.whole.rate(capacity_blocks))

    def _weighted(self, hit_blocks: Int32s) -> Int64s:
        return weighted(self.sample.prompts, self.definition, hit_blocks)


def with_drift(estimate: Estimate, rate: float, parts: Sequence[Estimate]) -> Estimate:
    """Return `estimate`, from a sample of this rate, its error widened by its drift with size.

    `parts` are estimates from PARTS disjoint smaller samples, of rate / PARTS each. A policy may
    behave otherwise in a smaller cache (lfu counts requests that share a block, and a sample has
    fewer): the change from the parts to the sample, plus its own uncertainty, is added for each
    multiplication by PARTS from the sample to the whole.
    """
    if max(estimate.error, *(part.error for part in parts)) == 1:
        return Estimate(estimate.rate, 1.0)
    rates = np.array([part.rate for part in parts])
    noise = float(rates.std(ddof=1)) / math.sqrt(len(parts))
    drift = abs(estimate.rate - float(rates.mean())) + 2 * noise
    steps = math.log(1 / rate) / math.log(PARTS)
    return Estimate(estimate.rate, min(estimate.error + drift * steps, 1.0))


def require_estimable(definition: HitDefinition) -> None:
    """Raise UsageError for a flat definition, which a sample cannot estimate.

    Its blocks hit without those before them, so that a sample of subtrees does not stand for them.
    """
    if definition.flat:
        raise UsageError(
            "a sample keeps prefixes together, a flat cache knows none",
            where=definition.name,
            remedy="replay the whole trace",
        )


def anchored(drawn: DrawnTrace, definition: HitDefinition) -> Anchor:
    """Return the anchor that turns rates of a sample into rates of the whole trace.

    Raises UsageError for a flat definition (see `require_estimable`).
    """
    require_estimable(definition)
    sample = drawn.sample
    return Anchor(
        sample=sample,
        definition=definition,
        whole=drawn.curve,
        runs=lru_distances(sample.prompts, definition),
        total=looked_up(sample.prompts, definition),
        first=int(np.searchsorted(sample.requests, int(sample.whole_requests * definition.warmup))),
    )


def _standard_error(group: Int64s, residual: Float64s, rate: float) -> float:
    """Return the standard error of a sum over subtrees that were sampled at this rate."""
    _, subtree = np.unique(group, return_inverse=True)
    by_subtree = np.bincount(subtree, residual)
    if len(by_subtree) < 2:
        return math.inf
    correction = (1 - rate) * len(by_subtree) / (len(by_subtree) - 1)
    return math.sqrt(correction * float(by_subtree @ by_subtree))

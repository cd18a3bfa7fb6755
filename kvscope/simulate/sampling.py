"""Miniature replays of traces that are too large for many exact ones: a sample, a scaled cache.

Two ways, which combine. `coarsen` takes k blocks of a path as one (kvscope.simulate.coarse): all
requests stay, so that percentiles and queues do too. `rate` takes a share of the trace's subtrees,
each whole, below the heads that very many requests share: whoever reuses a sampled block is in
the sample too. Prefer the first where prompts are many blocks long. The second needs a scaled cache
that still holds many requests (where it holds a few, any policy comes out too low), and its queues
mean nothing.

Rates of a sample become rates of the whole trace, with their errors, in kvscope.simulate.anchor.

Source: Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST'15, and "Cache Modeling
and Optimization using Miniature Simulations", ATC'17. SHARDS-adj, which blames a sample's wrong
size on blocks that always hit, is not used: a sample of subtrees has its wrong size from long
conversations, and the adjusted rates were the worse ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import UsageError
from kvscope.ingest.lineage import SHARED_HEAD_CONTINUATIONS
from kvscope.jit import kernel
from kvscope.simulate.coarse import coarsened
from kvscope.simulate.subset import select
from kvscope.store.prompts import Prompts

SHARED_BY = 0.01  # of all requests: a subtree of more is no unit to sample, but cut below its head


@dataclass(frozen=True, slots=True)
class Sample:
    """Part of a trace: `prompts`, which are the trace's `requests` (ascending numbers).

    `group` numbers the subtree of each. `rate` is the share that was asked for, `coarsen` how many
    blocks are one; `rate_requests` and `rate_blocks` are the shares of the trace's requests and
    distinct blocks that it came to.
    """

    prompts: Prompts
    requests: NDArray[np.int64]
    group: NDArray[np.int64]
    rate: float
    coarsen: int
    rate_requests: float
    rate_blocks: float

    def capacity(self, capacity_blocks: int) -> int:
        """The capacity, in blocks, that stands in the miniature for this one of the whole."""
        return round(self.rate * capacity_blocks / self.coarsen)


def sampled(
    prompts: Prompts, rate: float = 1.0, *, seed: int = 0, part: int = 0, coarsen: int = 1
) -> Sample:
    """A share `rate` of the trace by subtrees, chosen by a seeded hash, `coarsen` blocks as one.

    Samples of the same rate and seed and another `part` (0 to 1 / rate - 1) are disjoint. Raises
    UsageError for a rate or part that cannot be, and where nothing is left in the sample.
    """
    if not 0 < rate <= 1:
        raise UsageError(f"sampling rate {rate}", remedy="give a share above 0, at most 1")
    if not 0 <= part < max(math.floor(1 / rate + 1e-9), 1):
        raise UsageError(f"part {part} at rate {rate}", remedy="give a number from 0 to 1 / rate")
    limit = max(SHARED_HEAD_CONTINUATIONS, int(SHARED_BY * len(prompts.leaf)))
    group = subtrees(prompts.block_parent, prompts.leaf, limit)
    place = uniform(group, seed)
    chosen = np.flatnonzero((part * rate <= place) & (place < (part + 1) * rate))
    if not len(chosen):
        raise UsageError(
            f"nothing is left of {len(group):,} requests at rate {rate}",
            remedy="sample at a higher rate",
        )
    inside = select(prompts, chosen)
    if coarsen != 1:
        inside = coarsened(inside, coarsen)
    blocks = max(len(prompts.block_parent) - 1, 1)
    return Sample(
        prompts=inside,
        requests=chosen,
        group=group[chosen],
        rate=rate,
        coarsen=coarsen,
        rate_requests=len(chosen) / len(group),
        rate_blocks=(len(inside.block_parent) - 1) / blocks,
    )


def subtrees(
    block_parent: NDArray[np.int32], leaf: NDArray[np.int32], limit: int
) -> NDArray[np.int64]:
    """The subtree of each request: the first block of its path that at most `limit` requests share.

    A request that ends in a shared head, or has no blocks, stands for itself, as a number beyond
    all blocks.
    """
    requests, root = np.zeros((2, len(block_parent)), dtype=np.int32)
    _find_roots(block_parent, leaf, limit, requests, root)
    own = len(block_parent) + np.arange(len(leaf), dtype=np.int64)
    return np.where(root[leaf] > 0, root[leaf], own)


@kernel
def _find_roots(
    block_parent: NDArray[np.int32],
    leaf: NDArray[np.int32],
    limit: int,
    requests: NDArray[np.int32],
    root: NDArray[np.int32],
) -> None:
    """Fill `requests`, how many have each block, and `root`, the subtree that it belongs to."""
    for block in leaf:
        requests[block] += 1
    for block in range(len(block_parent) - 1, 0, -1):  # children have higher numbers
        requests[block_parent[block]] += requests[block]
    for block in range(1, len(block_parent)):
        root[block] = root[block_parent[block]]
        if root[block] == 0 and requests[block] <= limit:
            root[block] = block


def uniform(numbers: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each, the same for the same number and seed.

    Source: the finalizer of splitmix64 (Steele, Lea & Flood, OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64)
        x += np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) / 2**53

"""Views of a fleet with a few numbers set and all others 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.routers.base import Fetch, MemorySizes, Prompt, ReplicaLoad, Router, Truth, View

BLOCK_TOKENS = 16


def load(replicas: int, **counts: Sequence[int]) -> ReplicaLoad:
    """Return a load with these counts by replica."""
    return ReplicaLoad(
        **{
            name: np.array(counts.get(name, [0] * replicas), dtype=np.int64)
            for name in ReplicaLoad._fields
        }
    )


def view(
    replicas: int,
    *,
    own: ReplicaLoad | None = None,
    scraped: ReplicaLoad | None = None,
    cached: Sequence[int] = (),
    new: Sequence[int] = (),
    prefill_s: Sequence[float] = (),
    wait_s: Sequence[float] = (),
    capacity_blocks: int = 100,
) -> View:
    """Return a view; what replicas last told is the router's own count unless `scraped` differs.

    KV events report the cached blocks at once.
    """
    nothing = [0] * replicas
    own = own or load(replicas)
    truth = Truth(
        np.array(cached or nothing, dtype=np.int32),
        np.array(new or nothing, dtype=np.int64),
        np.array(prefill_s or nothing, dtype=np.float64),
        np.array(wait_s or nothing, dtype=np.float64),
    )
    fetch = Fetch(np.zeros(1, dtype=np.int32), np.zeros(1))
    return View(
        replicas,
        capacity_blocks,
        BLOCK_TOKENS,
        own,
        scraped or own,
        truth.cached_blocks,
        np.zeros(1, dtype=np.int32),
        truth,
        fetch,
    )


def path(*blocks: int) -> Int32s:
    """Return the blocks of a prompt, its head first."""
    return np.array(blocks, dtype=np.int32)


def prompt_of(blocks: Int32s, request: int = 0, now_s: float = 0.0, tail_tokens: int = 0) -> Prompt:
    """Return a prompt of full blocks and a tail that the trace does not list."""
    tokens = len(blocks) * BLOCK_TOKENS + tail_tokens
    return Prompt(request, now_s, tokens, 0, len(blocks), len(blocks))


def sizes(replicas: int, blocks: int = 100, capacity_blocks: int = 100) -> MemorySizes:
    """Return sizes for a trie of `blocks` blocks, all of them children of the root."""
    parents = np.zeros(blocks, dtype=np.int32)
    return MemorySizes(replicas, 1000, blocks, blocks, BLOCK_TOKENS, capacity_blocks, parents)


def choices(router: Router, blocks: Int32s, seen: View, count: int) -> list[int]:
    """Return `count` choices for one prompt, one after the other, from a fresh memory."""
    memory = router.memory(sizes(seen.replicas), seed=1)
    return [
        type(router).choose(prompt_of(blocks), blocks, seen, memory, router.settings())
        for _ in range(count)
    ]

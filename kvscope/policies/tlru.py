"""Tail-optimized LRU: evict first what the next turn can recompute in time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.parameters import Parameter
from kvscope.policies.base import (
    ENDS,
    GUARD,
    JUDGED,
    MOST_TOKENS,
    OWN_ORDER,
    REVERTING,
    TTL,
    LanePolicy,
    Leaves,
    Turn,
)

XI, NEXT_PROMPT, PERCENTILE = 0, 1, 2
SAFE, NEEDED = 0, 1

XI_TOKENS = Parameter(
    "xi_tokens",
    2048,
    "tokens that may stay uncached without breaking the latency threshold",
    high=MOST_TOKENS,
    search=(256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
)
NEXT_PROMPT_TOKENS = Parameter(
    "next_prompt_tokens", 256, "tokens that the next turn is expected to add", high=MOST_TOKENS
)
XI_PERCENTILE = Parameter(
    "xi_percentile",
    0.0,
    "0: xi stays as it is; else it follows this percentile of recent uncached tokens",
    high=1.0,
)


def first_safe_depth(needed_tokens: float, block_size: int) -> int:
    """Return the depth from which blocks start at or after `needed_tokens`, and so are TEL-safe."""
    return max(math.ceil(needed_tokens / block_size), 0)


def safe_behind(depth: int, end: int) -> tuple[int, int]:
    """Return (begin, lane) of the block before `end`: SAFE from `depth` on, before that NEEDED."""
    return (depth, SAFE) if end > depth else (0, NEEDED)


class TLru(LanePolicy):
    """LRU that evicts TEL-safe blocks first.

    Key (0 if TEL-safe else 1, r, -d); a block is TEL-safe if it starts at or after token L + Q - xi
    of its history: without these blocks the next turn of Q tokens still computes at most xi. Only
    leaves are evicted, so a head that conversations share stays as long as a tail needs it.
    Adaptive: every 256 requests xi moves to a percentile of the tokens that the latest 1,024
    requests computed, which is their TTFT percentile, as TTFT grows with these tokens. With `guard`
    all lanes score the same, which is LRU, unless a shadow cache shows that the order above
    computes fewer tokens beyond xi. The guard is our own.
    Source: Tail-Optimized Caching for LLM Inference, section 3 (T-LRU), section 5 (choice of xi).
    """

    name = "tlru"
    summary = "LRU that first evicts what the next turn can recompute in time"
    source = "T-LRU paper"
    leaves = "leaf"
    offers = ("any",)
    lanes = 2
    timeless = True
    adaptive = True
    learner: ClassVar[str | None] = REVERTING
    parameters: ClassVar[tuple[Parameter, ...]] = (
        XI_TOKENS,
        NEXT_PROMPT_TOKENS,
        XI_PERCENTILE,
        TTL,
        GUARD,
        *JUDGED,
    )

    def __init__(
        self, values: Mapping[str, float] | None = None, leaves: Leaves | None = None
    ) -> None:
        super().__init__(values, leaves)
        if self.guarded and self.values.get(XI_PERCENTILE.name):
            raise UsageError(
                "the guard needs a fixed xi",
                where=f"{self.name}.{GUARD.name}",
                remedy=f"leave out {XI_PERCENTILE.name}, or {GUARD.name}",
            )

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return (depth where the lane begins, lane) of the block before `end`: SAFE or NEEDED.

        Blocks from token L + Q - xi on are SAFE; `turn` has L, `p` has Q and xi.
        """
        needed = turn.history_tokens + p[NEXT_PROMPT] - p[XI]
        return safe_behind(first_safe_depth(needed, block_size), end)

    @staticmethod
    def score(lane: int, idle_s: float, p: Float64s, table: Float64s) -> float:
        """Return `lane`, 0 for safe blocks, which leave first; 0 for all if LRU is in force."""
        return float(lane) if table[0, 0] == OWN_ORDER else 0.0

    @staticmethod
    def adapts(p: Float64s) -> bool:
        """Return whether `xi_percentile` is above 0: then xi follows recent requests."""
        return bool(p[PERCENTILE] > 0.0)

    @staticmethod
    def adapt(uncached_tokens: Int64s, p: Float64s) -> None:
        """Move xi to the nearest-rank percentile of the tokens that recent requests computed."""
        rank = int(np.ceil(p[PERCENTILE] * len(uncached_tokens)))
        p[XI] = float(uncached_tokens[max(rank, 1) - 1])


class TLruEnd(TLru):
    """T-LRU under which all blocks of a conversation without a next turn are TEL-safe.

    Source: Tail-Optimized Caching for LLM Inference, section 5 (End-aware T-LRU).
    """

    name = "tlru-end"
    summary = "T-LRU that knows which conversations end"
    hindsight = True
    learner = None
    parameters = (XI_TOKENS, NEXT_PROMPT_TOKENS, XI_PERCENTILE, TTL)

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return (begin, lane) of the block before `end` as `TLru`; (0, SAFE) at the last turn."""
        if turn.next_prompt_tokens == ENDS:
            return 0, SAFE
        needed = turn.history_tokens + p[NEXT_PROMPT] - p[XI]
        return safe_behind(first_safe_depth(needed, block_size), end)


def first_truly_safe_depth(turn: Turn, block_size: int, xi_tokens: float) -> int:
    """Return the first TEL-safe depth for the true next prompt; 0 without a next turn."""
    if turn.next_prompt_tokens == ENDS:
        return 0
    return first_safe_depth(turn.history_tokens + turn.next_prompt_tokens - xi_tokens, block_size)


class TLruLength(TLru):
    """End-aware T-LRU with the true length of the next prompt for Q.

    Source: Tail-Optimized Caching for LLM Inference, section 5 (Length-aware T-LRU).
    """

    name = "tlru-length"
    summary = "T-LRU that knows the end and the next prompt's length"
    hindsight = True
    learner = None
    adaptive = False
    parameters = (XI_TOKENS, TTL)

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return (begin, lane) of the block before `end` as `TLruEnd`, with the turn's true Q."""
        return safe_behind(first_truly_safe_depth(turn, block_size, p[XI]), end)

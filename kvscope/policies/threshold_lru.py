"""LRU that does not cache short conversations."""

from __future__ import annotations

from kvscope.core.arrays import Float64s
from kvscope.core.parameters import Parameter
from kvscope.policies.base import GUARD, JUDGED, MOST_TOKENS, OWN_ORDER, REVERTING, TTL, Turn
from kvscope.policies.lru import Lru

_THRESHOLD = 0


class ThresholdLru(Lru):
    """LRU that caches no new blocks of a turn whose history L is below a threshold.

    Blocks that such a turn hits become recent all the same. With `guard` it caches all of them,
    which is LRU, unless a shadow cache shows that it computes fewer tokens otherwise; the guard is
    our own.
    Source: Tail-Optimized Caching for LLM Inference, section 5 (Threshold LRU).
    """

    name = "threshold-lru"
    summary = "LRU that does not cache turns with a short history"
    source = "T-LRU paper"
    learner = REVERTING
    parameters = (
        Parameter(
            "threshold_tokens",
            1024,
            "histories shorter than this are not cached",
            high=MOST_TOKENS,
            search=(256, 512, 1024, 2048, 4096, 8192),
        ),
        TTL,
        GUARD,
        *JUDGED,
    )

    @staticmethod
    def admits(turn: Turn, p: Float64s, table: Float64s) -> bool:
        """Return whether the history is long enough, or LRU is in force."""
        return bool(turn.history_tokens >= p[_THRESHOLD] or table[0, 0] != OWN_ORDER)

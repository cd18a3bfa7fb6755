"""LRU that does not cache short conversations."""

from __future__ import annotations

from kvscope.policies.base import MOST_TOKENS, TTL, Floats, Parameter, Turn
from kvscope.policies.lru import Lru

_THRESHOLD = 0


class ThresholdLru(Lru):
    """LRU that caches no new blocks of a turn whose history L is below a threshold.

    Blocks that such a turn hits become recent all the same.
    Source: Tail-Optimized Caching for LLM Inference, section 5 (Threshold LRU).
    """

    name = "threshold-lru"
    summary = "LRU that does not cache turns with a short history"
    source = "T-LRU paper"
    parameters = (
        Parameter(
            "threshold_tokens",
            1024,
            "histories shorter than this are not cached",
            high=MOST_TOKENS,
            search=(256, 512, 1024, 2048, 4096, 8192),
        ),
        TTL,
    )

    @staticmethod
    def admits(turn: Turn, p: Floats) -> bool:
        """Return whether the history is long enough."""
        return bool(turn.history_tokens >= p[_THRESHOLD])

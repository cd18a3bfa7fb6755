"""T-LRU that knows which conversations end."""

from __future__ import annotations

from kvscope.core.arrays import Float64s
from kvscope.policies.base import ENDS, TTL, Turn
from kvscope.policies.tlru import (
    NEXT_PROMPT,
    NEXT_PROMPT_TOKENS,
    SAFE,
    XI,
    XI_PERCENTILE,
    XI_TOKENS,
    TLru,
    first_safe_depth,
    safe_behind,
)


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
        """Return the safe lane for a conversation that ends, else that of T-LRU."""
        if turn.next_prompt_tokens == ENDS:
            return 0, SAFE
        needed = turn.history_tokens + p[NEXT_PROMPT] - p[XI]
        return safe_behind(first_safe_depth(needed, block_size), end)

"""T-LRU that knows which conversations end and how long the next prompt is."""

from __future__ import annotations

from kvscope.core.arrays import Float64s
from kvscope.policies.base import ENDS, TTL, Turn
from kvscope.policies.tlru import XI, XI_TOKENS, TLru, first_safe_depth, safe_behind


def first_truly_safe_depth(turn: Turn, block_size: int, xi_tokens: float) -> int:
    """Return the first block that is TEL-safe with the true next prompt; 0 where there is none."""
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
        """Return the lane of safe blocks from token L + Q - xi on, with the true Q."""
        return safe_behind(first_truly_safe_depth(turn, block_size, p[XI]), end)

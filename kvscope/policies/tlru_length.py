"""T-LRU that knows which conversations end and how long the next prompt is."""

from __future__ import annotations

from kvscope.policies.base import ENDS, TTL, Floats, Turn
from kvscope.policies.tlru import NEEDED, SAFE, XI, XI_TOKENS, TLru, first_safe_depth


class TLruLength(TLru):
    """End-aware T-LRU with the true length of the next prompt for Q.

    Source: Tail-Optimized Caching for LLM Inference, section 5 (Length-aware T-LRU).
    """

    name = "tlru-length"
    summary = "T-LRU that is told the end and the next prompt's length"
    hindsight = True
    adaptive = False
    parameters = (XI_TOKENS, TTL)

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """Safe from token L + Q - xi on, with the true Q."""
        if turn.next_prompt_tokens == ENDS:
            return 0, SAFE, NEEDED
        needed = turn.history_tokens + turn.next_prompt_tokens - p[XI]
        return first_safe_depth(needed, block_size), SAFE, NEEDED

"""The optimum for the latency tail."""

from __future__ import annotations

from kvscope.policies.base import ENDS, NEVER, TTL, Block, Floats, KeyPolicy, Turn
from kvscope.policies.tlru import XI_TOKENS, first_safe_depth

_XI = 0


class TailBelady(KeyPolicy):
    """Belady's rule, but what the next turn can recompute in time leaves first.

    Key (0 if TEL-safe with the true next prompt else 1, -next request, r, -d); everything of a
    conversation that ends is safe. Optimal for TEL where conversations share no blocks.
    Source: Tail-Optimized Caching for LLM Inference, Theorem 1.
    """

    name = "tail-belady"
    summary = "the optimum for tail excess latency"
    source = "T-LRU paper, Theorem 1"
    leaves = "leaf"
    hindsight = True
    parameters = (XI_TOKENS, TTL)

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Floats, table: Floats
    ) -> float:
        """Safe blocks below all others; within both the later the next touch, the lower."""
        added = turn.next_prompt_tokens
        needed = turn.history_tokens + added - p[_XI]
        safe = added == ENDS or block.depth >= first_safe_depth(needed, block_size)
        return -float(block.next_request) - (2.0 * NEVER if safe else 0.0)

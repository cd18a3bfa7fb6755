"""Tail-Belady: a heuristic for the latency tail that knows the future."""

from __future__ import annotations

from kvscope.policies.base import TTL, Floats, NextUsePolicy, Turn
from kvscope.policies.tlru import NEEDED, SAFE, XI, XI_TOKENS
from kvscope.policies.tlru_length import first_truly_safe_depth


class TailBelady(NextUsePolicy):
    """Belady's rule, but evict first what the next turn can recompute in time.

    Key (0 if TEL-safe with the true next prompt else 1, -next request, r, -d); everything of a
    conversation that ends is safe. Optimal for TEL where conversations share no blocks. Where they
    do it bounds nothing: only the request that touched a block last decides whether it is safe,
    though others may need it. Its TEL can then exceed Belady's, and an online policy's.
    Source: Tail-Optimized Caching for LLM Inference, Theorem 1.
    """

    name = "tail-belady"
    summary = "heuristic for tail excess latency that knows the future"
    source = "T-LRU paper, Theorem 1"
    lanes = 2
    parameters = (XI_TOKENS, TTL)

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """Return the depth from token L + Q - xi on, with the true Q: safe from there."""
        return first_truly_safe_depth(turn, block_size, p[XI]), SAFE, NEEDED

"""Offline optima: for hits, and for the blocks that requests need to stay within xi."""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.policies.base import TTL, NextUsePolicy
from kvscope.policies.tlru import XI_TOKENS


class Belady(NextUsePolicy):
    """Evict the block whose next hit is latest, or that has none; new blocks need not be cached.

    Key (-next request that could hit the block, r, -d). Among blocks never hit, any order is best.
    Source: Belady, IBM Systems Journal 1966, with bypass.
    """

    name = "belady"
    summary = "the optimum for hits: needed last, leaves first"
    source = "Belady 1966"


class TailBelady(NextUsePolicy):
    """Belady's rule, but evict first the blocks that the next request can recompute within xi.

    Key (1 if the next request to hit the block needs it else 0, minus that request's number, r,
    -d). A request needs the blocks before token I - xi of its prompt of I tokens: others save no
    tail excess latency (TEL). Where conversations share no blocks and a block holds one token, TEL
    is least. Elsewhere two effects can keep it above the least: the last block that a request needs
    may save less than a block of tokens, and a block that no request needs stays while a child of
    it is cached. benchmarks.tel_bound bounds the difference.
    Source: Tail-Optimized Caching for LLM Inference, Theorem 1; need by block is kvscope's own.
    """

    name = "tail-belady"
    summary = "oracle for TEL: needed last to stay within xi, leaves first"
    source = "T-LRU paper, Theorem 1"
    parameters = (XI_TOKENS, TTL)

    def needed(self, input_tokens: Int32s, look: Int32s, block_size: int) -> Int32s:
        """Return how many leading blocks each of R requests needs: those before token I - xi.

        A block is needed if it starts before this token and is among the first `look` (R), which
        are those that can hit. `input_tokens` (R) are the I.
        """
        beyond_xi = np.maximum(input_tokens - self.values["xi_tokens"], 0)
        blocks: Int32s = np.minimum(look, np.ceil(beyond_xi / block_size)).astype(np.int32)
        return blocks

"""Greedy dual with frequency and size."""

from __future__ import annotations

from kvscope.core.arrays import Float64s
from kvscope.core.parameters import Parameter
from kvscope.policies.base import TTL, Block, KeyPolicy, Turn

_PER_TOKEN, _PER_PAIR = 0, 1


class Gdfs(KeyPolicy):
    """Score a block by its frequency times the cost of recomputing a token, plus an ageing clock.

    Key clock + uses * cost / size. The clock is the key of the last evicted block at this block's
    last touch; the cost is a block's marginal prefill time, which grows with depth if
    `per_token_pair_s` is above 0. Only leaves are evicted: by the published rule, which knows no
    leaves, a cheap head would go before an expensive tail that is useless without it. If all
    depths cost the same, the published rule evicts the same blocks.
    Source: Cherkasova, HPL-98-69R1 (1998); libCacheSim spells it GDSF.
    """

    name = "gdfs"
    aliases = ("gdsf",)
    summary = "frequency times recomputation cost, ageing (GDSF)"
    source = "Cherkasova 1998"
    leaves = "leaf"
    counts_uses = True
    parameters = (
        Parameter(
            "per_token_s", 1.0, "prefill time of a token; only its ratio to the next matters"
        ),
        Parameter("per_token_pair_s", 0.0, "prefill time of a pair of tokens (attention)"),
        TTL,
    )

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Float64s, table: Float64s
    ) -> float:
        """Return the clock at the last touch plus frequency times cost per token."""
        cost = p[_PER_TOKEN] + p[_PER_PAIR] * block_size * (block.depth + 0.5)
        return float(block.clock + block.uses * cost)

"""Expected-tail-optimized LRU: T-LRU in expectation, under a birth-death model."""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.core.parameters import Parameter
from kvscope.policies.base import REFIT, TTL, Block, KeyPolicy, Turn
from kvscope.policies.tlru import XI_TOKENS

_XI, _TURN_RATE, _DEATH_RATE = 0, 1, 2


class Etlru(KeyPolicy):
    """Score a block by the expected tokens of it that the next turn needs, times the turn's rate.

    Key: the turn rate after the idle time tau, times the sum of P(Q > xi - (L - x)) over the
    block's tokens x: the next turn needs those to stay within xi. The rate is pi * lambda: lambda
    (`turn_rate_per_s`) is that of a conversation that is alive, pi the probability that it still is
    after tau, which falls by deaths at the rate mu (`death_rate_per_s`): 1 / pi = 1 + mu / (lambda
    + mu) * (exp((lambda + mu) tau) - 1). As all conversations have the same lambda and mu, dividing
    every key by exp(-(lambda + mu) now) keeps the order and makes the keys grow with time, as
    `rising` promises. The table has a row per category: equally likely values of Q.
    Source: Tail-Optimized Caching for LLM Inference, Definition 1.
    """

    name = "etlru"
    summary = "T-LRU in expectation, as conversations are born and die"
    source = "T-LRU paper, Definition 1"
    leaves = "leaf"
    rising = True
    learner = "next_prompts"
    refit = REFIT
    parameters = (
        XI_TOKENS,
        Parameter("turn_rate_per_s", 0.01, "turns a second of a conversation that is alive"),
        Parameter("death_rate_per_s", 0.01, "deaths a second of a conversation that is alive"),
        TTL,
        REFIT,
    )

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Float64s, table: Float64s
    ) -> float:
        """Return log(needed tokens x turn rate) + a term all blocks share; -inf if none needed."""
        prompts = table[turn.category]
        beyond = turn.history_tokens - p[_XI] - block.depth * block_size
        need = 0.0
        for prompt in prompts:
            need += min(max(beyond + prompt, 0.0), float(block_size))
        if need == 0.0:
            return -np.inf
        total = p[_TURN_RATE] + p[_DEATH_RATE]
        if p[_DEATH_RATE] == 0.0:
            return float(np.log(need))
        dying = p[_DEATH_RATE] / total
        alive_at_once = np.log((1.0 - dying) / dying) - total * now_s if dying < 1.0 else -np.inf
        return float(np.log(need) - np.logaddexp(alive_at_once, -total * turn.arrival_s))

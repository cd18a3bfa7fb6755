"""Workload-aware: evict first the blocks least likely to be reused by their category's history."""

from __future__ import annotations

import math

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.core.parameters import Parameter
from kvscope.policies.base import GUARD, JUDGED, REFIT, TTL, LanePolicy, Turn

REUSE_PROBABILITY, RATE_PER_S, LIFE_S, LOG_CHANCE = 0, 1, 2, 3
_GIVEN_SILENCE = 2


class Wa(LanePolicy):
    """Score each category's oldest block by the probability of its reuse within its lifetime.

    Key (p_w (F_w(t + life_w) - F_w(t)), r, -d): w the category of the last touch, t the time since,
    F_w the category's distribution of reuse gaps (exponential), p_w the share of touches that are
    followed by another, life_w the mean lifetime (s) of its blocks. Within a category an older
    block never has a higher key, so one recency queue a category suffices. The table has a row a
    category, see `reuse_rows`.
    With `given_silence`, the probability given no reuse until now: divided by 1 - p_w F_w(t).
    With `guard` all categories score the same, which is LRU, unless a shadow cache shows that
    the order above computes fewer tokens. The guard is our own.
    Source: KVCache Cache in the Wild (ATC'25), section 4.2, Algorithm 1.
    """

    name = "wa"
    summary = "weighs each category's oldest block by its chance of reuse"
    source = "KVCache Cache in the Wild, ATC'25"
    by_category = True
    learner = "reuse"
    refit = REFIT
    parameters = (
        TTL,
        REFIT,
        Parameter(
            "given_silence",
            0.0,
            "1: the probability of a reuse given that there was none until now; 0: as published",
            high=1.0,
        ),
        GUARD,
        *JUDGED,
    )

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return (0, lane): all blocks of a request are in the lane of its category."""
        return 0, turn.category

    @staticmethod
    def score(lane: int, idle_s: float, p: Float64s, table: Float64s) -> float:
        """Return the logarithm of the probability of a reuse within one mean lifetime from now.

        The lane is a category, and so the row of `table`, whose columns are those of `reuse_rows`.
        """
        since = table[lane, RATE_PER_S] * idle_s
        chance = table[lane, LOG_CHANCE] - since
        if p[_GIVEN_SILENCE] > 0.0:
            probability = table[lane, REUSE_PROBABILITY]
            # math: on single numbers an engine calls it ten times as fast as NumPy's
            chance -= math.log(max(1.0 - probability + probability * math.exp(-since), 1e-300))
        return float(chance)


def reuse_rows(p: Float64s, rate_per_s: Float64s, life_s: Float64s) -> Float64s:
    """Return the table's rows (... × 4), one a category: p, rate, life, and a logarithm.

    The arguments have the same shape (...): the probability of reuse, the rate of the exponential
    distribution of reuse gaps, and the mean lifetime of blocks. The last column, computed here
    once, is the logarithm of the probability of a reuse within `life_s` right after a touch: for
    an exponential F, F(t + life) - F(t) = (1 - F(t)) F(life).
    """
    with np.errstate(divide="ignore"):  # no chance is minus infinity
        log_chance = np.log(p) + np.log(-np.expm1(-rate_per_s * life_s))
    return np.stack((p, rate_per_s, life_s, log_chance), axis=-1)

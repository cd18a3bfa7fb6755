"""Workload-aware: what its category's history says will hardly be asked for again leaves first."""

from __future__ import annotations

import math

from kvscope.policies.base import REFIT, TTL, Floats, LanePolicy, Parameter, Turn

REUSE_PROBABILITY, RATE_PER_S, LIFE_S = 0, 1, 2
_GIVEN_SILENCE = 2


class Wa(LanePolicy):
    """Each category's oldest block is weighed by the chance of its reuse within its lifetime.

    Key (p_w (F_w(t + life_w) - F_w(t)), r, -d): w the category of the last touch, t the time since,
    F_w the category's distribution of reuse gaps (exponential), p_w the share of touches that are
    followed by another. Within a category the older block is never worth more, so one recency
    queue a category suffices. The table has a row a category: p, rate, life.
    As a variant, the chance given the silence until now, which divides it by 1 - p_w F_w(t).
    Source: KVCache Cache in the Wild (ATC'25), section 4.2, Algorithm 1.
    """

    name = "wa"
    summary = "weighs each category's oldest block by its chance of reuse"
    source = "KVCache Cache in the Wild, ATC'25"
    by_category = True
    table = "reuse"
    parameters = (
        TTL,
        REFIT,
        Parameter(
            "given_silence",
            0.0,
            "1: the chance of a reuse given that there was none until now; 0: as published",
            high=1.0,
        ),
    )

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """A lane a category."""
        return 0, turn.category, turn.category

    @staticmethod
    def score(lane: int, idle_s: float, p: Floats, table: Floats) -> float:
        """The chance of a reuse in the next `life` seconds, given the time since the last."""
        rate, life = table[lane, RATE_PER_S], table[lane, LIFE_S]
        # math: on single numbers an engine calls it ten times as fast as NumPy's
        probability, still = table[lane, REUSE_PROBABILITY], math.exp(-rate * idle_s)
        chance = probability * (still - math.exp(-rate * (idle_s + life)))
        if p[_GIVEN_SILENCE] > 0.0:
            chance /= max(1.0 - probability + probability * still, 1e-300)
        return float(chance)

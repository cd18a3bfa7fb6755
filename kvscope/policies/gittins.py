"""Gittins index: evict first what is least likely to return soon, and least needed then."""

from __future__ import annotations

import math

from kvscope.core.arrays import Float64s
from kvscope.core.parameters import Parameter
from kvscope.policies.base import JUDGED, TTL, LanePolicy, Turn
from kvscope.policies.tlru import NEXT_PROMPT_TOKENS, XI_TOKENS, first_safe_depth

LEAST_S, AGES_AN_OCTAVE, AGES = 0.125, 3, 54  # the last age begins at some 6 hours

WINDOW_REFITS = 9  # times the requests from one refit to the next are the past that it looks at
REFIT_REQUESTS = Parameter(
    "refit_requests",
    512.0,
    f"requests from one fit of the table to the next, each to {WINDOW_REFITS} times as many before",
    low=4.0,
    high=4096.0,
)
_THIRD, _TWO_THIRDS = 2.0 ** (-2 / 3), 2.0 ** (-1 / 3)
_XI, _NEXT_PROMPT = 0, 1
NEEDS = (0.5, 0.1, 0.01)
"""The need by which a class's second, third and fourth lane are scored.

Need is the probability that the next prompt is long enough to need the block.
"""
LEVELS = len(NEEDS) + 1  # of need, and so lanes of a category: the first has what any turn needs
_BEYOND = tuple(need**-0.5 - 1.0 for need in NEEDS)  # times the mean next prompt: where they end


class Gittins(LanePolicy):
    """Score a block by the highest rate of returns that keeping it can reach, times its need.

    Key (index_c(t) * need, r, -d). index_c(t) is the Gittins index: the maximum over H of P(T <= t
    + H | T > t) / E[min(T - t, H) | T > t], T the time from a touch of a block of class c to its
    next touch, t the time since that touch. The class is known once the request has been served:
    how long the block had waited when the request touched it, or that it was new; how many tokens
    of the prompt were new; and how many turns came before. Blocks with a short wait are popular,
    such as a system prompt or a passage that many requests contain; along a path waits grow, so a
    path is cut into few parts. A guard chooses between this order, LRU, and need alone: the same
    index for all blocks. The table has a row for each lane of a class with the index at each age
    (`kvscope.learning.returns.formulas.ages_of`).
    Need: a block that starts before token L - xi of its history is needed by any next turn, need 1;
    one that starts x tokens later only by a turn of Q > x: P(Q > x) = (1 + x / mean)^-2, the tail
    of a Pareto distribution of the second kind (Lomax) with shape 2 whose mean is the parameter
    `next_prompt_tokens`: next prompts are mostly short and at times very long. A class has four
    lanes: for blocks with need 1, with a need down to 0.5, down to 0.1, and for the others. Blocks
    in the last three all count with need 0.5, 0.1 and 0.01, or P(Q > xi) if that is more. At xi = 0
    all blocks have need 1: plain hits.
    Within a lane only the oldest block is scored: exact as long as the index falls with age.
    Source: Gittins, Bandit processes and dynamic allocation indices (1979); need as in
    Tail-Optimized Caching for LLM Inference, section 3 and Definition 1. The product is our own.
    """

    name = "gittins"
    aliases = ("return-index",)
    summary = "weighs each class's oldest block by return time and need"
    source = "Gittins 1979; need after the T-LRU paper"
    leaves = "leaf"
    by_category = True
    lanes = LEVELS
    stepwise = True
    learner = "returns"
    parameters = (XI_TOKENS, NEXT_PROMPT_TOKENS, TTL, REFIT_REQUESTS, *JUDGED)
    refit = REFIT_REQUESTS

    @property
    def guarded(self) -> bool:
        """True: tables are always learned with a guard."""
        return True

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return (depth where the lane begins, lane number) of the block before depth `end`.

        Class c (`turn.category`) has lanes 4c to 4c + 3, with the needs 1, 0.5, 0.1 and 0.01.
        """
        needed, begin, level = turn.history_tokens - p[_XI], 0, 0
        beyond = first_safe_depth(needed, block_size)
        while end > beyond and level < LEVELS - 1:
            begin, level = beyond, level + 1
            beyond = first_safe_depth(needed + p[_NEXT_PROMPT] * _BEYOND[level - 1], block_size)
        return begin, LEVELS * turn.category + level

    @staticmethod
    def score(lane: int, idle_s: float, p: Float64s, table: Float64s) -> float:
        """Return index times need of a lane's oldest block; `table` has a row of indices a lane."""
        index, level = float(table[lane, _age(idle_s)]), lane % LEVELS
        if level == 0 or p[_XI] <= 0.0:
            return index
        longer = p[_NEXT_PROMPT] / (p[_NEXT_PROMPT] + p[_XI])
        return float(index * max(longer * longer, NEEDS[level - 1]))

    @staticmethod
    def next_step_s(idle_s: float) -> float:
        """Return the idle time at which the next age begins, and so another score."""
        age = _age(idle_s)
        return LEAST_S * 2.0 ** (age / AGES_AN_OCTAVE) if age < AGES - 1 else math.inf


def _age(idle_s: float) -> int:
    """Return the column of the table for blocks idle for `idle_s`."""
    if idle_s < LEAST_S:
        return 0
    part, octave = math.frexp(idle_s / LEAST_S)  # quicker than a logarithm
    third = 0 if part < _THIRD else 1 if part < _TWO_THIRDS else 2
    return min(AGES_AN_OCTAVE * (octave - 1) + third + 1, AGES - 1)

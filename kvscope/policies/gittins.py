"""Gittins index: what is least likely to return soon, and least needed then, leaves first."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.base import REFIT, TTL, Floats, LanePolicy, Parameter, Turn
from kvscope.policies.tlru import NEXT_PROMPT_TOKENS, XI_TOKENS, first_safe_depth

NEW_TOKENS = (512, 2048, 8192)  # of a prompt, in full blocks that were never touched before
TURNS = (1, 3)  # requests before it, the prompt of each the whole beginning of the next one's
SINCE_S = (30.0, 120.0)  # that the deepest of its blocks seen before had waited
OUTPUT_TOKENS = (256, 512)
CLASS_SETS = (
    (("new_tokens", NEW_TOKENS), ("turns", TURNS)),
    (("new_tokens", NEW_TOKENS), ("since_s", SINCE_S), ("output_tokens", OUTPUT_TOKENS)),
)
"""Ways to tell requests apart, each by a few of their `Features`, the coarsest first."""
STEPS = tuple(tuple(len(edges) + 1 for _, edges in features) for features in CLASS_SETS)
CLASSES = sum(math.prod(steps) for steps in STEPS)

LEAST_S, AGES_AN_OCTAVE, AGES = 0.125, 3, 54  # the last age begins at some 6 hours
_STEPS_S = tuple(LEAST_S * 2.0 ** (step / AGES_AN_OCTAVE) for step in range(AGES - 1))

WINDOW_REFITS = 36  # so many times a refit's distance is the past that it looks at
REFIT_OFTEN = Parameter(
    REFIT.name,
    300.0,
    f"seconds between two fits of the policy's table, each to {WINDOW_REFITS} times as long before",
    low=REFIT.low,
    high=REFIT.high,
)
_THIRD, _TWO_THIRDS = 2.0 ** (-2 / 3), 2.0 ** (-1 / 3)
_XI, _NEXT_PROMPT = 0, 1
_LEAST_NEED = 0.02  # so that those whom nobody needs in time still leave by their index


class Gittins(LanePolicy):
    """The highest rate of returns that can be had by keeping a block, times how it is needed.

    Key (index_c(t) * need, r, -d). index_c(t) is the Gittins index: the maximum over H of
    P(T <= t + H | T > t) / E[min(T - t, H) | T > t], T the time until a block that a request of
    class c touched is touched again, t the time since. The class is what is known when the request
    has been served: how much of its prompt was new, and either how many turns came before it, or
    how long ago the latest was and how long the output became. Small caches of the past's traffic
    say which of the two, or whether to fall back to need alone, or to LRU. The table has two rows
    a class with the index at each age (`ages_of`), for deep blocks and for shallow ones.
    Need: a block that starts before token L - xi of its history is needed by any next turn, need 1;
    those after it by one with Q > xi - (L - x) tokens. They count as the last of them, the next to
    leave: P(Q > xi) = (1 + xi / mean)^-2, at least 0.02. That tail is a Pareto's of the second kind
    (Lomax) with shape 2: next prompts are mostly short and at times very long. At xi = 0 all blocks
    are needed: plain hits.
    Within a class the oldest block alone is weighed: exact as long as the index falls with age.
    Source: Gittins, Bandit processes and dynamic allocation indices (1979); need as in
    Tail-Optimized Caching for LLM Inference, section 3 and Definition 1. The product is our own.
    """

    name = "gittins"
    aliases = ("return-index",)
    summary = "weighs each class's oldest block by return time and need"
    source = "Gittins 1979; need after the T-LRU paper"
    leaves = "leaf"
    by_category = True
    stepwise = True
    table = "returns"
    parameters = (XI_TOKENS, NEXT_PROMPT_TOKENS, TTL, REFIT_OFTEN)

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """A lane for what starts at or after token L - xi, one for the rest; both by class."""
        needed = turn.history_tokens - p[_XI]
        return first_safe_depth(needed, block_size), 2 * turn.category, 2 * turn.category + 1

    @staticmethod
    def score(lane: int, idle_s: float, p: Floats, table: Floats) -> float:
        """Index times need."""
        age = 0
        if idle_s >= LEAST_S:
            part, octave = math.frexp(idle_s / LEAST_S)  # quicker than a logarithm
            third = 0 if part < _THIRD else 1 if part < _TWO_THIRDS else 2
            age = min(AGES_AN_OCTAVE * (octave - 1) + third + 1, AGES - 1)
        index = float(table[lane, age])
        if lane % 2 == 1 or p[_XI] <= 0.0:
            return index
        beyond = p[_NEXT_PROMPT] / (p[_NEXT_PROMPT] + p[_XI])
        return float(index * max(beyond * beyond, _LEAST_NEED))

    @staticmethod
    def next_step_s(idle_s: float) -> float:
        """Where the next age begins."""
        step = bisect_right(_STEPS_S, idle_s)
        return _STEPS_S[step] if step < len(_STEPS_S) else math.inf


class Features(NamedTuple):
    """What is known of R requests when they have been served; every array has R entries.

    `new_tokens` lie in full blocks never touched before; `turns` is how many requests came before,
    the prompt of each the whole beginning of the next one's; `since_s` is how long the deepest
    block touched before had waited, 0 where there was none.
    """

    new_tokens: NDArray[np.int64]
    turns: NDArray[np.int64]
    since_s: Floats
    output_tokens: NDArray[np.int64]


def classes(of: Features) -> tuple[NDArray[np.int32], ...]:
    """The class of each request in each class set, counted from 0 in each."""
    found = []
    for features in CLASS_SETS:
        number = np.zeros(len(of.turns), dtype=np.int32)
        for name, edges in features:
            step = np.searchsorted(edges, getattr(of, name), side="right")
            number = (number * (len(edges) + 1) + step).astype(np.int32)
        found.append(number)
    return tuple(found)


def ages_of(idle_s: Floats) -> NDArray[np.int64]:
    """The age, as a column of the table, of blocks untouched for `idle_s`."""
    octaves = np.log2(np.maximum(idle_s, LEAST_S) / LEAST_S)
    ages = np.where(idle_s < LEAST_S, 0, (octaves * AGES_AN_OCTAVE).astype(np.int64) + 1)
    return np.minimum(ages, AGES - 1)

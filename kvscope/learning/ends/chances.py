"""The probability that a conversation goes on: a few trees, evaluated without any library.

It takes numbers and comparisons alone, so that an engine can evaluate it per request;
`kvscope.learning.ends.boosting` learns the trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

FEATURES = (
    "new_tokens",  # of the prompt, in full blocks that were never touched before
    "input_tokens",
    "output_tokens",
    "shared_share",  # of the prompt's full blocks that were touched before
    "turns",  # requests before it, the prompt of each the whole beginning of the next one's
    "since_s",  # since the latest of those
    "mean_gap_s",  # between all of them
    "head_requests",  # before it that began with the same block
)
"""What is known of a request when it has been served, as `Trees` number it.

A feature that does not exist (a wait without an earlier turn) is NOTHING. Blocks not touched for
the length of the window that is learned from are forgotten: they count as never touched.
"""
NOTHING = -1.0
SHARED_HEAD = 4  # ways that a path goes on: then it is a shared head, not a turn


class Trees(NamedTuple):
    """A boosted model of T trees, each of three comparisons and four values.

    A tree compares `features[t][0]`: below `edges[t][0]` it goes on with the second feature and
    edge, else with the third; below those it adds the first of the two values that are left (of
    `values[t]`: below-below, below-above, above-below, above-above). The sum, from `start` on, is
    the logarithm of the odds that the conversation goes on within the horizon.
    """

    start: float
    features: tuple[tuple[int, int, int], ...]
    edges: tuple[tuple[float, float, float], ...]
    values: tuple[tuple[float, float, float, float], ...]


def chance(trees: Trees, known: Sequence[float]) -> float:
    """Return the probability of another turn within the horizon; `known` as in FEATURES."""
    odds = trees.start
    for (first, low, high), (edge, low_edge, high_edge), values in zip(
        trees.features, trees.edges, trees.values, strict=True
    ):
        if known[first] < edge:
            odds += values[0] if known[low] < low_edge else values[1]
        else:
            odds += values[2] if known[high] < high_edge else values[3]
    if odds < 0.0:  # whose exponential cannot overflow
        return math.exp(odds) / (1.0 + math.exp(odds))
    return 1.0 / (1.0 + math.exp(-odds))

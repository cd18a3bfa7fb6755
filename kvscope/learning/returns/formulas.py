"""The table of `gittins` from counts of a window: how soon each class of requests returns.

Its classes, its ages, and the index at each of them. The simulator takes the counts from a trace,
an engine's plugin from the requests that it serves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.learning.guard import Rule
from kvscope.policies.base import Floats
from kvscope.policies.gittins import AGES, AGES_AN_OCTAVE, LEAST_S

NEW_TOKENS = (512, 2048, 8192)  # of a prompt, in full blocks that were never touched before
TURNS = (1, 3)  # requests before it, the prompt of each the whole beginning of the next one's
SINCE_S = (30.0, 120.0)  # since the deepest of its blocks touched before
OUTPUT_TOKENS = (256, 512)
CLASS_SETS = (
    (("new_tokens", NEW_TOKENS), ("turns", TURNS)),
    (("new_tokens", NEW_TOKENS), ("since_s", SINCE_S), ("output_tokens", OUTPUT_TOKENS)),
)
"""Ways to tell requests apart, each by edges of a few `RequestFeatures`, the coarsest first."""
STEPS = tuple(tuple(len(edges) + 1 for _, edges in features) for features in CLASS_SETS)
CLASSES = sum(math.prod(steps) for steps in STEPS)

LRU, NEED, FIRST = 0, 1, 2  # the guard's candidates: two know nothing; class sets from FIRST on
WORTHS = (0.0, 1.0)  # of every block: under LRU; by need alone
GUARD = Rule(begins_with=FIRST, looks=5, evidence=30, late=15, margin=0.02)

_BEGINS_S = np.concatenate(([0.0], LEAST_S * 2.0 ** (np.arange(AGES - 1) / AGES_AN_OCTAVE)))
_LASTS_S = np.append(np.diff(_BEGINS_S), _BEGINS_S[-1])  # the last one is taken to double
_PRIOR = 1.0 / (30.0 + _BEGINS_S + _LASTS_S / 2)  # up to a factor: returns a second at each age
_PRIOR_RETURNS = 1.0  # of one request's blocks: drawn from the coarser class at each age
_ROOT_RETURNS = 0.2


class RequestFeatures(NamedTuple):
    """What is known of R requests when they have been served; every array has R entries.

    `new_tokens` lie in full blocks never touched before; `turns` is how many requests came before,
    the prompt of each the whole beginning of the next one's; `since_s` is how long the deepest
    block touched before had waited, 0 where there was none.
    """

    new_tokens: Int64s
    turns: Int64s
    since_s: Floats
    output_tokens: Int64s


def classes_of(requests: RequestFeatures) -> tuple[Int32s, ...]:
    """Return the class of each request in each class set, counted from 0 in each."""
    classes = []
    for features in CLASS_SETS:
        number = np.zeros(len(requests.turns), dtype=np.int32)
        for name, edges in features:
            step = np.searchsorted(edges, getattr(requests, name), side="right")
            number = (number * (len(edges) + 1) + step).astype(np.int32)
        classes.append(number)
    return tuple(classes)


def ages_of(idle_s: Floats) -> Int64s:
    """Return the age, as a column of the table, of blocks untouched for `idle_s`."""
    octaves = np.log2(np.maximum(idle_s, LEAST_S) / LEAST_S)
    ages = np.where(idle_s < LEAST_S, 0, (octaves * AGES_AN_OCTAVE).astype(np.int64) + 1)
    return np.minimum(ages, AGES - 1)


def began_s(ages: Int64s) -> Floats:
    """Return the seconds since the touch at which each age begins."""
    began: Floats = _BEGINS_S[ages]
    return began


class ReturnCounts(NamedTuple):
    """Blocks touched in a window, by class and age (..., classes, AGES).

    `returned` counts those touched again at that age, `waiting` those that had reached it unused
    when the window ended; `seconds` (of both together) the time that they spent in it. `requests`
    (...) touched them.
    """

    returned: Floats
    waiting: Floats
    seconds: Floats
    requests: Floats


def return_table(counts: ReturnCounts, steps: tuple[int, ...]) -> Floats:
    """Return the table of `gittins`: the index of each class and age, in two equal rows a class.

    `steps` are those of the class set, one of `STEPS`.
    """
    index = gittins_index(hazards(counts, steps))
    values: Floats = np.repeat(index, 2, axis=-2)
    return values


def hazards(counts: ReturnCounts, steps: tuple[int, ...]) -> Floats:
    """Return the returns a second at each age, of each class (..., classes, AGES).

    The piecewise constant hazard of right-censored waits: returns over time at risk, in units of a
    request's mean number of blocks, since those return together. Each class is drawn to a coarser
    one by one return more at each age: to that of any last feature, that one to any of the last
    two, and so on to all together; and those to a hazard that falls with 1 / (30 s + age), scaled
    to the returns counted.
    Source: Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, section 4.2
    (piecewise exponential); the prior's form is our own.
    """
    left = counts.returned + counts.waiting
    later = left[..., ::-1].cumsum(axis=-1)[..., ::-1] - left
    blocks = left.sum(axis=(-2, -1))
    unit = np.where(blocks > 0, counts.requests / np.where(blocks > 0, blocks, 1.0), 0.0)
    unit = unit[..., None, None]
    returned, at_risk = counts.returned * unit, (counts.seconds + later * _LASTS_S) * unit
    every, risk = returned.sum(axis=-2), at_risk.sum(axis=-2)
    height = (every.sum(axis=-1) + 1.0) / ((risk * _PRIOR).sum(axis=-1) + 1.0)
    prior = _PRIOR * np.minimum(height, 1.0)[..., None]
    hazard: Floats = ((every + _ROOT_RETURNS) / (risk + _ROOT_RETURNS / prior))[..., None, :]
    classes = np.arange(math.prod(steps))
    for known in range(1, len(steps) + 1):
        hazard = _finer(hazard, returned, at_risk, classes // math.prod(steps[known:]))
    return hazard


def _finer(coarse: Floats, returned: Floats, at_risk: Floats, group: Int64s) -> Floats:
    """Return the hazards of groups of classes, an entry a class, drawn to those of `coarse`."""
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    events = np.add.reduceat(returned, starts, axis=-2)[..., group, :]
    risk = np.add.reduceat(at_risk, starts, axis=-2)[..., group, :]
    hazard: Floats = (events + _PRIOR_RETURNS) / (risk + _PRIOR_RETURNS / coarse)
    return hazard


def gittins_index(hazard: Floats) -> Floats:
    """Return the index at the beginning of each age: the best rate of returns over all horizons.

    max over later ends e of (S(a) - S(e)) / (integral of S from a to e), S the survival function of
    the piecewise constant `hazard` (..., AGES).
    """
    start = np.zeros((*hazard.shape[:-1], 1))
    cumulative = np.concatenate((start, (hazard * _LASTS_S).cumsum(-1)), -1)
    index = np.zeros_like(hazard)
    for age in range(AGES):
        alive = np.exp(cumulative[..., age, None] - cumulative[..., age:])
        returned = 1.0 - alive[..., 1:]
        spent = ((alive[..., :-1] - alive[..., 1:]) / hazard[..., age:]).cumsum(axis=-1)
        index[..., age] = (returned / spent).max(axis=-1)
    return index

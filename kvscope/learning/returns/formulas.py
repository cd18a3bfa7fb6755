"""How soon what was touched returns: the index that `Gittins` reads, from counts of a window.

The formulas are free of traces: a simulator or an engine that counts what `Waits` says can use
them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.base import Floats
from kvscope.policies.gittins import AGES, AGES_AN_OCTAVE, LEAST_S

_BEGINS = np.concatenate(([0.0], LEAST_S * 2.0 ** (np.arange(AGES - 1) / AGES_AN_OCTAVE)))
_LASTS = np.append(np.diff(_BEGINS), _BEGINS[-1])  # seconds; the last one is taken to double
_PRIOR = 1.0 / (30.0 + _BEGINS + _LASTS / 2)  # up to a factor: returns a second at each age
_PRIOR_RETURNS = 1.0  # of one request's blocks: drawn from the coarser class at each age
_ROOT_RETURNS = 0.2


class Waits(NamedTuple):
    """Blocks touched in a window, by class and age (..., classes, AGES).

    `returned` counts those touched again at that age, `waiting` those that had reached it unused
    when the window ended; `seconds` (of both together) what they had spent in it. `requests` (...)
    touched them.
    """

    returned: Floats
    waiting: Floats
    seconds: Floats
    requests: Floats


def began_s(ages: NDArray[np.int64]) -> Floats:
    """Seconds since the touch at which each age begins."""
    began: Floats = _BEGINS[ages]
    return began


def return_values(of: Waits, steps: tuple[int, ...]) -> Floats:
    """The table of `Gittins`: the index of each class and age, in two equal rows a class.

    `steps` are those of the class set, one of `STEPS`.
    """
    index = gittins_index(hazards(of, steps))
    values: Floats = np.repeat(index, 2, axis=-2)
    return values


def hazards(of: Waits, steps: tuple[int, ...]) -> Floats:
    """Returns a second at each age, of each class (..., classes, AGES).

    The piecewise constant hazard of right-censored waits: returns over time at risk, in units of a
    request's mean number of blocks, since those return together. Each class is drawn to a coarser
    one as by one return more at each age: to that of any last feature, that one to any of the last
    two, and so on to all together; and those to a hazard that falls with 1 / (30 s + age), of the
    height seen.
    Source: Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, section 4.2
    (piecewise exponential); the prior's form is our own.
    """
    left = of.returned + of.waiting
    later = left[..., ::-1].cumsum(axis=-1)[..., ::-1] - left
    blocks = left.sum(axis=(-2, -1))
    unit = np.where(blocks > 0, of.requests / np.where(blocks > 0, blocks, 1.0), 0.0)
    unit = unit[..., None, None]
    returned, at_risk = of.returned * unit, (of.seconds + later * _LASTS) * unit
    every, risk = returned.sum(axis=-2), at_risk.sum(axis=-2)
    height = (every.sum(axis=-1) + 1.0) / ((risk * _PRIOR).sum(axis=-1) + 1.0)
    prior = _PRIOR * np.minimum(height, 1.0)[..., None]
    found: Floats = ((every + _ROOT_RETURNS) / (risk + _ROOT_RETURNS / prior))[..., None, :]
    classes = np.arange(math.prod(steps))
    for known in range(1, len(steps) + 1):
        found = _finer(found, returned, at_risk, classes // math.prod(steps[known:]))
    return found


def _finer(coarse: Floats, returned: Floats, at_risk: Floats, group: NDArray[np.int64]) -> Floats:
    """Hazards of the groups of classes, an entry a class, drawn to those of `coarse`."""
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    events = np.add.reduceat(returned, starts, axis=-2)[..., group, :]
    risk = np.add.reduceat(at_risk, starts, axis=-2)[..., group, :]
    found: Floats = (events + _PRIOR_RETURNS) / (risk + _PRIOR_RETURNS / coarse)
    return found


def gittins_index(hazard: Floats) -> Floats:
    """The index at the beginning of each age: the best rate of returns over all horizons.

    max over later ends e of (S(a) - S(e)) / (integral of S from a to e), S the survival function of
    the piecewise constant `hazard` (..., AGES).
    """
    gone = np.concatenate((np.zeros((*hazard.shape[:-1], 1)), (hazard * _LASTS).cumsum(-1)), -1)
    index = np.zeros_like(hazard)
    for age in range(AGES):
        alive = np.exp(gone[..., age, None] - gone[..., age:])
        returned = 1.0 - alive[..., 1:]
        spent = ((alive[..., :-1] - alive[..., 1:]) / hazard[..., age:]).cumsum(axis=-1)
        index[..., age] = (returned / spent).max(axis=-1)
    return index

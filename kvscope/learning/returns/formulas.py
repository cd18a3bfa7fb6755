"""The table of `gittins` from counts of a window: how soon each class of requests returns.

Classes, ages, and the Gittins index of each class at each age. The simulator takes the counts from
a trace, an engine's plugin from the requests that it serves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import callable_in_kernels
from kvscope.policies.gittins import AGES, AGES_AN_OCTAVE, LEAST_S, LEVELS, WINDOW_REFITS

FEATURES = (
    ("new_tokens", (512, 2048, 8192)),  # of a prompt, in full blocks that were never touched before
    ("turns", (1, 3)),  # requests before it, the prompt of each the whole beginning of the next
)
"""The `RequestFeatures` that define classes, each with the edges between these; coarsest first."""
GAPS_S = (4.0, 32.0, 256.0)
"""Edges between the parts of a prompt: how long (s) blocks had waited when it touched them."""
PARTS = len(GAPS_S) + 2  # the last one is new; each class of requests has a row for each part
STEPS = (PARTS, *(len(edges) + 1 for _, edges in FEATURES))
ROWS = math.prod(STEPS)

LRU, NEED, OWN = 0, 1, 2  # the guard's candidates: two know nothing, the last one the classes
WORTHS = (0.0, 1.0)  # of every block: under LRU; by need alone

REFIT_BINS = 4  # requests are counted in bins of a quarter of those from one refit to the next
WINDOW_BINS = REFIT_BINS * WINDOW_REFITS

BEGINS_S = np.concatenate(([0.0], LEAST_S * 2.0 ** (np.arange(AGES - 1) / AGES_AN_OCTAVE)))
_LASTS_S = np.append(np.diff(BEGINS_S), BEGINS_S[-1])  # the last one is taken to double
_PRIOR = 1.0 / (30.0 + BEGINS_S + _LASTS_S / 2)  # up to a factor: returns a second at each age
_PRIOR_RETURNS = 0.2  # of one touch's blocks: drawn from the coarser class at each age
_ROOT_RETURNS = 0.2


def bin_requests(refit_requests: float) -> int:
    """Return the number of requests in a bin, a quarter of those between refits."""
    return int(refit_requests) // REFIT_BINS


def begins_with_refit(number: int) -> bool:
    """Return whether a bin begins with a refit: every fourth bin, and bins 1 and 2.

    The early refits give a first table, which is soon replaced by one with more data.
    """
    return number % REFIT_BINS == 0 or number in {1, 2}


class RequestFeatures(NamedTuple):
    """The features of R requests at their arrival; every array has R entries.

    `new_tokens` lie in full blocks never touched before; `turns` is the number of previous turns:
    requests whose whole prompt begins the next one's.
    """

    new_tokens: Int64s
    turns: Int64s


def classes_of(requests: RequestFeatures) -> Int32s:
    """Return the class of each request, counted from 0."""
    number = np.zeros(len(requests.turns), dtype=np.int32)
    for name, edges in FEATURES:
        step = np.searchsorted(edges, getattr(requests, name), side="right")
        number = (number * (len(edges) + 1) + step).astype(np.int32)
    return number


def ages_of(idle_s: Float64s) -> Int64s:
    """Return the age, as a column of the table, of blocks untouched for `idle_s`."""
    octaves = np.log2(np.maximum(idle_s, LEAST_S) / LEAST_S)
    ages = np.where(idle_s < LEAST_S, 0, (octaves * AGES_AN_OCTAVE).astype(np.int64) + 1)
    return np.minimum(ages, AGES - 1)


def began_s(ages: Int64s) -> Float64s:
    """Return the seconds since the touch at which each age begins."""
    began: Float64s = BEGINS_S[ages]
    return began


class ReturnCounts(NamedTuple):
    """Blocks touched in a window, by class and age (classes x AGES).

    `returned` counts blocks touched again at that age, `waiting` blocks that were at that age,
    unused, when the window ended; `seconds` is the time that these two spent at that age, summed
    over blocks. `touches` is the number of touches, of any number of blocks each.
    """

    returned: Float64s
    waiting: Float64s
    seconds: Float64s
    touches: float


class FitMemory(NamedTuple):
    """Constants and working arrays of a fit, besides its counts.

    Classes are grouped: at level k, by the first k of part, `new_tokens`, `turns`; all at level 0.
    Read: `sizes` (levels), the classes in a group; `lasts_s` (AGES), the seconds that each age
    lasts, and `prior` (AGES), the shape of the hazard. Overwritten: `blocks` (classes) that were
    touched, and `at_risk` (classes x AGES), their blocks times seconds. `returned` and `risk`
    (AGES) of one group, in touches. `hazard` (levels x AGES) of the groups of the present class;
    for each level, `level` is the deepest one down to it whose group has touched blocks, else 0:
    its hazard is used; `row` is the index's row of the level's own hazard, -1 if not written yet.
    `alive`, `spent_s` and `after` (AGES) of the ages from each to its best horizon: the share of
    blocks not returned at the horizon, the mean seconds until a return or the horizon, and the age
    after it.
    """

    sizes: Int64s
    lasts_s: Float64s
    prior: Float64s
    blocks: Float64s
    at_risk: Float64s
    returned: Float64s
    risk: Float64s
    hazard: Float64s
    level: Int64s
    row: Int64s
    alive: Float64s
    spent_s: Float64s
    after: Int64s


def fit_memory() -> FitMemory:
    """Return the constants and new working arrays to fit tables of `gittins` with `fit_rows`."""
    sizes = [math.prod(STEPS[known:]) for known in range(len(STEPS) + 1)]
    classes, levels = sizes[0], len(sizes)
    return FitMemory(
        sizes=np.array(sizes),
        lasts_s=_LASTS_S,
        prior=_PRIOR,
        blocks=np.zeros(classes),
        at_risk=np.zeros((classes, AGES)),
        returned=np.zeros(AGES),
        risk=np.zeros(AGES),
        hazard=np.zeros((levels, AGES)),
        level=np.zeros(levels, dtype=np.int64),
        row=np.zeros(levels, dtype=np.int64),
        alive=np.zeros(AGES),
        spent_s=np.zeros(AGES),
        after=np.zeros(AGES, dtype=np.int64),
    )


def return_table(counts: ReturnCounts) -> Float64s:
    """Return the table of `gittins`: the index at each age, for each class, part and lane.

    Rows are ordered by class, then part, then lane. The four lanes of a class and part have equal
    rows; the policy multiplies them by a need: how likely a next turn needs the lane's blocks.
    """
    # As lists: without a kernel, single numbers of arrays take four times as long.
    counted: Any = counts._replace(
        returned=counts.returned.tolist(),
        waiting=counts.waiting.tolist(),
        seconds=counts.seconds.tolist(),
    )
    memory: Any = FitMemory(*(array.tolist() for array in fit_memory()))
    index: Any = np.zeros((ROWS, AGES)).tolist()
    rows: Any = [0] * ROWS
    fit_rows(counted, memory, index, 0, rows)
    values: Float64s = np.repeat(np.array(index)[by_class(np.array(rows))], LEVELS, axis=0)
    return values


def by_class(rows: Int32s) -> Int32s:
    """Return `rows` (last axis: ROWS) in the order of tables: by class, then part.

    Fits order them by part, then class: the classes of one part are more alike than the parts of
    one class.
    """
    by_part = rows.reshape(*rows.shape[:-1], PARTS, -1)
    return by_part.swapaxes(-1, -2).reshape(rows.shape)


@callable_in_kernels
def fit_rows(
    counts: ReturnCounts, memory: FitMemory, index: Float64s, row: int, rows: Int32s
) -> int:
    """Write the index by age of each class of a window to `index`; return its next free row.

    Rows from `row` on are used. `rows[c]` becomes the row of class c: its own where blocks of the
    class were touched, else that of the coarser group with the same hazard.

    Hazards are piecewise constant, of right-censored waits: returns over time at risk, in units of
    a touch's mean number of blocks, since these return together. Each class is shrunk, by a
    fraction of a return at each age, towards the group that ignores its last feature, that group
    towards the one that ignores its last two, and so on to all classes together; these towards a
    hazard that falls with 1 / (30 s + age), scaled to the returns counted.
    Source: Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, section 4.2
    (piecewise exponential); the prior's form is our own.
    """
    level, row_of, last = memory.level, memory.row, len(memory.sizes) - 1
    unit = touches_a_block(counts, memory)
    set_root_hazard(counts, unit, memory)
    level[0], row_of[0] = 0, -1
    for number in range(len(rows)):
        for known in range(1, last + 1):
            if number % memory.sizes[known] == 0:
                level[known] = level[known - 1]
                if set_hazard(counts, unit, number, known, memory):
                    level[known], row_of[known] = known, -1
        deepest = level[last]
        if row_of[deepest] < 0:
            set_gittins_index(memory.hazard[deepest], memory, index[row])
            row_of[deepest] = row
            row += 1
        rows[number] = row_of[deepest]
    return row


@callable_in_kernels
def touches_a_block(counts: ReturnCounts, memory: FitMemory) -> float:
    """Return the number of touches per touched block, 0 without any: what a block counts in a fit.

    Blocks of one touch return together, so that each counts as this part of a touch. Also set
    `memory.blocks`, and `memory.at_risk` in blocks times seconds, by age.
    """
    total = 0.0
    for number in range(len(memory.blocks)):
        returned, waiting = counts.returned[number], counts.waiting[number]
        seconds, at_risk = counts.seconds[number], memory.at_risk[number]
        later = 0.0
        for age in range(AGES - 1, -1, -1):
            at_risk[age] = seconds[age] + later * memory.lasts_s[age]
            later += returned[age] + waiting[age]
        memory.blocks[number] = later
        total += later
    return counts.touches / total if total > 0 else 0.0


@callable_in_kernels
def set_root_hazard(counts: ReturnCounts, unit: float, memory: FitMemory) -> None:
    """Write the hazard of all classes together, shrunk towards the prior, to `memory.hazard[0]`."""
    hazard, returned, risk = memory.hazard[0], memory.returned, memory.risk
    sum_group(counts, unit, 0, 0, memory)
    every, weight = 1.0, 1.0
    for age in range(AGES):
        every += returned[age]
        weight += risk[age] * memory.prior[age]
    height = min(every / weight, 1.0)
    for age in range(AGES):
        prior = memory.prior[age] * height
        hazard[age] = (returned[age] + _ROOT_RETURNS) / (risk[age] + _ROOT_RETURNS / prior)


@callable_in_kernels
def set_hazard(
    counts: ReturnCounts, unit: float, first: int, known: int, memory: FitMemory
) -> bool:
    """Write the hazard of a group to row `known` of `memory.hazard`, unless it was not touched.

    The group (see `sum_group`) begins with class `first`; its hazard is shrunk towards the coarser
    group's. `unit` is the result of `touches_a_block`. Return False if the group was not touched.
    """
    if not sum_group(counts, unit, first, known, memory):
        return False
    coarse, hazard = memory.hazard[memory.level[known - 1]], memory.hazard[known]
    for age in range(AGES):
        returned, risk = memory.returned[age], memory.risk[age]
        hazard[age] = (returned + _PRIOR_RETURNS) / (risk + _PRIOR_RETURNS / coarse[age])
    return True


@callable_in_kernels
def sum_group(counts: ReturnCounts, unit: float, first: int, known: int, memory: FitMemory) -> bool:
    """Sum a group's returns and time at risk by age; return whether any of its blocks was touched.

    The group is the classes from `first` on that are equal in the first `known` of: part,
    `new_tokens`, `turns`. `memory.returned` becomes the blocks touched again at each age,
    `memory.risk` the seconds at it of all blocks; a block counts as `unit` (`touches_a_block`).
    """
    returned, risk, touched = memory.returned, memory.risk, False
    for age in range(AGES):
        returned[age] = risk[age] = 0.0
    for number in range(first, first + memory.sizes[known]):
        if memory.blocks[number] > 0:
            own_returned, own_risk = counts.returned[number], memory.at_risk[number]
            touched = True
            for age in range(AGES):
                returned[age] += own_returned[age] * unit
                risk[age] += own_risk[age] * unit
    return touched


@callable_in_kernels
def set_gittins_index(hazard: Float64s, memory: FitMemory, index: Float64s) -> None:
    """Write the index at the beginning of each age: the best rate of returns over all horizons.

    max over later ends e of (S(a) - S(e)) / (integral of S from a to e), S the survival function of
    the piecewise constant `hazard` (AGES). From the last age backwards, an age is joined with the
    stretch after it while that has a higher rate: the best horizon is the end of the last one.
    Source: Barlow et al., Statistical Inference under Order Restrictions, section 1.2 (slopes of
    the least concave majorant, by pooling adjacent violators).
    """
    alive, spent_s, after = memory.alive, memory.spent_s, memory.after
    for age in range(AGES - 1, -1, -1):
        risk, end = hazard[age] * memory.lasts_s[age], age + 1
        survival, returned = math.exp(-risk), -math.expm1(-risk)
        spent = returned / hazard[age]
        while end < AGES and index[end] * spent > returned:
            returned += survival * index[end] * spent_s[end]
            spent += survival * spent_s[end]
            survival *= alive[end]
            end = after[end]
        alive[age], spent_s[age], after[age] = survival, spent, end
        index[age] = returned / spent

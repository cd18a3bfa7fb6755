"""Learn the table of `gittins` from a whole trace: classes of requests, and when each returns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.features import PrefixFeatures, Refits, chained, prefix_features
from kvscope.learning.offline.learners import OfflineLearner, end_of
from kvscope.learning.offline.shadow_replays import ShadowReplays, row_at
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import (
    BEGINS_S,
    FIRST,
    GAPS_S,
    PARTS,
    STEPS,
    WINDOW_BINS,
    WORTHS,
    FitMemory,
    RequestFeatures,
    ReturnCounts,
    ages_of,
    begins_with_refit,
    bin_requests,
    by_class,
    classes_of,
    fit_memory,
    fit_rows,
)
from kvscope.policies.base import Policy
from kvscope.policies.gittins import AGES, LEVELS, REFIT_REQUESTS
from kvscope.replay.last_touch import Segments, last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic


class ClassSetShadows(ShadowReplays):
    """Shadows of LRU, of need alone, and of each class set."""

    def __init__(self, traffic: Traffic, class_sets: Sequence[Tables]) -> None:
        """`class_sets` have the same refits and the same values, the first of which are WORTHS."""
        since, values = np.zeros(1, dtype=np.int64), class_sets[0].values
        nothing = np.zeros(len(traffic.leaf), dtype=np.int32)
        uncut = traffic.cuts[:, :0]
        simple = [
            Tables(since, np.full((1, LEVELS), row, dtype=np.int32), values, nothing, uncut)
            for row in range(len(WORTHS))
        ]
        super().__init__(traffic, [*simple, *class_sets])
        self._class_sets = tuple(class_sets)

    def tables(self) -> Tables:
        """Return the tables that choose for each cache; unchosen, those of the first class set."""
        first = self._class_sets[0]
        rows = np.concatenate([tables.rows for tables in self._class_sets], axis=1)
        return replace(first, rows=rows, choose=self.choose)

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Return the tables of the candidates in force, each from its time on.

        A request keeps the class of the set that was in force, or had been last, when it came. Each
        set's classes are refitted all the time.
        """
        tables, requests = self.tables(), np.arange(len(self._traffic.leaf))
        taken = self.taken(policy, capacity_blocks)
        since, now = taken.over(tables.since, len(requests))
        begins = np.cumsum(
            [0, *(tables.categories // (LEVELS * PARTS) for tables in self._class_sets)]
        )
        classes = np.stack(
            [
                tables.category(self._traffic) + begin
                for tables, begin in zip(self._class_sets, begins, strict=False)
            ]
        )
        latest, sets = 0, []
        for candidate in now.tolist():
            latest = candidate - FIRST if candidate >= FIRST else latest
            sets.append(latest)
        in_force = classes[np.array(sets)[row_at(since, requests)], requests].astype(np.int32)
        rows = tables.rows[row_at(tables.since, since)]
        rows[now < FIRST] = now[now < FIRST, None]
        return Tables(since, rows, tables.values, in_force, tables.cuts)


class ReturnsOffline(OfflineLearner):
    """The classes of all requests, and each class's index by age.

    Each cache goes by the class set that did best for it, or by none: `ClassSetShadows`.
    """

    def tables(self, traffic: Traffic, every: float = REFIT_REQUESTS.default) -> Tables:
        """Return the tables that every refit fits, of both class sets."""
        return ClassSetShadows(traffic, class_set_tables(traffic, every)).tables()

    def fit(
        self, traffic: Traffic, policy: Policy, capacity_blocks: int | None = None
    ) -> FittedReturns:
        """Return the fit of a refit behind the last request, of the class set that does best.

        Those are the ones in force at the end of a replay with `capacity_blocks`, which may also be
        none (LRU, or need alone: indices that are all alike); without a capacity, those of the
        first class set.
        """
        every, taken = policy.refit_every, FIRST
        if capacity_blocks is not None:
            shadows = ClassSetShadows(traffic, class_set_tables(traffic, every))
            taken = shadows.taken(policy, capacity_blocks).candidate[-1]
        fitted = fit_at_end(traffic, every, max(taken - FIRST, 0))
        if taken >= FIRST:
            return fitted
        return dataclasses.replace(fitted, index=np.full((len(fitted.index), AGES), WORTHS[taken]))

    def plugin_tables(self, traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
        """Return the tables that the plugin's guard chooses from.

        What a file has `fitted` stays; or the plugin refits as in a replay, from the request on
        that `FittedReturns.refits` says. The file's class set is the first candidate; without
        refits it is the only one beside LRU and need alone.
        """
        if not isinstance(fitted, FittedReturns):
            return self.tables(traffic, policy.refit_every)
        others = list(class_set_tables(traffic, policy.refit_every))
        first = others.pop(fitted.class_set)
        early = np.ones(len(first.since), dtype=np.bool_)
        if not fitted.refits:
            others = []
        else:
            early = first.since < fitted.requests
        values, rows = np.concatenate((first.values, fitted.index)), first.rows.copy()
        rows[early] = np.arange(len(first.values), len(values)).repeat(LEVELS)
        candidates = [replace(first, rows=rows), *others]
        candidates = [replace(candidate, values=values) for candidate in candidates]
        return ClassSetShadows(traffic, candidates).tables()


LEARNER = ReturnsOffline()


def refits_of(requests: int, refit_requests: float) -> Refits:
    """Return the refits among `requests` requests."""
    bins = np.arange(max(requests, 1)) // bin_requests(refit_requests)
    number = np.array([at for at in range(bins[-1] + 1) if begins_with_refit(at)])
    return Refits(bins, number, np.searchsorted(bins, number))


def class_set_tables(
    traffic: Traffic, refit_requests: float = REFIT_REQUESTS.default
) -> tuple[Tables, ...]:
    """Return the tables of all refits, one of each class set; they share values, WORTHS first.

    A refit sees what the requests of `WINDOW_BINS` bins before it touched. Blocks not touched by as
    many are forgotten: they count as new, as in an engine that remembers no more.
    """
    segments, refits = last_touch_segments(traffic), refits_of(len(traffic.leaf), refit_requests)
    kinds, cuts = _sorted(traffic, segments, refit_requests)
    parts = touch_parts(traffic, segments, refits.bin, cuts)
    class_sets = [
        (steps, parts.kinds(classes, steps)) for steps, classes in zip(STEPS, kinds, strict=True)
    ]
    refits_s = traffic.arrival_s[refits.since] if len(traffic.leaf) else np.zeros(1)
    values, rows = fit_windows(parts.touches, parts.returns, refits.number, refits_s, class_sets)
    return tuple(
        Tables(refits.since, of_set.repeat(LEVELS, axis=1), values, classes, cuts)
        for of_set, classes in zip(rows, kinds, strict=True)
    )


def fit_at_end(
    traffic: Traffic, refit_requests: float, class_set: int, end_s: float | None = None
) -> FittedReturns:
    """Return the fit of one class set to all of a window of requests that ends with the last one.

    Those that wait do so until `end_s` (default: right behind the last request).
    """
    end = np.array([end_of(traffic) if end_s is None else end_s])
    requests, of_a_bin = len(traffic.leaf), bin_requests(refit_requests)
    bins = (np.arange(requests) - requests) // of_a_bin  # the last one ends in front of bin 0
    segments = last_touch_segments(traffic)
    kinds, cuts = _sorted(traffic, segments, refit_requests)
    parts, steps = touch_parts(traffic, segments, bins, cuts), STEPS[class_set]
    class_sets = [(steps, parts.kinds(kinds[class_set], steps))]
    values, (rows,) = fit_windows(
        parts.touches, parts.returns, np.zeros(1, np.int64), end, class_sets
    )
    return FittedReturns(class_set, values[rows[0]], min(requests, WINDOW_BINS * of_a_bin))


def _sorted(
    traffic: Traffic, segments: Segments, refit_requests: float
) -> tuple[tuple[Int32s, ...], Int32s]:
    """Return the class of each request in each class set, and the cuts of its path (R x P)."""
    prefixes = prefix_features(traffic, segments, WINDOW_BINS * bin_requests(refit_requests))
    return classes_of(request_features(traffic, prefixes)), path_cuts(prefixes)


def request_features(traffic: Traffic, prefixes: PrefixFeatures) -> RequestFeatures:
    """Return the features of each request, by its blocks that were touched before."""
    turns, _ = chained(prefixes.before(prefixes.whole))
    new_tokens = (prefixes.full - prefixes.known()) * traffic.block_size
    return RequestFeatures(new_tokens, turns, traffic.history_tokens - traffic.input_tokens)


def path_cuts(prefixes: PrefixFeatures) -> Int32s:
    """Return the depths that cut each path into `PARTS`, by how long its blocks had waited (R x P).

    The deeper a block lies, the longer it had waited: what touches it touches all before it.
    """
    cuts = np.zeros((len(prefixes.full), PARTS - 1), dtype=np.int32)
    known = np.flatnonzero(prefixes.recent)
    part = np.searchsorted(GAPS_S, prefixes.wait_s[known], side="right")
    np.maximum.at(cuts, (prefixes.request[known], part), prefixes.end[known])
    reached: Int32s = np.maximum.accumulate(cuts, axis=1)
    return reached


class Touches(NamedTuple):
    """N touches of so many `blocks` each, ascending in time.

    `bin` is that of the request that touches.
    """

    arrival_s: Float64s
    bin: Int64s
    blocks: Int64s


class Returns(NamedTuple):
    """M returns of `blocks` that `touch` had touched last, ascending in time."""

    touch: Int64s
    arrival_s: Float64s
    bin: Int64s
    blocks: Int64s


class TouchedParts(NamedTuple):
    """One touch for each part of a path that has blocks, and its returns.

    `request` and `part` (N entries) say of which.
    """

    touches: Touches
    returns: Returns
    request: Int64s
    part: Int64s

    def kinds(self, classes: Int32s, steps: tuple[int, ...]) -> Int32s:
        """Return the class of each touch, by part and by its request's in a class set."""
        kinds: Int32s = (self.part * math.prod(steps[1:]) + classes[self.request]).astype(np.int32)
        return kinds


class IndexRows(NamedTuple):
    """The index of each class at K refits: `values[rows[s][k, c]]`, of class c of set s at refit k.

    The first of `values` (rows of AGES) are WORTHS. Then there is one for each class of a refit
    that touches are of, and one for all others of a coarser class: no more than the touches in the
    refits' windows times the features of the sets.
    """

    values: Float64s
    rows: tuple[Int32s, ...]


def touch_parts(traffic: Traffic, segments: Segments, bins: Int64s, cuts: Int32s) -> TouchedParts:
    """Return the touches of the parts that `cuts` make, and when their blocks returned.

    `bins` (R) are the bins of requests.
    """
    blocks = traffic.length + traffic.anonymous
    begin = np.concatenate((np.zeros_like(cuts[:, :1]), cuts), axis=1)
    end = np.concatenate((cuts, blocks[:, None]), axis=1)
    request, part = np.nonzero(end > begin)
    number = np.full(end.shape, -1, dtype=np.int32)
    number[request, part] = np.arange(len(request))
    previous = segments.previous
    # Of each segment, what lies in each part of the request that touched it last.
    deepest = np.minimum(segments.end[:, None], end[previous])
    shared = deepest - np.maximum(segments.start[:, None], begin[previous])
    segment, returning = np.nonzero(shared > 0)
    again = segments.request[segment]
    return TouchedParts(
        Touches(
            traffic.arrival_s[request],
            bins[request],
            (end - begin)[request, part].astype(np.int64),
        ),
        Returns(
            number[previous[segment], returning].astype(np.int64),
            traffic.arrival_s[again],
            bins[again],
            shared[segment, returning].astype(np.int64),
        ),
        request,
        part,
    )


def fit_windows(
    touches: Touches,
    returns: Returns,
    refits: Int64s,
    refits_s: Float64s,
    class_sets: Sequence[tuple[tuple[int, ...], Int32s]],
) -> IndexRows:
    """Fit the index to the `WINDOW_BINS` bins before each of the `refits`, ascending.

    They happen at `refits_s`. Each of `class_sets` has its steps and the class of each touch. Time
    and memory grow with the touches and returns in windows, whatever the time between them.
    """
    window = _window_ranges(touches.bin, returns.bin, refits)
    inside = window.touch_end - window.first_touch
    most = sum(
        int(np.minimum(math.prod(steps), len(steps) * inside + 1).sum()) for steps, _ in class_sets
    )
    used, rows = len(WORTHS), []
    values = np.empty((used + most, AGES))  # where it is not written it takes no memory
    values[:used] = np.array(WORTHS)[:, None]
    wait_s = returns.arrival_s - touches.arrival_s[returns.touch]
    waits = _Waits(returns.touch, ages_of(wait_s), wait_s, returns.blocks)
    still_waiting = np.empty(len(touches.blocks), dtype=np.int64)
    for steps, kinds in class_sets:
        classes = math.prod(steps)
        returned, waiting, seconds = np.empty((3, classes, AGES))
        counts = ReturnCounts(returned, waiting, seconds, 0.0)
        rows.append(np.empty((len(refits), classes), dtype=np.int32))
        used = _fill_rows(
            touches, kinds, waits, window, refits_s, counts, still_waiting, fit_memory(steps),
            values, used, rows[-1],
        )  # fmt: skip
    values.resize((used, AGES), refcheck=False)  # in place
    return IndexRows(values, tuple(map(by_class, rows)))


class _WindowRanges(NamedTuple):
    """The touches and the returns that each of K refits may count, as ranges of their numbers."""

    first_touch: Int64s
    touch_end: Int64s
    first_return: Int64s
    return_end: Int64s


def _window_ranges(touch_bin: Int64s, return_bin: Int64s, refits: Int64s) -> _WindowRanges:
    return _WindowRanges(
        *(
            np.searchsorted(bins, refits - ahead)
            for bins in (touch_bin, return_bin)
            for ahead in (WINDOW_BINS, 0)
        )
    )


class _Waits(NamedTuple):
    """`Returns` by the time since the touch, and its age."""

    touch: Int64s
    age: Int64s
    wait_s: Float64s
    blocks: Int64s


@kernel
def _fill_rows(
    touches: Touches,
    kinds: Int32s,
    waits: _Waits,
    window: _WindowRanges,
    refits_s: Float64s,
    counts: ReturnCounts,
    waiting: Int64s,
    memory: FitMemory,
    values: Float64s,
    used: int,
    rows: Int32s,
) -> int:
    """Fill `values` after the rows `used`, and `rows`, refit by refit; return the rows used."""
    for refit in range(len(refits_s)):
        count_window(touches, kinds, waits, window, refit, refits_s[refit], counts, waiting)
        count = float(window.touch_end[refit] - window.first_touch[refit])
        of_window = ReturnCounts(counts.returned, counts.waiting, counts.seconds, count)
        used = fit_rows(of_window, memory, values, used, rows[refit])
    return used


@callable_in_kernels
def count_window(
    touches: Touches,
    kinds: Int32s,
    waits: _Waits,
    window: _WindowRanges,
    refit: int,
    refit_s: float,
    counts: ReturnCounts,
    waiting: Int64s,
) -> None:
    """Set the counts of the window before one refit, at `refit_s`.

    `waiting` becomes the blocks of each touch in the window that have not returned by then.
    """
    first, end = window.first_touch[refit], window.touch_end[refit]
    counts.returned[:] = 0.0
    counts.waiting[:] = 0.0
    counts.seconds[:] = 0.0
    for touch in range(first, end):
        waiting[touch] = touches.blocks[touch]
    for at in range(window.first_return[refit], window.return_end[refit]):
        touch = waits.touch[at]
        if touch >= first:
            kind, age, blocks = kinds[touch], waits.age[at], waits.blocks[at]
            waiting[touch] -= blocks
            counts.returned[kind, age] += blocks
            counts.seconds[kind, age] += blocks * (waits.wait_s[at] - BEGINS_S[age])
    age = AGES - 1
    for touch in range(first, end):
        wait_s = max(refit_s - touches.arrival_s[touch], 0.0)
        while wait_s < BEGINS_S[age]:
            age -= 1
        kind, blocks = kinds[touch], waiting[touch]
        counts.waiting[kind, age] += blocks
        counts.seconds[kind, age] += blocks * (wait_s - BEGINS_S[age])

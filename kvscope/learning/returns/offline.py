"""Learn the table of `gittins` from a whole trace: classes of requests, and when each returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import OfflineLearner, end_of
from kvscope.learning.offline.prefix_features import PrefixFeatures, chained, prefix_features
from kvscope.learning.offline.refits import refits_of
from kvscope.learning.offline.shadow_replays import Candidate, ShadowReplays
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import (
    BEGINS_S,
    FIRST,
    GAPS_S,
    GUARD,
    PARTS,
    STEPS,
    WORTHS,
    FitMemory,
    RequestFeatures,
    ReturnCounts,
    ages_of,
    by_class,
    classes_of,
    fit_memory,
    fit_rows,
)
from kvscope.policies.base import Floats, Policy
from kvscope.policies.gittins import AGES, REFIT_OFTEN, WINDOW_REFITS
from kvscope.replay.last_touch import Segments, last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic


class ClassSetShadows(ShadowReplays):
    """Shadows of LRU, of need alone, and of each class set."""

    rule = GUARD

    def __init__(self, traffic: Traffic, refit_s: float, class_sets: Sequence[Candidate]) -> None:
        """`class_sets` have the same refits."""
        nothing = np.zeros(len(traffic.leaf), dtype=np.int32)
        uncut = traffic.cuts[:, :0]
        simple = [
            Candidate(np.zeros(1, dtype=np.int64), np.full((1, 2, AGES), worth), nothing, uncut)
            for worth in WORTHS
        ]
        super().__init__(traffic, refit_s, [*simple, *class_sets])
        self._class_sets = tuple(class_sets)

    def tables(self) -> Tables:
        """Return the tables that choose for each cache; unchosen, those of the first class set."""
        values = np.concatenate([candidate.values for candidate in self._class_sets], axis=1)
        first = self._class_sets[0]
        return Tables(self._refits.since, values, first.classes, first.cuts, self.choose)

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Return the tables of the candidates in force, each from its time on.

        A request keeps the class of the set that was in force, or had been last, when it came. Each
        set's classes are refitted all the time.
        """
        taken = self.taken(self.costs(policy, capacity_blocks))
        changed = np.flatnonzero(np.diff(taken, prepend=-1))
        since = np.unique(np.concatenate((self._refits.since, self._looks.since[changed])))
        now = taken[_row(self._looks.since, since)]
        begins = np.cumsum(
            [0, *(of_set.values.shape[1] // (2 * PARTS) for of_set in self._class_sets)]
        )
        classes = np.stack(
            [of_set.classes + at for of_set, at in zip(self._class_sets, begins, strict=False)]
        )
        latest, sets = 0, []
        for candidate in now.tolist():
            latest = candidate - FIRST if candidate >= FIRST else latest
            sets.append(latest)
        requests = np.arange(len(self._traffic.leaf))
        in_force = classes[np.array(sets)[_row(since, requests)], requests]
        values = self.tables().values[_row(self._refits.since, since)]
        for candidate, worth in enumerate(WORTHS):
            values[now == candidate] = worth
        return Tables(since, values, in_force.astype(np.int32), self._class_sets[0].cuts)


def _row(since: Int64s, requests: Int64s) -> Int64s:
    """Return which of the rows that hold from requests `since` on holds for each request."""
    return np.searchsorted(since, requests, side="right") - 1


class ReturnsOffline(OfflineLearner):
    """The classes of all requests, and each class's index by age.

    Each cache goes by the class set that did best for it, or by none: `ClassSetShadows`.
    """

    def tables(self, traffic: Traffic, refit_s: float = REFIT_OFTEN.default) -> Tables:
        """Return the tables that every refit fits, of both class sets."""
        return ClassSetShadows(traffic, refit_s, class_set_tables(traffic, refit_s)).tables()

    def fit(
        self, traffic: Traffic, policy: Policy, capacity_blocks: int | None = None
    ) -> FittedReturns:
        """Return what a refit right behind the last request finds, by the classes that serve best.

        Those are the ones in force at the end of a replay with `capacity_blocks`, which may also be
        none (LRU, or need alone: indices that are all alike); without a capacity, those of the
        first class set, with which the policy begins.
        """
        refit_s = policy.values["refit_s"]
        taken = FIRST
        if capacity_blocks is not None:
            shadows = ClassSetShadows(traffic, refit_s, class_set_tables(traffic, refit_s))
            taken = shadows.last_taken(policy, capacity_blocks)
        fitted = fit_at_end(traffic, refit_s, max(taken - FIRST, 0))
        if taken >= FIRST:
            return fitted
        return replace(fitted, index=np.full((len(fitted.index), AGES), WORTHS[taken]))

    def plugin_tables(self, traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
        """Return the tables that the plugin's guard chooses from.

        What a file has `fitted` stays; or the plugin refits as in a replay, from the time on that
        `FittedReturns.refits` says. The file's class set is the first candidate; without refits it
        is the only one beside LRU and need alone.
        """
        refit_s = policy.values["refit_s"]
        if not isinstance(fitted, FittedReturns):
            return self.tables(traffic, refit_s)
        if not fitted.refits:
            since = refits_of(traffic, refit_s).since
            values = np.repeat(fitted.values[None], len(since), axis=0)
            classes, cuts = _sorted(traffic, last_touch_segments(traffic), refit_s)
            only = Candidate(since, values, classes[fitted.class_set], cuts)
            return ClassSetShadows(traffic, refit_s, [only]).tables()
        candidates = list(class_set_tables(traffic, refit_s))
        first = candidates.pop(fitted.class_set)
        if len(traffic.leaf):
            early = traffic.arrival_s[first.since] < fitted.window_s
            values = np.where(early[:, None, None], fitted.values, first.values)
            first = first._replace(values=values)
        return ClassSetShadows(traffic, refit_s, [first, *candidates]).tables()


LEARNER = ReturnsOffline()


def class_set_tables(
    traffic: Traffic, refit_s: float = REFIT_OFTEN.default
) -> tuple[Candidate, ...]:
    """Return what refits learn, by each class set.

    A refit sees the blocks touched within `WINDOW_REFITS` times `refit_s` before it. Blocks not
    touched for as long are forgotten: they count as new, as in an engine that remembers no more.
    """
    segments, refits = last_touch_segments(traffic), refits_of(traffic, refit_s)
    class_sets, cuts = _sorted(traffic, segments, refit_s)
    parts = touch_parts(traffic, segments, refits.bin, cuts)
    candidates = []
    for steps, classes in zip(STEPS, class_sets, strict=True):
        fits = fit_windows(parts.of_classes(classes, steps), refits.number, refit_s, steps)
        values = np.repeat(fits.values[fits.rows], 2, axis=1)
        candidates.append(Candidate(refits.since, values, classes, cuts))
    return tuple(candidates)


def fit_at_end(
    traffic: Traffic, refit_s: float, class_set: int, end_s: float | None = None
) -> FittedReturns:
    """Return the fit of one class set to the window before `end_s` (default: the trace's end)."""
    if end_s is None:
        end_s = end_of(traffic)
    ends = math.ceil(end_s / refit_s)  # as late as a refit is: intervals are all that counts
    traffic = traffic._replace(arrival_s=traffic.arrival_s + (ends * refit_s - end_s))
    bins = np.minimum((traffic.arrival_s // refit_s).astype(np.int64), ends - 1)
    segments = last_touch_segments(traffic)
    class_sets, cuts = _sorted(traffic, segments, refit_s)
    parts, steps = touch_parts(traffic, segments, bins, cuts), STEPS[class_set]
    touches = parts.of_classes(class_sets[class_set], steps)
    fits = fit_windows(touches, np.array([ends]), refit_s, steps)
    requests = int(np.sum(bins >= ends - WINDOW_REFITS))
    return FittedReturns(class_set, fits.values[fits.rows[0]], WINDOW_REFITS * refit_s, requests)


def _sorted(
    traffic: Traffic, segments: Segments, refit_s: float
) -> tuple[tuple[Int32s, ...], Int32s]:
    """Return the class of each request in each class set, and the cuts of its path (R x P)."""
    prefixes = prefix_features(traffic, segments, WINDOW_REFITS * refit_s)
    return classes_of(request_features(traffic, prefixes)), path_cuts(prefixes)


def request_features(traffic: Traffic, prefixes: PrefixFeatures) -> RequestFeatures:
    """Return what is known of each request, by its blocks that were touched before."""
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

    `bin` is the number of the latest refit before a touch, `kind` its class.
    """

    arrival_s: Floats
    bin: Int64s
    kind: Int32s
    blocks: Int64s


class Returns(NamedTuple):
    """M returns of `blocks` that `touch` had touched last, ascending in time."""

    touch: Int64s
    arrival_s: Floats
    bin: Int64s
    blocks: Int64s


class TouchedParts(NamedTuple):
    """One touch for each part of a path that has blocks, and its returns.

    `touches.kind` is the part, `request` the request of each touch.
    """

    touches: Touches
    returns: Returns
    request: Int64s

    def of_classes(self, classes: Int32s, steps: tuple[int, ...]) -> tuple[Touches, Returns]:
        """Return touches and returns by part and class; requests have `classes`, of a class set."""
        kind = self.touches.kind * math.prod(steps[1:]) + classes[self.request]
        return self.touches._replace(kind=kind.astype(np.int32)), self.returns


class IndexRows(NamedTuple):
    """The index of each class at K refits: `values[rows[k, c]]` (AGES), of class c at refit k.

    `values` have a row for each class of a refit with touches, and a row for all other classes of a
    coarser one: as many as the touches in the refits' windows at the most.
    """

    values: Floats
    rows: Int32s


def touch_parts(traffic: Traffic, segments: Segments, bins: Int64s, cuts: Int32s) -> TouchedParts:
    """Return the touches of the parts that `cuts` make, and when their blocks returned.

    `bins` (R) number the latest refit before each request.
    """
    blocks = traffic.length.astype(np.int64) + traffic.anonymous
    begin = np.concatenate((np.zeros_like(cuts[:, :1]), cuts), axis=1)
    end = np.concatenate((cuts, blocks[:, None]), axis=1)
    request, part = np.nonzero(end > begin)
    number = np.full(end.shape, -1, dtype=np.int64)
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
            part.astype(np.int32),
            (end - begin)[request, part].astype(np.int64),
        ),
        Returns(
            number[previous[segment], returning],
            traffic.arrival_s[again],
            bins[again],
            shared[segment, returning].astype(np.int64),
        ),
        request,
    )


def fit_windows(
    touched: tuple[Touches, Returns], refits: Int64s, refit_s: float, steps: tuple[int, ...]
) -> IndexRows:
    """Fit the index to the window before each of the `refits`, by ascending number.

    A touch is in the windows of the next `WINDOW_REFITS` refits. Time and memory grow with the
    touches and returns in windows, whatever the time between them.
    """
    touches, returns = touched
    window = _window_ranges(touches.bin, returns.bin, refits)
    classes = math.prod(steps)
    most_rows = np.minimum(classes, len(steps) * (window.touch_end - window.first_touch) + 1)
    values = np.empty((int(most_rows.sum()), AGES))  # where it is not written it takes no memory
    rows = np.empty((len(refits), classes), dtype=np.int32)
    returned, waiting, seconds = np.empty((3, classes, AGES))
    wait_s = returns.arrival_s - touches.arrival_s[returns.touch]
    used = _fill_rows(
        touches,
        _Waits(returns.touch, ages_of(wait_s), wait_s, returns.blocks),
        window,
        (refits * refit_s).astype(np.float64),
        ReturnCounts(returned, waiting, seconds, 0.0),
        np.empty(len(touches.blocks), dtype=np.int64),
        fit_memory(steps),
        values,
        rows,
    )
    values.resize((used, AGES), refcheck=False)  # in place
    return IndexRows(values, by_class(rows))


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
            for ahead in (WINDOW_REFITS, 0)
        )
    )


class _Waits(NamedTuple):
    """`Returns` by the time since the touch, and its age."""

    touch: Int64s
    age: Int64s
    wait_s: Floats
    blocks: Int64s


@kernel
def _fill_rows(
    touches: Touches,
    waits: _Waits,
    window: _WindowRanges,
    refits_s: Floats,
    counts: ReturnCounts,
    waiting: Int64s,
    memory: FitMemory,
    values: Floats,
    rows: Int32s,
) -> int:
    """Fill `values` and `rows`, refit by refit; return the rows of `values` used."""
    used = 0
    for refit in range(len(refits_s)):
        count_window(touches, waits, window, refit, refits_s[refit], counts, waiting)
        count = float(window.touch_end[refit] - window.first_touch[refit])
        of_window = ReturnCounts(counts.returned, counts.waiting, counts.seconds, count)
        used = fit_rows(of_window, memory, values, used, rows[refit])
    return used


@callable_in_kernels
def count_window(
    touches: Touches,
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
            kind, age, blocks = touches.kind[touch], waits.age[at], waits.blocks[at]
            waiting[touch] -= blocks
            counts.returned[kind, age] += blocks
            counts.seconds[kind, age] += blocks * (waits.wait_s[at] - BEGINS_S[age])
    age = AGES - 1
    for touch in range(first, end):
        wait_s = max(refit_s - touches.arrival_s[touch], 0.0)
        while wait_s < BEGINS_S[age]:
            age -= 1
        kind, blocks = touches.kind[touch], waiting[touch]
        counts.waiting[kind, age] += blocks
        counts.seconds[kind, age] += blocks * (wait_s - BEGINS_S[age])

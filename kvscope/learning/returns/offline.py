"""Learn the table of `gittins` from a whole trace: classes of requests, and when each returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import OfflineLearner, end_of
from kvscope.learning.offline.prefix_features import chained, prefix_features
from kvscope.learning.offline.refits import Refits, WindowCells, refits_of
from kvscope.learning.offline.shadow_replays import Candidate, ShadowReplays
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import (
    FIRST,
    GUARD,
    STEPS,
    WORTHS,
    RequestFeatures,
    ReturnCounts,
    ages_of,
    began_s,
    classes_of,
    return_table,
)
from kvscope.policies.base import Floats, Policy
from kvscope.policies.gittins import AGES, REFIT_OFTEN, WINDOW_REFITS
from kvscope.replay.last_touch import Segments, last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic, uncut


class ClassSetShadows(ShadowReplays):
    """Shadows of LRU, of need alone, and of each class set."""

    rule = GUARD

    def __init__(self, traffic: Traffic, refit_s: float, class_sets: Sequence[Candidate]) -> None:
        """`class_sets` have the same refits."""
        nothing = np.zeros(len(traffic.leaf), dtype=np.int32)
        simple = [
            Candidate(np.zeros(1, dtype=np.int64), np.full((1, 2, AGES), worth), nothing, uncut(len(nothing)))
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
        begins = np.cumsum([0, *(of_set.values.shape[1] // 2 for of_set in self._class_sets)])
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
            classes = _classes(traffic, last_touch_segments(traffic), refit_s)[fitted.class_set]
            only = Candidate(since, values, classes)
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
    candidates = []
    for steps, classes in zip(STEPS, _classes(traffic, segments, refit_s), strict=True):
        window = WindowCells(refits, classes, math.prod(steps))
        counts = count_returns(traffic, segments, window, refit_s)
        candidates.append(Candidate(refits.since, return_table(counts, steps), classes, uncut(len(classes))))
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
    at_end = Refits(bins, np.array([ends]), np.array([len(bins)]))
    steps, segments = STEPS[class_set], last_touch_segments(traffic)
    classes = _classes(traffic, segments, refit_s)[class_set]
    window = WindowCells(at_end, classes, math.prod(steps))
    counts = count_returns(traffic, segments, window, refit_s)
    index = return_table(counts, steps)[0, ::2]
    return FittedReturns(class_set, index, WINDOW_REFITS * refit_s, int(counts.requests[0]))


def _classes(traffic: Traffic, segments: Segments, refit_s: float) -> tuple[Int32s, ...]:
    return classes_of(request_features(traffic, segments, WINDOW_REFITS * refit_s))


def request_features(traffic: Traffic, segments: Segments, memory_s: float) -> RequestFeatures:
    """Return what is known of each request, by its blocks that were touched within `memory_s`."""
    prefixes = prefix_features(traffic, segments, memory_s)
    turns, _ = chained(prefixes.before(prefixes.whole))
    new_tokens = (prefixes.full - prefixes.known()) * traffic.block_size
    output_tokens = traffic.history_tokens - traffic.input_tokens
    return RequestFeatures(
        new_tokens, turns, prefixes.of_deepest(prefixes.wait_s, 0.0), output_tokens
    )


def count_returns(
    traffic: Traffic, segments: Segments, window: WindowCells, refit_s: float
) -> ReturnCounts:
    """Return the counts of every refit's window, by (refits, classes, AGES).

    A touch is in the windows of the next `WINDOW_REFITS` refits.
    """
    refits = window.refits
    previous, request = segments.previous.astype(np.int64), segments.request.astype(np.int64)
    blocks = (segments.end - segments.start).astype(np.float64)
    gap_s = traffic.arrival_s[request] - traffic.arrival_s[previous]
    touched = (traffic.length + traffic.anonymous).astype(np.float64)
    everyone = np.arange(len(touched))
    requests = np.zeros(len(refits.number))
    returned, waiting, seconds = np.zeros((3, window.size(AGES)))

    def add(sums: Floats, of: Int64s, ahead: int, wait_s: Floats, count: Floats) -> None:
        age = ages_of(wait_s)
        cells = window.cells(of, ahead, age, AGES)
        sums += cells.sums(count)
        np.add(seconds, cells.sums(count * (wait_s - began_s(age))), out=seconds)

    for ahead in range(1, WINDOW_REFITS + 1):
        age_s = np.maximum((refits.bin + ahead) * refit_s - traffic.arrival_s, 0.0)
        requests += window.rows(everyone, ahead).sums(np.ones(len(everyone)))
        add(waiting, everyone, ahead, age_s, touched)
        in_time = refits.bin[request] < refits.bin[previous] + ahead
        returning, count = previous[in_time], blocks[in_time]
        add(waiting, returning, ahead, age_s[returning], -count)
        add(returned, returning, ahead, gap_s[in_time], count)
    shape = len(refits.number), window.classes, AGES
    returned, waiting, seconds = (
        np.maximum(sums, 0.0).reshape(shape) for sums in (returned, waiting, seconds)
    )
    return ReturnCounts(returned, waiting, seconds, requests)

"""Learn the table of `gittins` from a whole trace: classes of requests, and when each returns."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.learning.evidence import GuardEvidence
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.features import PrefixFeatures, Refits, chained, prefix_features
from kvscope.learning.offline.learners import OfflineLearner, end_of
from kvscope.learning.offline.shadow_replays import GuardedShadows
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import (
    BEGINS_S,
    GAPS_S,
    PARTS,
    ROWS,
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


class ReturnsOffline(OfflineLearner):
    """The classes of all requests, and each class's index by age.

    In each cache a guard chooses between three orders: LRU, these tables, and one by need alone: by
    the probability that a next turn needs a block, with the same index for all blocks.
    """

    def tables(self, traffic: Traffic, every: float = REFIT_REQUESTS.default) -> Tables:
        """Return the tables of all refits; a guard may replace them by LRU, or an order by need."""
        return guarded_shadows(traffic, class_tables(traffic, every)).tables()

    def fit(
        self, traffic: Traffic, policy: Policy, capacity_blocks: int | None = None
    ) -> FittedReturns:
        """Return the fit after the last request; with a capacity, also a guard's evidence there."""
        fitted = fit_at_end(traffic, policy.refit_every)
        if capacity_blocks is None:
            return fitted
        shadows = guarded_shadows(traffic, class_tables(traffic, policy.refit_every))
        return dataclasses.replace(fitted, evidence=shadows.evidence(policy, capacity_blocks))

    def plugin_tables(self, traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
        """Return the tables that the plugin's guard chooses from.

        A file's fit (`fitted`) stays in force; if `FittedReturns.refits`, the plugin replaces it by
        its own fits, as in a replay, after `FittedReturns.requests` requests.
        """
        own = class_tables(traffic, policy.refit_every)
        if not isinstance(fitted, FittedReturns):
            return guarded_shadows(traffic, own).tables()
        rows = own.rows.copy()
        early = own.since < fitted.requests if fitted.refits else slice(None)
        rows[early] = np.arange(len(own.values), len(own.values) + ROWS).repeat(LEVELS)
        values = np.concatenate((own.values, fitted.index))
        own = replace(own, rows=rows, values=values)
        return guarded_shadows(traffic, own, fitted.evidence).tables()


def guarded_shadows(
    traffic: Traffic, own: Tables, evidence: GuardEvidence | None = None
) -> GuardedShadows:
    """Return shadows of LRU, of an order by need alone, and of the policy's `own` tables.

    The first two have the same index for all blocks: 0, so that all are worth the same, and 1, so
    that a block is worth its need, the probability that a next turn needs it.
    """
    alike = np.repeat(np.array(WORTHS)[:, None], AGES, axis=1)
    return GuardedShadows(traffic, own, alike, lanes=LEVELS, evidence=evidence)


LEARNER = ReturnsOffline()


def refits_of(requests: int, refit_requests: float) -> Refits:
    """Return the refits, every `refit_requests` of a trace of `requests` requests and two early."""
    bins = np.arange(max(requests, 1)) // bin_requests(refit_requests)
    number = np.array([at for at in range(bins[-1] + 1) if begins_with_refit(at)])
    return Refits(bins, number, np.searchsorted(bins, number))


def class_tables(traffic: Traffic, refit_requests: float = REFIT_REQUESTS.default) -> Tables:
    """Return the tables of all refits: every `refit_requests` requests, and two early ones.

    A refit sees the touches by requests of the 36 bins before it (`WINDOW_BINS`), which are 9 times
    `refit_requests`. Blocks that none of so many requests touched are forgotten and count as new,
    as in an engine with this memory.
    """
    segments, refits = last_touch_segments(traffic), refits_of(len(traffic.leaf), refit_requests)
    classes, cuts = _sorted(traffic, segments, refit_requests)
    parts = touch_parts(traffic, segments, refits.bin, cuts)
    refits_s = traffic.arrival_s[refits.since] if len(traffic.leaf) else np.zeros(1)
    values, rows = fit_windows(
        parts.touches, parts.returns, refits.number, refits_s, parts.kinds(classes)
    )
    return Tables(refits.since, rows.repeat(LEVELS, axis=1), values, classes, cuts)


def fit_at_end(
    traffic: Traffic, refit_requests: float, end_s: float | None = None
) -> FittedReturns:
    """Return the fit to a whole window of requests that ends with the last one.

    Blocks not yet touched again wait until `end_s` (default: right after the last request).
    """
    end = np.array([end_of(traffic) if end_s is None else end_s])
    requests, of_a_bin = len(traffic.leaf), bin_requests(refit_requests)
    bins = (np.arange(requests) - requests) // of_a_bin  # the last one ends in front of bin 0
    segments = last_touch_segments(traffic)
    classes, cuts = _sorted(traffic, segments, refit_requests)
    parts = touch_parts(traffic, segments, bins, cuts)
    values, (rows,) = fit_windows(
        parts.touches, parts.returns, np.zeros(1, np.int64), end, parts.kinds(classes)
    )
    return FittedReturns(values[rows], min(requests, WINDOW_BINS * of_a_bin))


def _sorted(traffic: Traffic, segments: Segments, refit_requests: float) -> tuple[Int32s, Int32s]:
    """Return the class of each request, and the cuts of its path (R x PARTS - 1)."""
    prefixes = prefix_features(traffic, segments, WINDOW_BINS * bin_requests(refit_requests))
    return classes_of(request_features(traffic, prefixes)), path_cuts(prefixes)


def request_features(traffic: Traffic, prefixes: PrefixFeatures) -> RequestFeatures:
    """Return the features of each request, by its blocks that were touched before."""
    turns, _ = chained(prefixes.before(prefixes.whole))
    new_tokens = (prefixes.full - prefixes.known()) * traffic.block_size
    return RequestFeatures(new_tokens, turns)


def path_cuts(prefixes: PrefixFeatures) -> Int32s:
    """Return the depths that cut each path into five parts by how long blocks waited (R x 4).

    The parts waited for less than 4 s, less than 32 s, less than 256 s (`GAPS_S`), or longer; the
    last one is new. Deeper blocks have waited longer: a touch of a block touches all blocks before
    it.
    """
    cuts = np.zeros((len(prefixes.full), PARTS - 1), dtype=np.int32)
    known = np.flatnonzero(prefixes.recent)
    part = np.searchsorted(GAPS_S, prefixes.wait_s[known], side="right")
    np.maximum.at(cuts, (prefixes.request[known], part), prefixes.end[known])
    reached: Int32s = np.maximum.accumulate(cuts, axis=1)
    return reached


class Touches(NamedTuple):
    """N touches of `blocks` blocks each, ascending in time; `bin` is the touching request's."""

    arrival_s: Float64s
    bin: Int64s
    blocks: Int64s


class Returns(NamedTuple):
    """M returns, ascending in time, of `blocks` that were last touched by touch number `touch`."""

    touch: Int64s
    arrival_s: Float64s
    bin: Int64s
    blocks: Int64s


class TouchedParts(NamedTuple):
    """Touches of paths by part: N `touches`, one for each non-empty part of each request's path.

    `request` and `part` (N) are the request's number and the part's, both from 0; `returns` are
    those of the touched blocks.
    """

    touches: Touches
    returns: Returns
    request: Int64s
    part: Int64s

    def kinds(self, classes: Int32s) -> Int32s:
        """Return the class of each touch, from its part and its request's class."""
        kinds: Int32s = (self.part * (ROWS // PARTS) + classes[self.request]).astype(np.int32)
        return kinds


class IndexRows(NamedTuple):
    """The index of each class at K refits: `values[rows[k, c]]` of class c at refit k.

    `values` (rows x AGES) has, for each refit, a row for each class touched in its window, and one
    for each group of other classes with the same hazard. That is at most one row for each class,
    and at most three for each touch in the window, plus one.
    """

    values: Float64s
    rows: Int32s


def touch_parts(traffic: Traffic, segments: Segments, bins: Int64s, cuts: Int32s) -> TouchedParts:
    """Return touches and returns of the parts that `cuts` divide; `bins` (R): those of requests."""
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
    touches: Touches, returns: Returns, refits: Int64s, refits_s: Float64s, kinds: Int32s
) -> IndexRows:
    """Fit the index to the `WINDOW_BINS` bins before each of the bins `refits`, ascending.

    `refits_s` are the times of the refits, `kinds` the classes of touches. Time and memory grow
    with the touches and returns in windows, not with the time between them.
    """
    window = _window_ranges(touches.bin, returns.bin, refits)
    inside = window.touch_end - window.first_touch
    most = int(np.minimum(ROWS, len(STEPS) * inside + 1).sum())
    values = np.empty((most, AGES))  # where it is not written it takes no memory
    wait_s = returns.arrival_s - touches.arrival_s[returns.touch]
    waits = _Waits(returns.touch, ages_of(wait_s), wait_s, returns.blocks)
    still_waiting = np.empty(len(touches.blocks), dtype=np.int64)
    returned, waiting, seconds = np.empty((3, ROWS, AGES))
    counts = ReturnCounts(returned, waiting, seconds, 0.0)
    rows = np.empty((len(refits), ROWS), dtype=np.int32)
    used = _fill_rows(
        touches, kinds, waits, window, refits_s, counts, still_waiting, fit_memory(), values, rows
    )
    values.resize((used, AGES), refcheck=False)  # in place
    return IndexRows(values, by_class(rows))


class _WindowRanges(NamedTuple):
    """The touches in K refits' windows, `first_touch` to `touch_end` - 1; returns likewise."""

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
    """`Returns` with the wait since the previous touch, in seconds and as an age."""

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
    rows: Int32s,
) -> int:
    """Fill `values` and `rows`, refit by refit; return the number of rows of `values` used."""
    used = 0
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
    """Fill `counts` for the window before one refit, at `refit_s`.

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

"""Inputs of a fit: windows of the past between refits, and the shared prefixes of prompts."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.replay.last_touch import Segments
from kvscope.replay.traffic import Traffic


class Refits(NamedTuple):
    """Refits of a table, and the bins of requests that make up the windows that they are fitted to.

    A bin is a span of time or a count of requests; request r is in bin `bin[r]`. Refit k is at the
    beginning of bin `number[k]`, its table holds from request `since[k]` on; the first has no data.
    """

    bin: Int64s
    number: Int64s
    since: Int64s


def refits_by_time(traffic: Traffic, refit_s: float) -> Refits:
    """Return a refit for each bin of `refit_s` seconds in which requests arrive."""
    bins = (traffic.arrival_s // refit_s).astype(np.int64)
    if not len(bins):
        bins = np.zeros(1, dtype=np.int64)
    number, since = np.unique(bins, return_index=True)
    return Refits(bins, number, since.astype(np.int64))


def categories_of(traffic: Traffic) -> int:
    """Return the number of categories."""
    return int(traffic.category.max(initial=0)) + 1


class Cells(NamedTuple):
    """The cells in which some requests are counted; `inside` marks requests that are in a cell.

    `at` has one entry for each marked request only: the number of its cell, below `size`.
    """

    at: Int64s
    inside: Bools
    size: int

    def sums(self, values: Float64s) -> Float64s:
        """Return the sums of `values` (one a request, marked or not) in each of `size` cells."""
        sums = np.bincount(self.at, values[self.inside], minlength=self.size)
        return sums.astype(np.float64, copy=False)


class WindowCells(NamedTuple):
    """The cells in which refits count the requests of their windows: one a refit, class and slot.

    `class_of` has each request's class, below `classes`; slots divide the time since its arrival.
    """

    refits: Refits
    class_of: Int32s
    classes: int

    def size(self, slots: int = 1) -> int:
        """Return the number of cells, with this number of slots."""
        return len(self.refits.number) * self.classes * slots

    def cells(self, requests: Int64s, ahead: int, slot: Int64s | int = 0, slots: int = 1) -> Cells:
        """Return the cells that count `requests` in the refit `ahead` bins after their own bins.

        A request is in no cell if there is no refit at the beginning of that bin. `slot` has the
        slot of each request, below `slots`, or is the slot of all.
        """
        number = self.refits.bin[requests] + ahead
        refits = self.refits.number
        row = np.minimum(np.searchsorted(refits, number), len(refits) - 1)
        inside = refits[row] == number
        own = slot if isinstance(slot, int) else slot[inside]
        at = (row[inside] * self.classes + self.class_of[requests[inside]]) * slots + own
        return Cells(at, inside, self.size(slots))


_Numbers = TypeVar("_Numbers", Int64s, Float64s)


class PrefixFeatures(NamedTuple):
    """The prefixes of R prompts that earlier requests touched, as K last-touch segments.

    A segment is the successive blocks of a path that one earlier request touched last: request
    `previous`, `wait_s` (s) before `request` came. It ends before depth `end`: its own end, or that
    of the prompt's `full` (R) full blocks if it extends into the output. Flags, False for segments
    in the output alone: `whole` if the path up to `end` contains the previous request's whole
    prompt, `recent` if that is one of the latest `memory` requests (an argument of
    `prefix_features`). `deepest` has the number (0 to K - 1) of the last recent segment of each
    request that has one.
    """

    full: Int64s
    previous: Int64s
    request: Int64s
    end: Int64s
    wait_s: Float64s
    whole: Bools
    recent: Bools
    deepest: Int64s

    def of_deepest(self, values: _Numbers, none: float) -> _Numbers:
        """Return each request's entry of `values` (K), at its deepest recent segment, or `none`."""
        per_request = np.full(len(self.full), none, dtype=values.dtype)
        per_request[self.request[self.deepest]] = values[self.deepest]
        return per_request

    def known(self) -> Int64s:
        """Return the number of leading full blocks of each prompt that recent requests touched."""
        return self.of_deepest(self.end, 0)

    def before(self, goes_on: Bools) -> Int64s:
        """Return the previous turn of each request, -1 for none.

        It is the previous request of the deepest recent segment, if `goes_on` (K flags, such as
        `whole`) is True for that segment.
        """
        return self.of_deepest(np.where(goes_on, self.previous, -1), -1)


def prefix_features(traffic: Traffic, segments: Segments, memory: int) -> PrefixFeatures:
    """Return the prefixes that earlier requests touched, as segments.

    `recent` marks those that one of the latest `memory` requests touched last; older ones are kept.
    """
    previous, request = segments.previous.astype(np.int64), segments.request.astype(np.int64)
    wait_s = traffic.arrival_s[request] - traffic.arrival_s[previous]
    full = traffic.input_tokens.astype(np.int64) // traffic.block_size
    end = np.minimum(segments.end, full[request])
    in_prompt = segments.start < full[request]
    whole = in_prompt & (end >= np.minimum(full, traffic.length)[previous])
    recent = in_prompt & (request - previous <= memory)
    some = np.flatnonzero(recent)
    deepest = some[np.append(np.diff(request[some]) > 0, True)] if len(some) else some
    return PrefixFeatures(full, previous, request, end, wait_s, whole, recent, deepest)


def chained(before: Int64s) -> tuple[Int64s, Int64s]:
    """Return each request's (number of previous turns, first turn); `before`: its last or -1."""
    at = np.arange(len(before))
    first = np.where(before >= 0, before, at)
    steps = (before >= 0).astype(np.int64)
    while not np.array_equal(first, further := first[first]):
        steps += steps[first]
        first = further
    return steps, first

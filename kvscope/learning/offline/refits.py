"""Refits of a policy's table: when they happen, and which part of the past each one sees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.policies.base import Floats
from kvscope.replay.traffic import Traffic


class Refits(NamedTuple):
    """When tables are refitted, and the bins of time or of requests that they count in.

    Request r is in bin `bin[r]`. A refit at the beginning of bin `number[k]` holds from request
    `since[k]` on; the first one knows nothing.
    """

    bin: Int64s
    number: Int64s
    since: Int64s


def refits_by_time(traffic: Traffic, refit_s: float) -> Refits:
    """Return refits every `refit_s`, a bin each, as far as they hold for some request."""
    bins = (traffic.arrival_s // refit_s).astype(np.int64)
    if not len(bins):
        bins = np.zeros(1, dtype=np.int64)
    number, since = np.unique(bins, return_index=True)
    return Refits(bins, number, since.astype(np.int64))


def categories_of(traffic: Traffic) -> int:
    """Return the number of categories."""
    return int(traffic.category.max(initial=0)) + 1


class Cells(NamedTuple):
    """The cells that some requests count in, where they are `inside` a window that holds."""

    at: Int64s
    inside: Bools
    size: int

    def sums(self, values: Floats) -> Floats:
        """Return the sum of the requests' `values` in each of `size` cells."""
        sums = np.bincount(self.at, values[self.inside], minlength=self.size)
        return sums.astype(np.float64, copy=False)


class WindowCells(NamedTuple):
    """Cells of the refits' windows: by refit, class of the request, and slot.

    `class_of` has the class of each request, of so many `classes`.
    """

    refits: Refits
    class_of: Int32s
    classes: int

    def size(self, slots: int = 1) -> int:
        """Return the number of cells."""
        return len(self.refits.number) * self.classes * slots

    def cells(self, requests: Int64s, ahead: int, slot: Int64s | int = 0, slots: int = 1) -> Cells:
        """Return the cells of `requests`, with these slots, when they are `ahead` refits old."""
        number = self.refits.bin[requests] + ahead
        refits = self.refits.number
        row = np.minimum(np.searchsorted(refits, number), len(refits) - 1)
        inside = refits[row] == number
        own = slot if isinstance(slot, int) else slot[inside]
        at = (row[inside] * self.classes + self.class_of[requests[inside]]) * slots + own
        return Cells(at, inside, self.size(slots))

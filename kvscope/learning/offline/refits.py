"""Sliding windows over the traffic: what each refit of a policy's table sees of the past."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.learning.reuse.formulas import SLOTS, WINDOW_REFITS, Sums, slots_of
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Refits(NamedTuple):
    """When tables are fitted anew: every so often, if requests arrive before the next time.

    `bin` is the number of the latest refit before each request; refit `number[k]` holds from
    request `since[k]` on.
    """

    bin: Ints
    number: Ints
    since: Ints

    def row(self, number: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Which of them are refits that hold for somebody, and their place among those."""
        at = np.minimum(np.searchsorted(self.number, number), len(self.number) - 1)
        return at, self.number[at] == number


def refits_of(traffic: Traffic, refit_s: float) -> Refits:
    """The refits that hold for some request."""
    bins = (traffic.arrival_s // refit_s).astype(np.int64)
    if not len(bins):
        bins = np.zeros(1, dtype=np.int64)
    number, since = np.unique(bins, return_index=True)
    return Refits(bins, number, since.astype(np.int64))


def categories_of(traffic: Traffic) -> int:
    """How many categories there are."""
    return int(traffic.category.max(initial=0)) + 1


class Seen(NamedTuple):
    """What each refit sees of each category: waits of the blocks touched, and those not new."""

    waits: Sums
    taken: Floats


def seen_by(traffic: Traffic, refits: Refits, refit_s: float) -> Seen:
    """Every refit's window; a touch is within those of the next `WINDOW_REFITS` refits.

    Blocks that were not touched for so long are forgotten: when they come again they are new.
    """
    moved = last_touch_segments(traffic)
    giver, taker = moved.previous.astype(np.int64), moved.request.astype(np.int64)
    blocks = (moved.end - moved.start).astype(np.float64)
    gap_s = traffic.arrival_s[taker] - traffic.arrival_s[giver]
    held = (traffic.length + traffic.anonymous).astype(np.float64)
    requests = np.arange(len(held))
    known = gap_s <= WINDOW_REFITS * refit_s
    sums = _Sums((len(refits.number), categories_of(traffic)))
    for ahead in range(1, WINDOW_REFITS + 1):
        window = _Window(traffic, refits, refit_s, ahead)
        sums.wait(window, requests, held)
        in_time = refits.bin[taker] < refits.bin[giver] + ahead
        sums.wait(window, giver[in_time], -blocks[in_time])
        sums.reuse(window, giver[in_time], blocks[in_time], gap_s[in_time])
        sums.take(window, taker[known], blocks[known])
    return sums.seen()


class _Window(NamedTuple):
    """The windows that see a touch when it is `ahead` refits old."""

    traffic: Traffic
    refits: Refits
    refit_s: float
    ahead: int

    def cells(self, who: Ints) -> tuple[Ints, NDArray[np.bool_], Floats]:
        """Of touches by requests `who`: refit and category in one, if any, and age at the refit."""
        number = self.refits.bin[who] + self.ahead
        row, some = self.refits.row(number)
        category = self.traffic.category[who]
        age_s = np.maximum(number * self.refit_s - self.traffic.arrival_s[who], 0.0)
        return row * categories_of(self.traffic) + category, some, age_s


class _Sums:
    """Sums by refit and category, and of waiting blocks also by the slot of their age."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._cells = shape[0] * shape[1]
        self._reused, self._waited_s, self._taken = np.zeros((3, self._cells))
        self._waiting, self._since_s = np.zeros((2, self._cells * SLOTS))

    def wait(self, window: _Window, who: Ints, blocks: Floats) -> None:
        """Blocks that wait since requests `who` touched them; fewer than 0 do so no longer."""
        cell, some, age_s = window.cells(who)
        longest = WINDOW_REFITS * window.refit_s
        slot = slots_of(age_s, longest)
        at, many, size = (cell * SLOTS + slot)[some], blocks[some], len(self._waiting)
        self._waiting += np.bincount(at, many, minlength=size)
        self._since_s += np.bincount(at, many * age_s[some], minlength=size)

    def reuse(self, window: _Window, who: Ints, blocks: Floats, gap_s: Floats) -> None:
        """Blocks that `who` touched and that were touched again after `gap_s`."""
        cell, some, _ = window.cells(who)
        at, many = cell[some], blocks[some]
        self._reused += np.bincount(at, many, minlength=self._cells)
        self._waited_s += np.bincount(at, many * gap_s[some], minlength=self._cells)

    def take(self, window: _Window, who: Ints, blocks: Floats) -> None:
        """Blocks that `who` touched and that had been there before."""
        cell, some, _ = window.cells(who)
        self._taken += np.bincount(cell[some], blocks[some], minlength=self._cells)

    def seen(self) -> Seen:
        """All of it, by refit and category."""
        waiting = np.maximum(self._waiting, 0.0)
        since_s = np.maximum(self._since_s, 0.0) / np.where(waiting > 0, waiting, 1.0)
        slots = (*self._shape, SLOTS)
        waits = Sums(
            self._reused.reshape(self._shape),
            self._waited_s.reshape(self._shape),
            waiting.reshape(slots),
            since_s.reshape(slots),
        )
        return Seen(waits, self._taken.reshape(self._shape))

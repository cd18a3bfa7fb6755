"""How soon what requests touched returns, learned from the requests that an engine serves.

The counts are those that `learning.returns.offline.waits_seen` takes from a trace, gathered as
requests come; the formulas are the same code.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right

import numpy as np

from kvscope.learning.online.recent_blocks import MOST_REQUESTS, Stretches
from kvscope.learning.returns.formulas import Waits, began_s, return_values
from kvscope.policies.base import Floats
from kvscope.policies.gittins import AGES, STEPS, WINDOW_REFITS, ages_of

RETURNED, SECONDS = 0, 1
_SERVED = -1  # in place of a class: it is not known before the request has been served
_BEGAN_S = began_s(np.arange(AGES)).tolist()


class ReturnEstimator:
    """The table of `Gittins` for one class set, fitted every `refit_s` to the window before.

    Requests have numbers, ascending by one; of more than `most_requests` within a window only so
    many are looked at.
    """

    def __init__(self, refit_s: float, class_set: int, most_requests: int = MOST_REQUESTS) -> None:
        self.refit_s, self._steps, self._slots = refit_s, STEPS[class_set], most_requests
        self._classes = math.prod(self._steps)
        self._bins: dict[int, Floats] = {}
        self._bin = self._next = 0
        self._arrival_s = array("d", bytes(8 * most_requests))
        self._waiting = array("d", bytes(8 * most_requests))  # blocks that nobody touched since
        self._kind = array("i", bytes(4 * most_requests))
        self._early: dict[int, list[tuple[float, float]]] = {}  # returns to those being served
        self.table = self._fitted()
        self.requests = 0  # that the table was fitted to

    @property
    def window_s(self) -> float:
        """How much of the past a fit looks at."""
        return WINDOW_REFITS * self.refit_s

    def at(self, now_s: float) -> bool:
        """It is now so late; whether the table has changed."""
        number = int(now_s // self.refit_s)
        if number <= self._bin:
            return False
        self._bin = number
        self.table = self._fitted()
        return True

    def arrive(
        self, number: int, arrival_s: float, blocks: float, stretches: Stretches, every: int
    ) -> None:
        """A request touches so many blocks; `stretches` as in `Seen`, each stands for `every`."""
        at = number % self._slots
        self._arrival_s[at], self._waiting[at], self._kind[at] = arrival_s, blocks, _SERVED
        self._next = number + 1
        self._hand_over(arrival_s, stretches, every)

    def end(self, number: int, kind: int, blocks: float, stretches: Stretches, every: int) -> None:
        """A request has been served: it is of class `kind`, and has touched so many blocks more."""
        early = self._early.pop(number, ())
        if number <= self._next - self._slots:
            return
        at = number % self._slots
        self._waiting[at] += blocks
        self._kind[at] = kind
        for wait_s, count in early:
            self._return(self._arrival_s[at], kind, wait_s, count)
        self._hand_over(self._arrival_s[at], stretches, every)

    def forget(self, number: int) -> None:
        """A request will not be served to its end."""
        self._early.pop(number, None)

    def _hand_over(self, arrival_s: float, stretches: Stretches, every: int) -> None:
        for giver, blocks in stretches:
            at = giver % self._slots
            if giver <= self._next - self._slots:
                continue
            count, since_s = float(blocks * every), self._arrival_s[at]
            wait_s = max(arrival_s - since_s, 0.0)
            self._waiting[at] -= count
            if self._kind[at] == _SERVED:
                self._early.setdefault(giver, []).append((wait_s, count))
            else:
                self._return(since_s, self._kind[at], wait_s, count)

    def _return(self, since_s: float, kind: int, wait_s: float, count: float) -> None:
        number = int(since_s // self.refit_s)
        if number < self._bin - WINDOW_REFITS:
            return
        of = self._bins.get(number)
        if of is None:
            of = self._bins[number] = np.zeros((2, self._classes, AGES))
        age = bisect_right(_BEGAN_S, wait_s) - 1
        of[RETURNED, kind, age] += count
        of[SECONDS, kind, age] += count * (wait_s - _BEGAN_S[age])

    def _fitted(self) -> Floats:
        """The table by what the window before the present bin has seen."""
        since = self._bin - WINDOW_REFITS
        for number in [one for one in self._bins if one < since]:
            del self._bins[number]
        returned, seconds = sum(self._bins.values(), np.zeros((2, self._classes, AGES)))
        waiting, more, requests = self._wait(since)
        self.requests = requests
        waits = Waits(returned, waiting, seconds + more, np.array(float(requests)))
        return return_values(waits, self._steps)

    def _wait(self, since: int) -> tuple[Floats, Floats, int]:
        """By class and age what waits now, its seconds there, and how many requests are seen."""
        known = min(self._next, self._slots)
        arrival_s = np.frombuffer(self._arrival_s, dtype=np.float64, count=known)
        kind = np.frombuffer(self._kind, dtype=np.int32, count=known)
        bins = arrival_s // self.refit_s
        inside = (kind != _SERVED) & (bins >= since) & (bins < self._bin)
        age_s = np.maximum(self._bin * self.refit_s - arrival_s[inside], 0.0)
        blocks = np.maximum(np.frombuffer(self._waiting, count=known)[inside], 0.0)
        ages, shape = ages_of(age_s), (self._classes, AGES)
        cell, cells = kind[inside] * AGES + ages, self._classes * AGES
        spent = blocks * (age_s - began_s(ages))
        found: list[Floats] = [
            np.bincount(cell, each, minlength=cells).reshape(shape).astype(np.float64)
            for each in (blocks, spent)
        ]
        return found[0], found[1], int(inside.sum())

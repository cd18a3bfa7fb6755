"""What a trace tells `Gittins`: the class of every request, and how soon each class returns."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvscope.learning.offline.prefix_features import beginnings, chained
from kvscope.learning.offline.refits import Refits, refits_of
from kvscope.learning.offline.shadow_caches import Candidate, Shadows
from kvscope.learning.returns.formulas import Waits, began_s, return_values
from kvscope.policies.gittins import (
    AGES,
    REFIT_OFTEN,
    STEPS,
    WINDOW_REFITS,
    Features,
    ages_of,
    classes,
)
from kvscope.replay.last_touch import Segments, last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def return_tables(traffic: Traffic, refit_s: float = REFIT_OFTEN.default) -> Tables:
    """The classes of all requests, and each class's index by age as every refit sees it.

    Each cache goes by the class set that did best for it, or by none of them: `Shadows`.
    """
    return Shadows(traffic, refit_s, learned(traffic, refit_s)).tables()


def learned(traffic: Traffic, refit_s: float = REFIT_OFTEN.default) -> tuple[Candidate, ...]:
    """What refits learn, by each class set.

    A refit sees the blocks touched within `WINDOW_REFITS` times `refit_s` before it. Blocks that
    were not touched for as long are forgotten: they count as new, as they would to an engine that
    remembers no more.
    """
    moved = last_touch_segments(traffic)
    refits = refits_of(traffic, refit_s)
    told = classes(features_of(traffic, moved, WINDOW_REFITS * refit_s))
    found = []
    for steps, of in zip(STEPS, told, strict=True):
        waits = waits_seen(traffic, moved, refits, refit_s, of, math.prod(steps))
        found.append(Candidate(refits.since, return_values(waits, steps), of))
    return tuple(found)


def features_of(traffic: Traffic, moved: Segments, memory_s: float) -> Features:
    """What is known of each request, by which of its blocks were touched within `memory_s`."""
    found = beginnings(traffic, moved, memory_s)
    turns, _ = chained(found.before(found.whole))
    new_tokens = (found.full - found.known()) * traffic.block_size
    output_tokens = traffic.history_tokens - traffic.input_tokens
    return Features(new_tokens, turns, found.of_deepest(found.wait_s, 0.0), output_tokens)


def waits_seen(
    traffic: Traffic,
    moved: Segments,
    refits: Refits,
    refit_s: float,
    of: NDArray[np.int32],
    classes: int,
) -> Waits:
    """Every refit's window; a touch is within those of the next `WINDOW_REFITS` refits.

    `of` is the class of each request, of so many.
    """
    giver, taker = moved.previous.astype(np.int64), moved.request.astype(np.int64)
    blocks = (moved.end - moved.start).astype(np.float64)
    gap_s = traffic.arrival_s[taker] - traffic.arrival_s[giver]
    held = (traffic.length + traffic.anonymous).astype(np.float64)
    everybody = np.arange(len(held))
    counts = _Counts(refits, of, classes)
    for ahead in range(1, WINDOW_REFITS + 1):
        age_s = np.maximum((refits.bin + ahead) * refit_s - traffic.arrival_s, 0.0)
        counts.ask(everybody, ahead)
        counts.wait(everybody, ahead, age_s, held)
        in_time = refits.bin[taker] < refits.bin[giver] + ahead
        who, many = giver[in_time], blocks[in_time]
        counts.wait(who, ahead, age_s[who], -many)
        counts.come_back(who, ahead, gap_s[in_time], many)
    return counts.seen()


class _Counts:
    """Sums by refit, class and age."""

    def __init__(self, refits: Refits, of: NDArray[np.int32], classes: int) -> None:
        self._refits, self._of = refits, of
        self._shape = (len(refits.number), classes, AGES)
        self._requests = np.zeros(len(refits.number))
        self._returned, self._waiting, self._seconds = np.zeros((3, int(np.prod(self._shape))))

    def ask(self, who: Ints, ahead: int) -> None:
        """Requests that are in the window of the refit that many ahead."""
        row, some = self._refits.row(self._refits.bin[who] + ahead)
        at = row[some]
        self._requests += np.bincount(at, np.ones(len(at)), minlength=len(self._requests))

    def wait(self, who: Ints, ahead: int, age_s: Floats, blocks: Floats) -> None:
        """Blocks that wait for `age_s` since requests `who`; fewer than 0 do so no longer."""
        self._waiting += self._cells(who, ahead, age_s, blocks)

    def come_back(self, who: Ints, ahead: int, gap_s: Floats, blocks: Floats) -> None:
        """Blocks that `who` touched and that were touched again after `gap_s`."""
        self._returned += self._cells(who, ahead, gap_s, blocks)

    def _cells(self, who: Ints, ahead: int, wait_s: Floats, blocks: Floats) -> Floats:
        """Blocks by cell; their time in it is added up here."""
        row, some = self._refits.row(self._refits.bin[who] + ahead)
        age, cells = ages_of(wait_s), len(self._seconds)
        at = ((row * self._shape[1] + self._of[who]) * AGES + age)[some]
        spent = (blocks * (wait_s - began_s(age)))[some]
        self._seconds += np.bincount(at, spent, minlength=cells)
        return np.bincount(at, blocks[some], minlength=cells).astype(np.float64)

    def seen(self) -> Waits:
        """All of it."""
        returned, waiting, seconds = (
            np.maximum(one, 0.0).reshape(self._shape)
            for one in (self._returned, self._waiting, self._seconds)
        )
        return Waits(returned, waiting, seconds, self._requests)

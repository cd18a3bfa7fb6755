"""Learn the table of `wa` from a whole trace, with refits along the way."""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.learning.offline.features import Refits, WindowCells, categories_of, refits_by_time
from kvscope.learning.offline.learners import OfflineLearner
from kvscope.learning.offline.shadow_replays import GuardedShadows
from kvscope.learning.reuse.formulas import SLOTS, WINDOW_REFITS, ReuseCounts, reuse_table, slots_of
from kvscope.policies.base import REFIT_S
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic


class ReuseOffline(OfflineLearner):
    """Reuse probability, rate and lifetime of each category."""

    def tables(self, traffic: Traffic, every: float = REFIT_S) -> Tables:
        """Return the table of each refit."""
        refits = refits_by_time(traffic, every)
        table = reuse_table(*count_reuse(traffic, refits, every))
        return GuardedShadows(
            traffic, Tables.of(refits.since, table), np.zeros((1, table.shape[-1]))
        ).tables()


def count_reuse(traffic: Traffic, refits: Refits, refit_s: float) -> tuple[ReuseCounts, Float64s]:
    """Return the counts of every refit's window, and the blocks touched again in it.

    Axes are (refits, categories), and for `waiting` and `since_s` slots (`slots_of`). A touch is in
    the windows of the next six refits. Blocks not touched for six periods of `refit_s` seconds are
    forgotten and count as new when they come again.
    """
    segments = last_touch_segments(traffic)
    previous, request = segments.previous.astype(np.int64), segments.request.astype(np.int64)
    blocks = (segments.end - segments.start).astype(np.float64)
    gap_s = traffic.arrival_s[request] - traffic.arrival_s[previous]
    touched = (traffic.length + traffic.anonymous).astype(np.float64)
    longest_s = WINDOW_REFITS * refit_s
    known = gap_s <= longest_s
    window = WindowCells(refits, traffic.category, categories_of(traffic))
    reused, waited_s, again = np.zeros((3, window.size()))
    waiting, since_s = np.zeros((2, window.size(SLOTS)))
    for ahead in range(1, WINDOW_REFITS + 1):
        in_time = refits.bin[request] < refits.bin[previous] + ahead
        reused_by, count, wait_s = previous[in_time], blocks[in_time], gap_s[in_time]
        for requests, more in ((np.arange(len(touched)), touched), (reused_by, -count)):
            refit_time_s = (refits.bin[requests] + ahead) * refit_s
            age_s = np.maximum(refit_time_s - traffic.arrival_s[requests], 0.0)
            cells = window.cells(requests, ahead, slots_of(age_s, longest_s), SLOTS)
            waiting += cells.sums(more)
            since_s += cells.sums(more * age_s)
        cells = window.cells(reused_by, ahead)
        reused += cells.sums(count)
        waited_s += cells.sums(count * wait_s)
        again += window.cells(request[known], ahead).sums(blocks[known])
    waiting = np.maximum(waiting, 0.0)
    since_s = np.maximum(since_s, 0.0) / np.where(waiting > 0, waiting, 1.0)
    shape = len(refits.number), window.classes
    counts = ReuseCounts(
        reused.reshape(shape),
        waited_s.reshape(shape),
        waiting.reshape(*shape, SLOTS),
        since_s.reshape(*shape, SLOTS),
    )
    return counts, again.reshape(shape)


LEARNER = ReuseOffline()

"""Decide by shadow replays of a trace when a policy's own order is in force, and when LRU."""

from __future__ import annotations

import numpy as np

from kvscope.learning.offline.learners import OfflineLearner
from kvscope.learning.offline.shadow_replays import GuardedShadows
from kvscope.policies.base import LRU_ORDER, OWN_ORDER
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic


class RevertingOffline(OfflineLearner):
    """A table of one cell: the policy's own order, or LRU where a guard chooses it."""

    def tables(self, traffic: Traffic, every: float) -> Tables:
        """Return the tables, which depend on policy and capacity (`Tables.choose`)."""
        own = Tables.of(
            np.zeros(1, dtype=np.int64),
            np.full((1, 1, 1), OWN_ORDER),
            classes=np.zeros(len(traffic.leaf), dtype=np.int32),
        )
        return GuardedShadows(traffic, own, np.array([[LRU_ORDER]])).tables()


LEARNER = RevertingOffline()

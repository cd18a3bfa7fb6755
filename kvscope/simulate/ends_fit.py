"""One fit of `TLruLearned` to the end of a trace, to be taken elsewhere, and replays by one."""

from __future__ import annotations

import numpy as np

from kvscope.policies.boosting import chances
from kvscope.policies.fitted_ends import NOBODY, FittedEnds
from kvscope.policies.tlru_learned import TLruLearned
from kvscope.simulate.ends import THRESHOLDS, Ends, taken_to_end
from kvscope.simulate.handovers import handovers
from kvscope.simulate.replay import Tables
from kvscope.simulate.traffic import Traffic
from kvscope.simulate.turn_features import turn_features

CAUTIOUS = 0.1  # the fixed threshold that cost nothing anywhere: docs/tlru-learned.md


def ends_fit(
    traffic: Traffic, policy: TLruLearned, capacity_blocks: int | None = None
) -> FittedEnds:
    """What a refit right behind the last request finds, and which chance is too low.

    That is the threshold that the shadow caches have in force at the end of a replay with
    `capacity_blocks`, which may be 0 (plain T-LRU); where no capacity is given, `CAUTIOUS`. Of too
    few requests nothing is learned: then there are no trees, and nobody is taken to end.
    """
    horizon_s = policy.values["horizon_s"]
    ends = Ends(traffic, policy.values["refit_s"])
    end_s = float(np.nextafter(traffic.arrival_s[-1], np.inf)) if len(traffic.leaf) else 0.0
    found = ends.fitted_at(end_s, horizon_s)
    if found is None:
        return FittedEnds(NOBODY, 0.0, horizon_s, ends.window_s, 0)
    threshold = CAUTIOUS
    if capacity_blocks is not None:
        judge = ends.judge(horizon_s)
        threshold = THRESHOLDS[int(judge.taken(judge.costs(policy, capacity_blocks))[-1])]
    return FittedEnds(found.trees, threshold, horizon_s, ends.window_s, found.requests)


def fixed_ends(traffic: Traffic, fitted: FittedEnds) -> Tables:
    """The tables of a replay that goes by one fit for good; no shadow looks after it."""
    found = turn_features(traffic, handovers(traffic), fitted.window_s)
    return Tables(*taken_to_end(chances(fitted.trees, found.known) < fitted.threshold))

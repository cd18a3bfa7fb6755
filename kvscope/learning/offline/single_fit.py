"""One fit to the end of a trace, to be taken elsewhere, and replays that go by one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvscope.learning.ends.file import FittedEnds
from kvscope.learning.ends.offline import ends_fit, fixed_ends
from kvscope.learning.fitted import Fit
from kvscope.learning.guard import FIRST, NEED
from kvscope.learning.offline.estimates import tables_for
from kvscope.learning.offline.refits import Refits, refits_of
from kvscope.learning.offline.shadow_caches import Candidate, Shadows
from kvscope.learning.returns.file import Fitted
from kvscope.learning.returns.formulas import return_values
from kvscope.learning.returns.offline import features_of, learned, waits_seen
from kvscope.policies.base import REFIT, REFIT_S, Policy
from kvscope.policies.gittins import AGES, STEPS, WINDOW_REFITS, Gittins, classes
from kvscope.policies.tlru_learned import TLruLearned
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic


def fit_for(traffic: Traffic, policy: Policy, capacity_blocks: int | None = None) -> Fit | None:
    """What a file for an engine has beside the policy, by the trace's end; None where nothing."""
    if isinstance(policy, Gittins):
        return one_fit(traffic, policy, capacity_blocks)
    return ends_fit(traffic, policy, capacity_blocks) if isinstance(policy, TLruLearned) else None


def one_fit(traffic: Traffic, policy: Gittins, capacity_blocks: int | None = None) -> Fitted:
    """What a refit right behind the last request finds, by the classes that serve best.

    Those are the ones that the policy goes by at the end of a replay with `capacity_blocks`, which
    may also be none (LRU, or need alone: indices that are all alike); where no capacity is given,
    the first class set, with which the policy begins.
    """
    refit_s = policy.values["refit_s"]
    taken = FIRST
    if capacity_blocks is not None:
        shadows = Shadows(traffic, refit_s, learned(traffic, refit_s))
        taken = int(shadows.taken(shadows.costs(policy, capacity_blocks))[-1])
    found = fit_at_end(traffic, refit_s, max(taken - FIRST, 0))
    if taken >= FIRST:
        return found
    alike = np.full((len(found.index), AGES), 1.0 if taken == NEED else 0.0)
    return Fitted(found.class_set, alike, found.window_s, found.requests)


def fit_at_end(
    traffic: Traffic, refit_s: float, class_set: int, end_s: float | None = None
) -> Fitted:
    """The fit of one class set to the window before `end_s`, or before all has been seen."""
    if end_s is None:
        end_s = float(np.nextafter(traffic.arrival_s[-1], np.inf)) if len(traffic.leaf) else 0.0
    ends = math.ceil(end_s / refit_s)  # as late as a refit is: intervals are all that counts
    traffic = traffic._replace(arrival_s=traffic.arrival_s + (ends * refit_s - end_s))
    bins = np.minimum((traffic.arrival_s // refit_s).astype(np.int64), ends - 1)
    at_end = Refits(bins, np.array([ends]), np.array([len(bins)]))
    of, steps = _classes(traffic, refit_s, class_set), STEPS[class_set]
    seen = waits_seen(traffic, last_touch_segments(traffic), at_end, refit_s, of, math.prod(steps))
    index = return_values(seen, steps)[0, ::2]
    return Fitted(class_set, index, WINDOW_REFITS * refit_s, int(seen.requests[0]))


def plugin_tables(traffic: Traffic, policy: Policy, fitted: Fit | None) -> Tables:
    """The tables that kvscope's plugin goes by in an engine; for `gittins` its guard chooses.

    What a file has `fitted` stays; or it is fitted anew as in a replay, from the time on that
    `Fitted.refits` says. The file's class set is the first candidate; where nothing is fitted anew
    it is the only one beside LRU and need alone.
    """
    refit_s = policy.values.get(REFIT.name, REFIT_S)
    if isinstance(fitted, FittedEnds):
        return fixed_ends(traffic, fitted)
    if not isinstance(policy, Gittins):
        return tables_for(traffic, type(policy), refit_s)
    if fitted is not None and not fitted.refits:
        since = refits_of(traffic, refit_s).since
        values = np.repeat(fitted.values[None], len(since), axis=0)
        only = Candidate(since, values, _classes(traffic, refit_s, fitted.class_set))
        return Shadows(traffic, refit_s, [only]).tables()
    candidates = list(learned(traffic, refit_s))
    if fitted is not None:
        first = candidates.pop(fitted.class_set)
        if len(traffic.leaf):
            early = traffic.arrival_s[first.since] < fitted.window_s
            values = np.where(early[:, None, None], fitted.values, first.values)
            first = first._replace(values=values)
        candidates.insert(0, first)
    return Shadows(traffic, refit_s, candidates).tables()


def _classes(traffic: Traffic, refit_s: float, class_set: int) -> NDArray[np.int32]:
    known = features_of(traffic, last_touch_segments(traffic), WINDOW_REFITS * refit_s)
    return classes(known)[class_set]

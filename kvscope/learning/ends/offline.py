"""One fit of `TLruLearned` to the end of a trace, to be taken elsewhere, and replays by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.learning.chances import Trees
from kvscope.learning.ends.boosting import boosted, chances
from kvscope.learning.ends.features import TurnFeatures, turn_features
from kvscope.learning.ends.file import NOBODY, FittedEnds
from kvscope.learning.guard import LEARNED_ENDS
from kvscope.learning.offline.refits import refits_of
from kvscope.learning.offline.shadow_caches import Candidate, Shadows
from kvscope.policies.base import Policy
from kvscope.policies.gittins import REFIT_OFTEN, WINDOW_REFITS
from kvscope.policies.tlru_learned import ENDS_SOON, GOES_ON, TLruLearned
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic

THRESHOLDS = (0.0, 0.05, 0.1, 0.2, 0.3)  # the first: no conversation is taken to end
MOST_REQUESTS = 4096  # that a fit looks at, the latest ones
FEWEST_REQUESTS = 50
_NEWS = 0.05  # of what a fit looks at: with fewer new requests the fit before stays

Floats = NDArray[np.float64]


class Fitted(NamedTuple):
    """Trees learned at a refit, and from how many requests."""

    trees: Trees
    requests: int


class Predicted(NamedTuple):
    """The chance that each of R requests is continued, NaN before the first fit.

    `fits` are in force one after the other, each from request `since[k]` on; None: too few
    requests to learn from.
    """

    chance: Floats
    since: NDArray[np.int64]
    fits: tuple[Fitted | None, ...]


class Ends:
    """What refits learn of the ends of conversations in one traffic."""

    def __init__(self, traffic: Traffic, refit_s: float = REFIT_OFTEN.default) -> None:
        self.traffic, self.refit_s = traffic, refit_s
        self.window_s = WINDOW_REFITS * refit_s
        self._refits = refits_of(traffic, refit_s)
        self._predicted: dict[float, Predicted] = {}
        self._judges: dict[float, Thresholds] = {}
        self._lock = Lock()

    @cached_property
    def turns(self) -> TurnFeatures:
        """Features and waits of all requests."""
        return turn_features(self.traffic, last_touch_segments(self.traffic), self.window_s)

    def tables(self) -> Tables:
        """The tables that choose for each cache; as they are, no conversation ends."""
        return Tables(*taken_to_end(np.zeros(len(self.traffic.leaf), dtype=np.bool_)), self.choose)

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """The classes of all requests as a cache of this size takes them."""
        with self._lock:
            judge = self.judge(policy.values["horizon_s"])
        return judge.choose(policy, capacity_blocks)

    def judge(self, horizon_s: float) -> Thresholds:
        """The shadow caches that choose a threshold for the chances of this horizon."""
        if horizon_s not in self._judges:
            chance = self.predicted(horizon_s).chance
            self._judges[horizon_s] = Thresholds(self.traffic, self.refit_s, chance)
        return self._judges[horizon_s]

    def predicted(self, horizon_s: float) -> Predicted:
        """The chance of a turn within `horizon_s` after each request, as the refit before it says.

        A refit learns from the requests of the window before it whose horizon has passed by then:
        of younger ones it is not yet known whether they go on. So no label is cut off by time.
        """
        if horizon_s not in self._predicted:
            self._predicted[horizon_s] = self._predict(horizon_s)
        return self._predicted[horizon_s]

    def _predict(self, horizon_s: float) -> Predicted:
        known, returned = self.turns.known, self.turns.next_s <= horizon_s
        arrival_s, since = self.traffic.arrival_s, self._refits.since
        chance = np.full(len(arrival_s), np.nan)
        fits: list[Fitted | None] = []
        learned = 0
        for number, first, end in zip(
            self._refits.number.tolist(), since, [*since[1:], len(arrival_s)], strict=True
        ):
            low, high = self._known_by(number * self.refit_s, horizon_s)
            found = fits[-1] if fits else None
            if high - low >= FEWEST_REQUESTS and high - learned >= _NEWS * (high - low):
                some = slice(low, high)
                found, learned = Fitted(boosted(known[some], returned[some]), high - low), high
            fits.append(found)
            if found is not None:
                chance[first:end] = chances(found.trees, known[first:end])
        return Predicted(chance, since, tuple(fits))

    def fitted_at(self, now_s: float, horizon_s: float) -> Fitted | None:
        """What a refit at this time would learn; None where too few requests tell anything."""
        low, high = self._known_by(now_s, horizon_s)
        if high - low < FEWEST_REQUESTS:
            return None
        known, returned = self.turns.known[low:high], self.turns.next_s[low:high] <= horizon_s
        return Fitted(boosted(known, returned), high - low)

    def _known_by(self, now_s: float, horizon_s: float) -> tuple[int, int]:
        """From which request to which a refit learns."""
        times = now_s - self.window_s, now_s - horizon_s
        low, high = np.searchsorted(self.traffic.arrival_s, times).tolist()
        return max(low, high - MOST_REQUESTS), high


class Thresholds(Shadows):
    """Shadows of T-LRU, each of which takes conversations to end below another chance."""

    rule = LEARNED_ENDS

    def __init__(self, traffic: Traffic, refit_s: float, chance: Floats) -> None:
        super().__init__(traffic, refit_s, [taken_to_end(chance < one) for one in THRESHOLDS])
        self._told = ~np.isnan(chance[self._looks.since]) if len(chance) else False
        between = np.searchsorted(THRESHOLDS[1:], chance, side="right")  # last: no prediction
        self._between = (1 + between).astype(np.int32)

    @property
    def candidates(self) -> Sequence[Candidate]:
        """One a threshold, plain T-LRU first, to which the policy falls back."""
        return self._learned

    def costs(self, policy: Policy, capacity_blocks: int) -> Floats:
        """The same, where there was a prediction: until then all are alike and tell nothing."""
        return super().costs(policy, capacity_blocks) * self._told

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Those by the threshold that does best, from each look on."""
        return self.tables_by(self.taken(self.costs(policy, capacity_blocks)))

    def tables_by(self, taken: NDArray[np.int64]) -> Tables:
        """All conversations end by the threshold `taken` at a look, whenever they were served.

        A class lies between two thresholds: class k from number k - 1 on, and below number k. So it
        ends while that one is in force, or a later one.
        """
        goes_on = np.arange(len(THRESHOLDS) + 1) > taken[:, None]
        return Tables(self._looks.since, goes_on[:, :, None].astype(np.float64), self._between)


def taken_to_end(ends: NDArray[np.bool_]) -> Candidate:
    """What a replay goes by in which these requests' conversations end, and others go on."""
    values = np.zeros((1, 2, 1))
    values[0, GOES_ON] = 1.0
    classes = np.where(ends, ENDS_SOON, GOES_ON).astype(np.int32)
    return Candidate(np.zeros(1, dtype=np.int64), values, classes)


def end_tables(traffic: Traffic, refit_s: float = REFIT_OFTEN.default) -> Tables:
    """Whether each request's conversation goes on, as each cache takes it: `Ends`."""
    return Ends(traffic, refit_s).tables()


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
    found = turn_features(traffic, last_touch_segments(traffic), fitted.window_s)
    return Tables(*taken_to_end(chances(fitted.trees, found.known) < fitted.threshold))

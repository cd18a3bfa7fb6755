"""Learn from a whole trace which conversations end: features, trees, and the threshold."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Bools, Int64s
from kvscope.learning.ends.boosting import boosted, chances
from kvscope.learning.ends.chances import FEATURES, NOTHING, SHARED_HEAD, Trees
from kvscope.learning.ends.file import NO_TREES, FittedEnds
from kvscope.learning.guard import Rule
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import OfflineLearner, end_of
from kvscope.learning.offline.prefix_features import PrefixFeatures, chained, prefix_features
from kvscope.learning.offline.refits import refits_of
from kvscope.learning.offline.shadow_replays import ShadowReplays
from kvscope.policies.base import Floats, Policy
from kvscope.policies.gittins import REFIT_OFTEN, WINDOW_REFITS
from kvscope.policies.tlru_learned import ENDS_SOON, GOES_ON
from kvscope.replay.last_touch import Segments, last_touch_segments
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic, uncut

THRESHOLDS = (0.0, 0.05, 0.1, 0.2, 0.3)  # the first: no conversation is taken to end
CAUTIOUS = 0.1  # the fixed threshold that cost nothing anywhere: docs/tlru-learned.md
MOST_REQUESTS = 4096  # that a fit looks at, the latest ones
FEWEST_REQUESTS = 50
_NEWS = 0.05  # of what a fit looks at: with fewer new requests the fit before stays


class TurnFeatures(NamedTuple):
    """Of R requests: `known` (R × F) as FEATURES lists, and the wait for the turn after each.

    `next_s` is infinite where none comes. A request goes on with the latest one whose whole prompt
    it begins with, unless prompts had branched there in as many ways before as behind a shared
    head.
    """

    known: Floats
    next_s: Floats


def turn_features(traffic: Traffic, segments: Segments, memory_s: float) -> TurnFeatures:
    """Return the features by shared blocks; blocks not touched for `memory_s` count as new."""
    requests, arrival_s = len(traffic.leaf), traffic.arrival_s
    prefixes = prefix_features(traffic, segments, memory_s)
    goes_on = _goes_on(traffic, segments, prefixes)
    next_s = np.full(requests, np.inf)
    np.minimum.at(next_s, prefixes.previous[goes_on], prefixes.wait_s[goes_on])

    known, before = prefixes.known(), prefixes.before(goes_on)
    head = np.full(requests, -1)
    first = prefixes.recent & (segments.start == 0)
    head[prefixes.request[first]] = prefixes.previous[first]

    turns, began = chained(before)
    later = turns > 0
    columns = {
        "new_tokens": (prefixes.full - known) * traffic.block_size,
        "input_tokens": traffic.input_tokens,
        "output_tokens": traffic.history_tokens - traffic.input_tokens,
        "shared_share": known / np.maximum(prefixes.full, 1),
        "turns": turns,
        "since_s": np.where(later, arrival_s - arrival_s[before], NOTHING),
        "mean_gap_s": np.where(
            later, (arrival_s - arrival_s[began]) / np.maximum(turns, 1), NOTHING
        ),
        "head_requests": chained(head)[0],
    }
    stacked = np.stack([columns[name].astype(np.float64) for name in FEATURES], axis=1)
    return TurnFeatures(stacked, next_s)


def _goes_on(traffic: Traffic, segments: Segments, prefixes: PrefixFeatures) -> Bools:
    """Return which segments are turns: all of a prompt before, and no shared head.

    The ways in which the path to a segment's end had gone on are the requests before that branched
    there: whose prompt went on with a block of its own right behind it.
    """
    requests, whole = len(prefixes.full), np.minimum(prefixes.full, traffic.length)
    deepest = prefixes.deepest
    own = deepest[prefixes.end[deepest] < whole[prefixes.request[deepest]]]
    branched = np.sort(
        segments.block[own].astype(np.int64) * (requests + 1) + prefixes.request[own]
    )
    goes_on = prefixes.whole.copy()
    some = np.flatnonzero(goes_on)
    block, above = segments.block[some], (segments.end - prefixes.end)[some]
    while len(far := np.flatnonzero(above)):  # up from an output to the prompt's end
        block[far] = traffic.block_parent[block[far]]
        above[far] -= 1
    at = block.astype(np.int64) * (requests + 1)
    ways = np.searchsorted(branched, at + prefixes.request[some]) - np.searchsorted(branched, at)
    goes_on[some] = ways < SHARED_HEAD
    return goes_on


class FittedTrees(NamedTuple):
    """Trees learned at a refit, and from how many requests."""

    trees: Trees
    requests: int


class TurnPredictions(NamedTuple):
    """The probability that each of R requests is continued, NaN before the first fit.

    `fits` are in force one after the other, each from request `since[k]` on; None: too few
    requests to learn from.
    """

    chance: Floats
    since: Int64s
    fits: tuple[FittedTrees | None, ...]


class EndPredictor:
    """What refits learn of the ends of conversations in one traffic."""

    def __init__(self, traffic: Traffic, refit_s: float = REFIT_OFTEN.default) -> None:
        self.traffic, self.refit_s = traffic, refit_s
        self.window_s = WINDOW_REFITS * refit_s
        self._refits = refits_of(traffic, refit_s)
        self._predicted: dict[float, TurnPredictions] = {}
        self._shadows: dict[float, ThresholdShadows] = {}
        self._lock = Lock()

    @cached_property
    def turns(self) -> TurnFeatures:
        """Features and waits of all requests."""
        return turn_features(self.traffic, last_touch_segments(self.traffic), self.window_s)

    def tables(self) -> Tables:
        """Return the tables that choose for each cache; unchosen, no conversation ends."""
        goes_on = taken_to_end(np.zeros(len(self.traffic.leaf), dtype=np.bool_))
        return replace(goes_on, choose=self.choose)

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Return the classes of all requests by the thresholds that a guard takes for a cache."""
        with self._lock:
            shadows = self.shadows(policy.values["horizon_s"])
        return shadows.choose(policy, capacity_blocks)

    def shadows(self, horizon_s: float) -> ThresholdShadows:
        """Return the shadow caches that choose a threshold for predictions of this horizon."""
        if horizon_s not in self._shadows:
            chance = self.predicted(horizon_s).chance
            self._shadows[horizon_s] = ThresholdShadows(self.traffic, self.refit_s, chance)
        return self._shadows[horizon_s]

    def predicted(self, horizon_s: float) -> TurnPredictions:
        """Predict a turn within `horizon_s` after each request, as the refit before it does.

        A refit learns from the requests of the window before it whose horizon has passed by then:
        of later ones it is not yet known whether they go on. So no label is cut off by time.
        """
        if horizon_s not in self._predicted:
            self._predicted[horizon_s] = self._predict(horizon_s)
        return self._predicted[horizon_s]

    def _predict(self, horizon_s: float) -> TurnPredictions:
        known, arrival_s, since = self.turns.known, self.traffic.arrival_s, self._refits.since
        chance = np.full(len(arrival_s), np.nan)
        fits: list[FittedTrees | None] = []
        learned = 0
        for number, first, end in zip(
            self._refits.number.tolist(), since, [*since[1:], len(arrival_s)], strict=True
        ):
            now_s = number * self.refit_s
            low, high = self._known_by(now_s, horizon_s)
            fit = fits[-1] if fits else None
            if high - low >= FEWEST_REQUESTS and high - learned >= _NEWS * (high - low):
                fit, learned = self.fitted_at(now_s, horizon_s), high
            fits.append(fit)
            if fit is not None:
                chance[first:end] = chances(fit.trees, known[first:end])
        return TurnPredictions(chance, since, tuple(fits))

    def fitted_at(self, now_s: float, horizon_s: float) -> FittedTrees | None:
        """Return what a refit at this time would learn; None from too few requests."""
        low, high = self._known_by(now_s, horizon_s)
        if high - low < FEWEST_REQUESTS:
            return None
        known, returned = self.turns.known[low:high], self.turns.next_s[low:high] <= horizon_s
        return FittedTrees(boosted(known, returned), high - low)

    def _known_by(self, now_s: float, horizon_s: float) -> tuple[int, int]:
        """Return the range of requests that a refit learns from."""
        times = now_s - self.window_s, now_s - horizon_s
        low, high = np.searchsorted(self.traffic.arrival_s, times).tolist()
        return max(low, high - MOST_REQUESTS), high


class ThresholdShadows(ShadowReplays):
    """Shadows of T-LRU, each of which takes conversations to end below another probability.

    Plain T-LRU comes first: the policy falls back to it. A threshold's gain shows at once, its loss
    when conversations that were taken to end come back: hence the rule.
    """

    rule = Rule(begins_with=0, looks=1, evidence=12, late=0, margin=0.03)

    def __init__(self, traffic: Traffic, refit_s: float, chance: Floats) -> None:
        super().__init__(traffic, refit_s, [taken_to_end(chance < least) for least in THRESHOLDS])
        self._predicted = ~np.isnan(chance[self._looks.since]) if len(chance) else False
        between = np.searchsorted(THRESHOLDS[1:], chance, side="right")  # last: no prediction
        self._between = (1 + between).astype(np.int32)

    def costs(self, policy: Policy, capacity_blocks: int) -> Floats:
        """Return the costs where there was a prediction: until then all candidates are alike."""
        return super().costs(policy, capacity_blocks) * self._predicted

    def choose(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Return the tables by the threshold that does best, from each look on."""
        return self.tables_by(self.taken(self.costs(policy, capacity_blocks)))

    def tables_by(self, taken: Int64s) -> Tables:
        """Return the tables by the threshold `taken` at each look, whenever requests were served.

        A class lies between two thresholds: class k from number k - 1 on, and below number k. So it
        ends while that one is in force, or a later one.
        """
        goes_on = np.arange(len(THRESHOLDS) + 1) > taken[:, None]
        return Tables.of(self._looks.since, goes_on[:, :, None].astype(np.float64), self._between)


def taken_to_end(ends: Bools) -> Tables:
    """Return the tables of a replay in which these requests' conversations end, others go on."""
    values = np.zeros((1, 2, 1))
    values[0, GOES_ON] = 1.0
    classes = np.where(ends, ENDS_SOON, GOES_ON).astype(np.int32)
    return Tables.of(np.zeros(1, dtype=np.int64), values, classes, uncut(len(classes)))


class EndsOffline(OfflineLearner):
    """Whether each request's conversation goes on, as each cache takes it: `EndPredictor`."""

    def tables(self, traffic: Traffic, refit_s: float = REFIT_OFTEN.default) -> Tables:
        """Return the tables that choose a threshold for each cache."""
        return EndPredictor(traffic, refit_s).tables()

    def fit(
        self, traffic: Traffic, policy: Policy, capacity_blocks: int | None = None
    ) -> FittedEnds:
        """Return what a refit right behind the last request finds, with a threshold.

        That is the threshold in force at the end of a replay with `capacity_blocks`, which may be 0
        (plain T-LRU); without a capacity, `CAUTIOUS`. From too few requests there are no trees, and
        no conversation is taken to end.
        """
        horizon_s = policy.values["horizon_s"]
        predictor = EndPredictor(traffic, policy.values["refit_s"])
        fit = predictor.fitted_at(end_of(traffic), horizon_s)
        if fit is None:
            return FittedEnds(NO_TREES, 0.0, horizon_s, predictor.window_s, 0)
        threshold = CAUTIOUS
        if capacity_blocks is not None:
            shadows = predictor.shadows(horizon_s)
            threshold = THRESHOLDS[shadows.last_taken(policy, capacity_blocks)]
        return FittedEnds(fit.trees, threshold, horizon_s, predictor.window_s, fit.requests)

    def plugin_tables(self, traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
        """Return the tables of a replay that goes by one fit for good; no shadow guards it."""
        if not isinstance(fitted, FittedEnds):
            return super().plugin_tables(traffic, policy, fitted)
        turns = turn_features(traffic, last_touch_segments(traffic), fitted.window_s)
        return taken_to_end(chances(fitted.trees, turns.known) < fitted.threshold)


LEARNER = EndsOffline()

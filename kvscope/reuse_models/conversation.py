"""The conversation model: how often conversations begin, take turns, and die unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kvscope.learning.reuse.formulas import ReuseCounts, exponentials
from kvscope.reuse_models.base import Interval, P
from kvscope.reuse_models.exponential import Exponential
from kvscope.reuse_models.likelihood import LEVEL, quantile
from kvscope.reuse_models.observations import RESOLUTION_S, Floats, Observations


def next_turn_s(parent: NDArray[np.integer], arrival_s: Floats) -> Floats:
    """When the turn after each request arrives; of several the earliest, infinity for none."""
    child = np.flatnonzero(parent >= 0)
    found = np.full(len(parent), np.inf)
    np.minimum.at(found, parent[child], arrival_s[child])
    return found


def turn_waits(
    arrival_s: Floats,
    next_s: Floats,
    end_s: float,
    cluster: NDArray[np.integer] | None = None,
    resolution_s: float = RESOLUTION_S,
) -> Observations:
    """The wait for the turn after each request, as seen at `end_s`, not included."""
    reused = next_s < end_s
    waited_s = np.where(reused, next_s, end_s) - arrival_s
    return Observations.of(waited_s, reused, None, cluster, resolution_s)


VALUES = 16


class NextPrompt:
    """P(Q > q) is the share of the prompts seen that added more than q tokens: no shape is assumed.

    Learned: `n_`, `mean_` and `values_`, `VALUES` equally likely ones, ascending, the nearest-rank
    quantiles in the middle of sixteen equal parts. There is no hazard and no censoring: a prompt
    is seen whole or not at all. Source: Tail-Optimized Caching for LLM Inference, section 4 (Q).
    """

    n_: int
    mean_: float
    values_: Floats

    def fit(self, tokens: Floats) -> Self:
        """Learn from one or more prompts."""
        ascending = np.sort(tokens)
        self.n_ = len(ascending)
        self.mean_ = float(ascending.mean())
        ranks = (np.arange(VALUES) + 0.5) / VALUES
        self.values_ = ascending[np.ceil(ranks * self.n_).astype(np.int64) - 1]
        self._ascending = ascending
        return self

    def quantile(self, rank: float) -> float:
        """The nearest-rank quantile."""
        return float(self._ascending[max(int(np.ceil(rank * self.n_)), 1) - 1])


def added_tokens(
    child: NDArray[np.int64],
    before: NDArray[np.integer],
    input_tokens: NDArray[np.integer],
    history_tokens: NDArray[np.integer],
) -> Floats:
    """Tokens that each turn `child` added to the history of `before`; 0 where that was cut."""
    added: Floats = input_tokens[child].astype(np.float64) - history_tokens[before]
    return np.maximum(added, 0.0)


class Rates(NamedTuple):
    """Turns and deaths per second of a conversation that is alive."""

    turn_per_s: float
    death_per_s: float


class ConversationModel:
    """S(t) = 1 - L / (L + M) (1 - exp(-(L + M) t)): no turn within t of the last one.

    Conversations are born at `birth_rate_per_s_`, take turns at L = `turn_rate_per_s_` while they
    are alive and die at M = `death_rate_per_s_`, which nobody sees. Hazard of a turn after a
    silence t: L times the chance to be alive still. Log-likelihood: log L - (L + M) g of each gap g
    between turns, log S(t) of each silence t that the window's end leaves open. So a turn's wait is
    a defective exponential with p = L / (L + M) and rate L + M, and its estimates give these.
    Births are a Poisson process: their number over the time. `next_turn_probability_` is p,
    `turns_` 1 + L / M, the turns that a conversation takes on average; `ks_` how far the gaps are
    from this model. Source: Tail-Optimized Caching for LLM Inference, section 5.
    """

    birth_rate_per_s_: float
    turn_rate_per_s_: float
    death_rate_per_s_: float
    next_turn_probability_: float
    turns_: float
    ks_: float
    interval_: Mapping[str, Interval | None]

    def fit(self, turns: Observations, births: int, watched_s: float) -> Self:
        """Learn from each turn's wait for the next one and from births within `watched_s` seconds.

        Raises InputError where no turn was followed by another.
        """
        waits = Exponential().fit(turns)
        p, rate = waits.reuse_probability_, waits.params_["rate_per_s"]
        self.birth_rate_per_s_ = births / watched_s
        self.turn_rate_per_s_ = p * rate
        self.death_rate_per_s_ = (1.0 - p) * rate
        self.next_turn_probability_ = p
        self.turns_ = 1.0 / (1.0 - p)
        self.ks_ = waits.ks_
        self.interval_ = {
            "birth_rate_per_s": _of_poisson(births, watched_s),
            "turn_rate_per_s": self._interval(waits, turns, self.turn_rate_per_s_, 1.0 - p),
            "death_rate_per_s": self._interval(waits, turns, self.death_rate_per_s_, -p),
            "next_turn_probability": waits.interval_[P],
        }
        return self

    @staticmethod
    def _interval(
        waits: Exponential, turns: Observations, value: float, by_logit: float
    ) -> Interval | None:
        """By the delta method, of the logarithm, whose derivative by log(L + M) is 1."""
        if waits.covariance_ is None:
            return None
        slope = np.array([by_logit, 1.0])
        spread = quantile(turns.clusters) * float(slope @ waits.covariance_ @ slope) ** 0.5
        return value * float(np.exp(-spread)), value * float(np.exp(spread))


def turn_and_death_rates(turns: Observations) -> Rates | None:
    """L and M alone, without what intervals cost; None where no turn was followed by another."""
    if not turns.reused_runs:
        return None
    waiting = ~turns.reused
    found = exponentials(
        ReuseCounts(
            reused=np.array([turns.total_reused]),
            waited_s=np.array([turns.weight[turns.reused] @ turns.waited_s[turns.reused]]),
            waiting=turns.weight[waiting][None],
            since_s=turns.waited_s[waiting][None],
        )
    )
    p, rate = float(found.p[0]), float(found.rate_per_s[0])
    return Rates(p * rate, (1.0 - p) * rate)


def _of_poisson(count: int, watched_s: float) -> Interval:
    """Garwood's exact interval for the rate of a Poisson process."""
    from scipy.special import gammaincinv

    tail = (1.0 - LEVEL) / 2
    low = float(gammaincinv(count, tail)) if count else 0.0
    return low / watched_s, float(gammaincinv(count + 1, 1.0 - tail)) / watched_s

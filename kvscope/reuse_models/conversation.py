"""The conversation model: rates at which conversations begin, take turns and end."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s
from kvscope.reuse_models.base import LEVEL, P, quantile
from kvscope.reuse_models.distributions import Exponential, exponential_estimates
from kvscope.reuse_models.observations import RESOLUTION_S, Observations, tolerance
from kvscope.reuse_models.results import Conversation, Interval


def next_turn_s(parent: NDArray[np.integer], arrival_s: Float64s) -> Float64s:
    """Return the arrival (s) of each request's earliest next turn; infinity without a next turn."""
    child = np.flatnonzero(parent >= 0)
    next_s = np.full(len(parent), np.inf)
    np.minimum.at(next_s, parent[child], arrival_s[child])
    return next_s


def turn_waits(
    arrival_s: Float64s,
    next_s: Float64s,
    end_s: float,
    cluster: NDArray[np.integer] | None = None,
    resolution_s: float = RESOLUTION_S,
) -> Observations:
    """Return each request's wait (s) for its next turn, censored at `end_s` (exclusive).

    Observed waits count as `resolution_s` at least; `cluster` as in `Observations`, None: one each.
    """
    reused = next_s < end_s
    waited_s = np.where(reused, next_s, end_s) - arrival_s
    return Observations.of(waited_s, reused, None, cluster, resolution_s)


VALUES = 16


class NextPrompt:
    """Empirical distribution of the tokens Q that a next prompt adds: P(Q > q) without a model.

    Learned: `n_`, `mean_` and `values_`, equally likely, ascending: the nearest-rank quantiles in
    the middle of sixteen (`VALUES`) equal parts. No hazard, no censoring: a prompt is observed
    whole or not at all. Source: Tail-Optimized Caching for LLM Inference, section 4 (Q).
    """

    n_: int
    mean_: float
    values_: Float64s

    def fit(self, tokens: Float64s) -> Self:
        """Return the distribution itself, fitted to the tokens that each of some prompts added."""
        ascending = np.sort(tokens)
        self.n_ = len(ascending)
        self.mean_ = float(ascending.mean())
        ranks = (np.arange(VALUES) + 0.5) / VALUES
        self.values_ = ascending[np.ceil(ranks * self.n_).astype(np.int64) - 1]
        self._ascending = ascending
        return self

    def quantile(self, rank: float) -> float:
        """Return the nearest-rank quantile in tokens."""
        return float(self._ascending[max(int(np.ceil(rank * self.n_)), 1) - 1])


def added_tokens(
    child: NDArray[np.int64],
    before: NDArray[np.integer],
    input_tokens: NDArray[np.integer],
    history_tokens: NDArray[np.integer],
) -> Float64s:
    """Return the tokens that turns `child` add to the histories of turns `before`, at least 0."""
    added: Float64s = input_tokens[child].astype(np.float64) - history_tokens[before]
    return np.maximum(added, 0.0)


class Rates(NamedTuple):
    """Turns and deaths per second of a conversation that is alive."""

    turn_per_s: float
    death_per_s: float


def fit_conversations(turns: Observations, births: int, watched_s: float) -> Conversation:
    """Return the rates at which conversations begin, take turns and end, fitted to waits of turns.

    No turn within t of the last one: S(t) = 1 - L / (L + M) (1 - exp(-(L + M) t)). `turns` are the
    waits of each turn for the next, `births` conversations begun in `watched_s` seconds.
    Conversations begin at a rate per second, take turns at L while alive and end at M, unobserved.
    Hazard of a turn after an idle time t: L times the probability of being alive. Log-likelihood:
    log L - (L + M) g of each gap g between turns, log S(t) of each idle time t censored by the
    window's end. So a turn's wait is a defective exponential with p = L / (L + M) and rate L + M,
    whose estimates give L and M. Births are a Poisson process: their number over the time. The mean
    turns of a conversation are 1 + L / M. Raises InputError if no turn was followed by another.
    Source: Tail-Optimized Caching for LLM Inference, section 5.
    """
    waits = Exponential().fit(turns)
    p, rate = waits.reuse_probability_, waits.params_["rate_per_s"]
    turn_per_s, death_per_s = p * rate, (1.0 - p) * rate
    return Conversation(
        birth_rate_per_s=births / watched_s,
        death_rate_per_s=death_per_s,
        turn_rate_per_s=turn_per_s,
        next_turn_probability=p,
        turns=1.0 / (1.0 - p),
        births=births,
        requests=len(turns.weight),
        ks=waits.ks_,
        fits=waits.ks_ <= tolerance(turns),
        # The delta method on the logarithm, whose derivative by log(L + M) is 1.
        interval={
            "birth_rate_per_s": _of_poisson(births, watched_s),
            "turn_rate_per_s": _by_logarithm(waits, turns, turn_per_s, 1.0 - p),
            "death_rate_per_s": _by_logarithm(waits, turns, death_per_s, -p),
            "next_turn_probability": waits.interval_[P],
        },
    )


def turn_and_death_rates(turns: Observations) -> Rates | None:
    """Return the rates L and M without intervals; None where no turn was followed by another."""
    if not turns.reused_runs:
        return None
    p, rate = exponential_estimates(turns)
    return Rates(p * rate, (1.0 - p) * rate)


def _by_logarithm(
    waits: Exponential, turns: Observations, value: float, by_logit: float
) -> Interval | None:
    """Return the 95 % interval of a rate estimated as `value`, None if `waits` has no covariance.

    `waits` is the exponential fitted to `turns`. `by_logit` is the derivative of the rate's
    logarithm by the logit of p.
    """
    if waits.covariance_ is None:
        return None
    slope = np.array([by_logit, 1.0])
    reach = quantile(turns.clusters) * float(slope @ waits.covariance_ @ slope) ** 0.5
    return value * float(np.exp(-reach)), value * float(np.exp(reach))


def _of_poisson(count: int, watched_s: float) -> Interval:
    """Return Garwood's exact interval for the rate of a Poisson process, per second."""
    from scipy.special import gammaincinv

    tail = (1.0 - LEVEL) / 2
    low = float(gammaincinv(count, tail)) if count else 0.0
    return low / watched_s, float(gammaincinv(count + 1, 1.0 - tail)) / watched_s

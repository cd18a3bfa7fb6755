"""The canary lasts as long as a gain of known normal data needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.tuning.bootstrap import Bootstrap, Resampled
from kvscope.tuning.comparison import canary
from kvscope.tuning.target import Target

SIGMA, GAIN, REQUESTS = 1.0, 0.1, 10_000
MEAN = 5.0


def _means(value: float, seed: int) -> Resampled:
    """Return a mean of normal requests, resampled as often as a bootstrap does."""
    rng = np.random.default_rng(seed)
    resamples = rng.normal(value, SIGMA / math.sqrt(REQUESTS), size=(2, 1_000, 1))
    return Resampled(np.array([value]), resamples, np.full((2, 1), float(REQUESTS)))


def test_as_many_requests_as_show_a_normal_gain() -> None:
    """Of 10,000 simulated canaries of that length 80 % show the gain; of none where none is.

    The length is that of the textbook too: 2 (1.96 + 0.84)^2 sigma^2 / gain^2 requests an arm.
    """
    plan = canary(
        "p95",
        0,
        _means(MEAN, 1),
        _means(MEAN - GAIN, 2),
        requests=REQUESTS,
        span_s=36_000.0,
        replicas=2,
    )
    assert plan.replicas == 1
    assert plan.requests_per_hour == REQUESTS / 10 / 2
    assert plan.hours is not None
    needed = plan.hours * plan.requests_per_hour
    assert needed == pytest.approx(2 * (2.8016 * SIGMA / GAIN) ** 2, rel=0.2)
    rng = np.random.default_rng(3)
    error = SIGMA / math.sqrt(needed)
    before, after, same = (
        rng.normal(mean, error, size=10_000) for mean in (MEAN, MEAN - GAIN, MEAN)
    )
    beyond = 1.96 * error * math.sqrt(2)
    assert (before - after > beyond).mean() == pytest.approx(0.8, abs=0.06)
    assert (before - same > beyond).mean() < 0.04


def test_the_bootstrap_s_spread_is_that_of_the_figure() -> None:
    """The median of normal latencies has a variance of pi/2 sigma^2 / n: so much longer it takes.

    With a bootstrap of 20,000 requests, each a conversation.
    """
    rng = np.random.default_rng(4)
    bootstrap = Bootstrap(np.arange(20_000, dtype=np.int32), Target(MEAN), resamples=400)
    before, after = (
        bootstrap.figures(rng.normal(mean, SIGMA, size=20_000)) for mean in (MEAN, MEAN - 0.5)
    )
    plan = canary(
        "p50",
        bootstrap.names.index("p50"),
        before,
        after,
        requests=20_000,
        span_s=20_000 * 3_600.0,
        replicas=2,
    )
    assert plan.requests_per_hour == 0.5
    assert plan.hours is not None
    needed = plan.hours * plan.replicas * 0.5 if plan.replicas else 0
    assert needed == pytest.approx(math.pi * (2.8016 * SIGMA / 0.5) ** 2, rel=0.2)


@pytest.mark.parametrize(("replicas", "arms"), [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4), (100, 7)])
def test_at_most_half_of_the_replicas_take_part(replicas: int, arms: int) -> None:
    """As many as end within a day, of a gain that one replica shows in a little under a week."""
    per_hour = 2 * (2.8016 * SIGMA / GAIN) ** 2 / (6.5 * 24)
    plan = canary(
        "p95",
        0,
        _means(MEAN, 1),
        _means(MEAN - GAIN, 2),
        requests=REQUESTS,
        span_s=REQUESTS / per_hour / replicas * 3_600,
        replicas=replicas,
    )
    assert plan.requests_per_hour == pytest.approx(per_hour)
    assert plan.replicas == arms
    assert plan.hours == pytest.approx(6.5 * 24 / arms, rel=0.2)
    if arms < max(replicas // 2, 1):
        assert plan.hours <= 24


def test_where_nothing_can_be_seen_there_is_no_plan() -> None:
    """No gain, a loss, an infinite latency, or more than 30 days of too few requests."""
    base = _means(MEAN, 1)

    def hours(candidate: Resampled, span_s: float = 36_000.0) -> float | None:
        plan = canary("p95", 0, base, candidate, requests=REQUESTS, span_s=span_s, replicas=1)
        assert (plan.hours is None) == (plan.replicas is None)
        return plan.hours

    assert hours(_means(MEAN - GAIN, 2)) is not None
    assert hours(base) is None
    assert hours(_means(MEAN + GAIN, 2)) is None
    infinite = replace(base, value=np.array([-math.inf]))
    assert hours(infinite) is None
    assert hours(_means(MEAN - GAIN, 2), 1e10) is None


def test_a_gain_that_shows_at_once_is_watched_for_an_hour() -> None:
    """However many requests come, also all at one time."""
    for span_s in (1.0, 0.0):
        plan = canary(
            "p95",
            0,
            _means(MEAN, 1),
            _means(MEAN / 2, 2),
            requests=REQUESTS,
            span_s=span_s,
            replicas=4,
        )
        assert (plan.replicas, plan.hours) == (1, 1.0)

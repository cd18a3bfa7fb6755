"""The canary: on how many replicas, for how long, until a gain shows in production."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from kvscope.tuning.bootstrap import Resampled

_CONFIDENCE_AND_POWER = 1.959964 + 0.841621  # normal quantiles of 97.5 % and of 80 %
_DAY_H = 24.0
_LONGEST_H = 30 * _DAY_H


class Canary(Struct, frozen=True):
    """A canary that shows the gain with 80 % power at 95 % confidence.

    `replicas` with the new policy are compared for `hours` with as many that keep LRU, at
    `requests_per_hour` each. None of both where `figure` does not differ enough to be seen within
    the replicas there are.
    """

    figure: str
    replicas: int | None
    hours: float | None
    requests_per_hour: float


def canary(
    figure: str,
    at: int,
    baseline: Resampled,
    candidate: Resampled,
    *,
    requests: int,
    span_s: float,
    replicas: int,
) -> Canary:
    """Return the canary for figure number `at` of two policies' resampled figures.

    `requests` came in `span_s` seconds to all `replicas`. The two arms see different requests, so
    their variances add up. At most half of the replicas take part, for as many as end within a day.

    Source: Lehr, "Sixteen S-squared over D-squared", Statistics in Medicine 11, 1992 (power of a
    comparison of two means).
    """
    per_hour = requests / span_s * 3600 / replicas if span_s > 0 else math.inf
    difference = float(baseline.value[at] - candidate.value[at])
    spread = sum(
        float(np.var(policy.resamples[..., at], axis=1).max()) for policy in (baseline, candidate)
    )
    if not (math.isfinite(difference) and math.isfinite(spread) and difference > 0 and per_hour):
        return Canary(figure, None, None, per_hour)
    needed = requests * spread * (_CONFIDENCE_AND_POWER / difference) ** 2
    hours = max(needed / per_hour, 1.0)
    arms = min(max(math.ceil(hours / _DAY_H), 1), max(replicas // 2, 1))
    hours /= arms
    if hours > _LONGEST_H:
        return Canary(figure, None, None, per_hour)
    return Canary(figure, arms, hours, per_hour)

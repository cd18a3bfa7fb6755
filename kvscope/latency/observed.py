"""A latency profile fitted to the TTFTs that a trace contains.

A TTFT under load contains waiting, and a profile must not. So only lone requests count: those whose
prefill overlaps no other one on the same worker. A prefill lasts from the end of the queue time, or
from the arrival where the trace states no queue time, to the first token. Behind a queue that the
trace does not state, prefills therefore overlap, and nothing is fitted.

The fit is that of `kvscope calibrate`, on groups of lone requests of similar token counts, whose
medians withstand outliers. A third of the lone requests is held out to measure the error.

Source: the M/G/1 queue's idle-server arrivals, whose response time is the service time (Kleinrock,
Queueing Systems I, 1975, chapter 5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import EngineError, InputError
from kvscope.latency.calibration import Cell, fit
from kvscope.latency.profile import LatencyProfile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
    from kvscope.core.trace import Measurements

ENOUGH = 90
"""The least number of lone requests: 60 to fit, 30 held out."""
LEAST_RANGE = 4.0
"""Least ratio of the 95th to the 5th percentile of uncached tokens.

A narrower range does not tell β, the cost of a request, from α, that of a token.
"""
WORST_P90 = 0.35
"""Largest p90 error on held-out requests: a roofline, without any measurement, reaches it."""
_SHARED = 0.02  # of a prefill may overlap with others: clocks are rounded
_CLOCKS_S = (1.0, 0.1)  # resolutions that hide which of two requests was first
_LONG, _WIDE = 36, 3  # groups by uncached tokens, and by cached tokens in each
_LEAST_IN_GROUP = 5
_MOST = 20_000  # lone requests that are looked at: more change nothing
_REMEDY = "measure with `kvscope calibrate`"


class TraceFit(Struct, frozen=True):
    """A profile fitted to `requests` lone requests, out of `stated` ones with a TTFT.

    `median_error` and `p90_error` are relative errors of TTFT on held-out requests; nine of ten
    held-out TTFTs are between `low` and `high` times the profile's.
    """

    profile: LatencyProfile
    requests: int
    stated: int
    median_error: float
    p90_error: float
    low: float
    high: float


class LoneRequests(NamedTuple):
    """Lone requests: uncached and cached tokens, and prefill times (s)."""

    uncached: Int64s
    cached: Int64s
    service_s: Float64s

    def take(self, chosen: Int64s) -> LoneRequests:
        """Return the requests at the indices `chosen`."""
        return LoneRequests(self.uncached[chosen], self.cached[chosen], self.service_s[chosen])


def fit_ttfts(
    name: str,
    arrival_s: Float64s,
    input_tokens: Int32s,
    measured: Measurements | None,
    *,
    seed: int = 0,
) -> TraceFit:
    """Return the profile fitted to the TTFTs measured in a trace called `name`.

    Arrays have one entry per request. Raises InputError with the reason why the TTFTs determine no
    profile.
    """
    if measured is None or not np.isfinite(measured.ttft_s).any():
        raise InputError(
            "contains no TTFTs", where=name, remedy=f"record one on the engine, or {_REMEDY}"
        )
    stated = int(np.isfinite(measured.ttft_s).sum())
    lone = _lone_requests(name, arrival_s, input_tokens, measured)
    order = np.random.default_rng(seed).permutation(len(lone.uncached))[:_MOST]
    held_out, chosen = np.split(order, [len(order) // 3])
    to_fit, others = lone.take(chosen), lone.take(held_out)
    longest = int(lone.uncached.max())
    try:
        rough = fit(_groups(to_fit), seed=seed, draws=1).profile(name, "", longest)
        fitted = fit(_groups(to_fit, rough), seed=seed).profile(f"trace {name}", "", longest)
    except EngineError as error:
        raise InputError(
            f"no profile fits its TTFTs: {error.what}", where=name, remedy=_REMEDY
        ) from error
    ratios = others.service_s / fitted.ttft_s(others.uncached, others.cached)
    median_error, p90_error = np.quantile(np.abs(1 / ratios - 1), (0.5, 0.9)).tolist()
    if p90_error > WORST_P90:
        raise InputError(
            f"the fit to its TTFTs is off by {p90_error:.0%} (p90 of held-out requests): more than"
            " token counts decides them, such as load that the trace does not show",
            where=name,
            remedy=_REMEDY,
        )
    low, high = np.round(np.quantile(ratios, (0.05, 0.95)), 2).tolist()
    return TraceFit(
        profile=replace(
            fitted,
            base_s=fitted.base_s or float(fitted.ttft_s(1, 0)),  # a step takes some time
            source=(
                f"fitted to {len(lone.uncached):,} of the {stated:,} TTFTs of {name}, those without"
                f" another prefill at the same time; off by {median_error:.1%} (median) and"
                f" {p90_error:.1%} (p90) on held-out requests"
            ),
        ),
        requests=len(lone.uncached),
        stated=stated,
        median_error=median_error,
        p90_error=p90_error,
        low=min(low, 1.0),
        high=max(high, 1.0),
    )


def _lone_requests(
    name: str, arrival_s: Float64s, input_tokens: Int32s, measured: Measurements
) -> LoneRequests:
    """Return the requests whose prefill overlaps no other one.

    Raises InputError without cached tokens, or if such requests are too few or too similar.
    """
    ttft_s, queue_s, cached_tokens = measured.ttft_s, measured.queue_s, measured.cached_tokens
    timed = np.isfinite(ttft_s) & (ttft_s > 0)
    usable = timed & (cached_tokens >= 0) & (cached_tokens < input_tokens)
    if not usable.any():
        raise InputError(
            "has TTFTs but no cached tokens, so how many were computed is unknown",
            where=name,
            remedy=f"log them too (vLLM: --enable-prompt-tokens-details), or {_REMEDY}",
        )
    waited_s = np.where((queue_s > 0) & (queue_s < ttft_s), queue_s, 0.0)
    typical_s = float(np.quantile((ttft_s - waited_s)[timed], 0.99))
    start_s = arrival_s + waited_s
    end_s = np.where(timed, arrival_s + ttft_s, start_s + typical_s)
    named = np.all(measured.worker >= 0)  # an unknown one could be any
    worker = measured.worker if named else np.zeros_like(measured.worker)
    lone = np.flatnonzero(usable & _lone(start_s, end_s, worker, _clock_s(arrival_s)))
    if len(lone) < ENOUGH:
        logged = "" if np.isfinite(queue_s).any() else "log queue times too, or "
        raise InputError(
            f"only {len(lone):,} of {timed.sum():,} TTFTs were measured without another prefill at"
            f" the same time, and a fit needs {ENOUGH}",
            where=name,
            remedy=logged + _REMEDY,
        )
    cached = cached_tokens[lone].astype(np.int64)
    uncached = input_tokens[lone] - cached
    short, long = np.quantile(uncached, (0.05, 0.95))
    if long < LEAST_RANGE * short:
        raise InputError(
            f"nine of ten requests that did not wait compute {short:,.0f} to {long:,.0f} tokens:"
            f" too narrow a range, a fit needs a factor of {LEAST_RANGE:g}",
            where=name,
            remedy=_REMEDY,
        )
    return LoneRequests(uncached, cached, (ttft_s - waited_s)[lone])


def _clock_s(arrival_s: Float64s) -> float:
    """Return the resolution of the arrivals' clock (s), 0 where it is below a tenth of a second."""
    for clock_s in _CLOCKS_S:
        ticks = arrival_s / clock_s
        if np.allclose(ticks, np.round(ticks), rtol=0, atol=1e-6):
            return clock_s
    return 0.0


def _lone(start_s: Float64s, end_s: Float64s, worker: NDArray[np.integer], clock_s: float) -> Bools:
    """Return a mask of the prefills of whose time at most 2 % overlap with others on their worker.

    Each lasts from `start_s` to `end_s`; times are known to `clock_s`, which counts as overlap.
    """
    lone = np.zeros(len(start_s), dtype=bool)
    order = np.lexsort((start_s, worker))
    for mine in np.split(order, np.flatnonzero(np.diff(worker[order])) + 1):
        start, end = start_s[mine], end_s[mine]
        busy_until = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1]))
        following = np.concatenate((start[1:], [np.inf]))
        shared = np.maximum(busy_until + clock_s - start, 0) + np.maximum(
            end + clock_s - following, 0
        )
        lone[mine] = shared <= _SHARED * (end - start)
    return lone


def _groups(requests: LoneRequests, rough: LatencyProfile | None = None) -> dict[Cell, list[float]]:
    """Return the prefill times (s) of groups of similar requests, by their median token counts.

    With a `rough` profile, times are first scaled to these counts by the ratio of its TTFTs.
    """
    groups: dict[Cell, list[float]] = {}
    by_length = np.argsort(requests.uncached, kind="stable")
    lengths = min(_LONG, len(by_length) // (_WIDE * _LEAST_IN_GROUP))
    for similar in np.array_split(by_length, lengths):
        by_cached = np.lexsort((requests.uncached[similar], requests.cached[similar]))
        for members in np.array_split(similar[by_cached], _WIDE):
            uncached, cached, times = requests.take(members)
            cell = Cell(int(np.median(uncached)), int(np.median(cached)))
            if rough is not None:
                times = times * rough.ttft_s(*cell) / rough.ttft_s(uncached, cached)
            groups.setdefault(cell, []).extend(times.tolist())
    return groups

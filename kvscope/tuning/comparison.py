"""Policies compared with LRU on one window: gains with intervals, and regressions (harms).

Only a policy that breaks no limit may be recommended, however much it improves the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.runs import PartOutcome
from kvscope.policies.base import Policy
from kvscope.replay.curve import first_counted
from kvscope.replay.metrics import ServedRequests, by_category
from kvscope.tuning.bootstrap import Bootstrap, Gain, Resampled, clusters_of
from kvscope.tuning.least import keeps_up
from kvscope.tuning.target import LIKELY, Limits, Target
from kvscope.tuning.trial import Advance, Evaluator, PolicyAt, Trial, trial_of, ttft_s

_CONFIDENCE_AND_POWER = 1.959964 + 0.841621  # normal quantiles of 97.5 % and of 80 %
_DAY_H = 24.0
_LONGEST_H = 30 * _DAY_H
_FALLING = ("attainment", "prefill throughput")
VALUES = ("p50", "mean TTFT", "prefill throughput")  # compared without an interval
_ALIKE = 0.02  # a difference in the target's percentile that does not matter


class Harm(Struct, frozen=True):
    """A limit that a trial breaks: the figure, its change from the baseline, the allowed change.

    Changes are relative to the baseline, of `attainment` a difference of shares. For `attainment`,
    `tel` and the target's percentile (unless p50), `change` is the worse end of the 95 % interval.
    """

    figure: str
    change: float
    limit: float


class WindowTrial(Trial, frozen=True):
    """A trial compared with a baseline, mostly LRU at the present capacity, on the same window.

    `gains` maps figures (names of percentiles, `violations`, `tel`) to gains, `attainment_gain` is
    a difference of shares; without baseline they are empty and 0. `harms` are the broken limits: of
    the median, mean TTFT and prefill throughput broken by the figure itself, of others by its 95 %
    interval. `meeting_share` (0-1) of the resamples meet the SLO at the target's percentile, whose
    95 % interval is `interval_s`. `likely` is the probability (0-1) that attainment or TEL is
    better. `keeps_up` is as in `QueueTimes`, True in the unloaded view. `ttft_s` has the TTFT of
    each counted request, by arrival, in the target's view: on an idle engine or behind others.
    `categories` has the outcome of each category of counted requests.
    """

    DOCUMENT: ClassVar[str] = (
        f"{Trial.DOCUMENT} keeps_share=meeting_share interval_ms likely keeps_up gain=gains"
        " attainment_gain harms"
    )
    gains: Mapping[str, Gain]
    attainment_gain: Gain
    harms: tuple[Harm, ...]
    resampled: Resampled
    meeting_share: float
    interval_s: tuple[float, float]
    likely: float
    keeps_up: bool
    ttft_s: NDArray[np.float64]
    categories: tuple[PartOutcome, ...]

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The 95 % interval of the target's percentile (ms), 0 to inf for few conversations."""
        low_s, high_s = self.interval_s
        return low_s * 1e3, high_s * 1e3

    @property
    def by_value(self) -> tuple[Harm, ...]:
        """The limits that the figures themselves break, not just the ends of their intervals."""
        gains = {"attainment": self.attainment_gain, **self.gains}
        return tuple(
            harm
            for harm in self.harms
            if harm.figure in VALUES or gains[harm.figure].value < -abs(harm.limit)
        )

    def preference(self, broken: bool) -> tuple[bool, bool, float, int, float]:
        """Return the sort key of contenders, best first; `broken`: a figure is beyond its limit.

        It is (broken or does not keep up, `likely` is below 0.8, -attainment to 0.1 points, the
        target's percentile in steps of 2 %, -prefill throughput).
        """
        scale = np.log(max(self.target_s, 1e-9)) / np.log1p(_ALIKE)
        return (
            broken or not self.keeps_up,
            self.likely < LIKELY,
            -round(self.attainment, 3),
            math.floor(scale) if np.isfinite(scale) else np.iinfo(np.int64).max,
            -self.served_per_s,
        )


class Window:
    """One window of the trace, on which policies are replayed and compared with LRU."""

    def __init__(self, evaluator: Evaluator, limits: Limits) -> None:
        self.evaluator, self.target, self.limits = evaluator, evaluator.target, limits
        prompts = evaluator.workload.prompts
        self.first = first = first_counted(prompts, evaluator.workload.setting.definition)
        clusters = clusters_of(prompts.conversation[first:], prompts.user[first:])
        self.bootstrap = Bootstrap(clusters, self.target)

    def of(self, evaluator: Evaluator) -> Window:
        """Return a copy of the window with another evaluator of the same requests."""
        other = copy(self)
        other.evaluator = evaluator
        return other

    def measure(
        self, policy: Policy, capacity_blocks: int, baseline: WindowTrial | None = None
    ) -> WindowTrial:
        """Replay a policy on the window and return the trial, compared with `baseline`.

        Without `baseline` the trial has no gains and no harms, as that of LRU itself.
        """
        self.evaluator.prepare([policy])
        served = self.evaluator.served(policy, capacity_blocks)
        return self.compare(policy, capacity_blocks, served, baseline)

    def compare(
        self,
        policy: Policy,
        capacity_blocks: int,
        served: ServedRequests,
        baseline: WindowTrial | None = None,
    ) -> WindowTrial:
        """Return the trial of a finished replay (`served`); gains and harms need a `baseline`."""
        per_s = self.evaluator.arrivals_per_s
        trial = trial_of(policy, capacity_blocks, served, self.target, per_s)
        times = ttft_s(served, self.target)
        alike = baseline is not None and np.array_equal(times, baseline.ttft_s)
        resampled = baseline.resampled if alike and baseline else self.bootstrap.figures(times)
        queued = self.target.view == "queued"
        measured = WindowTrial(
            **{name: getattr(trial, name) for name in Trial.__struct_fields__},
            gains={},
            attainment_gain=Gain(0.0, 0.0, 0.0),
            harms=(),
            resampled=resampled,
            meeting_share=self.bootstrap.meeting_share(resampled),
            interval_s=self.bootstrap.interval(resampled, self.target.rank_name),
            likely=0.0,
            keeps_up=not queued or keeps_up(served, self.target.slo_s),
            ttft_s=times,
            categories=by_category(served, self.target.slo_s),
        )
        return measured if baseline is None else self.against(baseline, measured)

    def against(self, baseline: WindowTrial, trial: WindowTrial) -> WindowTrial:
        """Return a trial of this window, compared with `baseline`."""
        gains = self.bootstrap.gains(baseline.resampled, trial.resampled)
        attainment = self.bootstrap.attainment_gain(baseline.resampled, trial.resampled)
        rank = self.target.rank_name
        worst = {"attainment": attainment.low, "tel": -gains["tel"].low, rank: -gains[rank].low}
        if rank == "p50":
            del worst[rank]  # its own limit is the wider one
        figures = {**changes(self.target, baseline, trial), **worst}
        return replace(
            trial,
            gains=gains,
            attainment_gain=attainment,
            harms=harms(bounds(self.target, self.limits, baseline), figures),
            likely=self.bootstrap.likely(
                baseline.resampled, trial.resampled, baseline.ttft_s, trial.ttft_s
            ),
        )

    def canary(self, baseline: WindowTrial, trial: WindowTrial, replicas: int) -> Canary:
        """Return the canary test that would show the gain of a trial over `baseline`."""
        figure, workload = self.target.objective, self.evaluator.workload
        arrival_s = workload.prompts.arrival_s[-len(trial.ttft_s) :]
        return canary(
            figure,
            self.bootstrap.names.index(figure),
            baseline.resampled,
            trial.resampled,
            requests=len(arrival_s),
            span_s=float(arrival_s[-1] - arrival_s[0]),
            replicas=replicas,
        )

    def measure_all(
        self,
        points: Sequence[PolicyAt],
        baseline: WindowTrial,
        advance: Advance | None = None,
    ) -> list[WindowTrial]:
        """Return the trial of each of `points`; `advance` receives the number of ended replays."""
        self.evaluator.prepare([policy for policy, _ in points])
        before = map(self.evaluator.executor.shared, (self, baseline))
        return self.evaluator.each(Window._measured, points, *before, advance=advance)

    def _measured(self, baseline: WindowTrial, point: PolicyAt) -> WindowTrial:
        return self.measure(*point, baseline)


def changes(target: Target, baseline: Trial, trial: Trial) -> Mapping[str, float]:
    """Return the change of each figure that has a limit, by name; intervals do not count.

    Changes are relative to the baseline's figure, of `attainment` a difference of shares.
    """

    def more(figure: Callable[[Trial], float]) -> float:
        before, after = figure(baseline), figure(trial)
        if before == after:
            return 0.0
        return after / before - 1 if before else math.inf

    return {
        "attainment": trial.attainment - baseline.attainment,
        "tel": more(lambda each: each.tel_s),
        target.rank_name: more(lambda each: each.target_s),
        "p50": more(lambda each: each.times_ms.p50),
        "mean TTFT": more(lambda each: each.mean_s),
        "prefill throughput": more(lambda each: each.served_per_s),
    }


def bounds(target: Target, limits: Limits, baseline: Trial) -> dict[str, float]:
    """Return the allowed change of each figure, by name, from that of the trial `baseline`.

    Changes are relative, of `attainment` a difference of shares.
    """
    return limits.bounds(target, baseline.times_ms.p50 / 1e3, baseline.utilization)


def harms(bounds: Mapping[str, float], figures: Mapping[str, float]) -> tuple[Harm, ...]:
    """Return the limits (`bounds`, by figure) that changes of the same names (`figures`) break."""
    compared = (Harm(name, figures[name], at) for name, at in bounds.items() if name in figures)
    return tuple(
        harm
        for harm in compared
        if not (harm.change >= harm.limit if harm.figure in _FALLING else harm.change <= harm.limit)
    )


class Canary(Struct, frozen=True):
    """A canary test that shows the gain with 80 % power at 95 % confidence.

    `replicas` with the new policy are compared for `hours` with as many on LRU, at
    `requests_per_hour` each. `replicas` and `hours` are None if `figure` does not improve, or half
    of the present replicas could not show that within 30 days.
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
    """Return the canary test for `figure`, at index `at` of both policies' resampled figures.

    `requests` arrived in `span_s` seconds at all `replicas`. The two arms serve different requests,
    so their variances add up. Each has the replicas for a test of one day, at most half of all.

    Source: Lehr, "Sixteen S-squared over D-squared", Statistics in Medicine 11, 1992 (power of a
    comparison of two means).
    """
    per_hour = requests / span_s * 3600 / replicas if span_s > 0 else math.inf
    with np.errstate(invalid="ignore"):  # inf - inf, which shows no gain
        difference = float(baseline.value[at] - candidate.value[at])
        spread = sum(
            float(np.var(policy.resamples[..., at], axis=1).max())
            for policy in (baseline, candidate)
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

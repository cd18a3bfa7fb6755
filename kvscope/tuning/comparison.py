"""Policies compared with LRU on one window: gains with intervals, and what they make worse.

No harm: only what breaks no limit may be recommended, however much it improves the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from kvscope.core.runs import PartOutcome
from kvscope.policies.base import Policy
from kvscope.replay.curve import first_counted
from kvscope.replay.metrics import by_category
from kvscope.tuning.bootstrap import Bootstrap, Gain, Resampled
from kvscope.tuning.load import keeps_up
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Advance, Evaluator, PolicyAt, Trial, trial_of, ttft_s

ATTAINMENT_LOSS = 0.005
TAIL_RATIO = 1.02
MAX_P50_REGRESSION = 0.25
MIN_THROUGHPUT = -0.05
_FALLING = ("attainment", "prefill throughput")
_ALIKE = 0.02  # a difference in the target's percentile that does not matter


@dataclass(frozen=True, slots=True)
class Limits:
    """How much worse than LRU a policy may be.

    The 95 % interval of the change of SLO attainment (a share of the requests) must not reach below
    -`attainment_loss`, those of the ratios of TEL and of the target's percentile not above
    `tail_ratio`. The median must not grow by more than `max_p50_regression`, prefill throughput not
    change by less than `min_throughput` (shares of LRU's).
    """

    attainment_loss: float = ATTAINMENT_LOSS
    tail_ratio: float = TAIL_RATIO
    max_p50_regression: float = MAX_P50_REGRESSION
    min_throughput: float = MIN_THROUGHPUT


@dataclass(frozen=True, slots=True)
class Harm:
    """A limit that a policy breaks: the figure, its change against LRU, and how far it may go.

    For `attainment` (a difference of shares), `tel` and the percentile (shares of LRU's), `change`
    is the bad end of the 95 % interval.
    """

    figure: str
    change: float
    limit: float


@dataclass(frozen=True, slots=True)
class WindowTrial(Trial):
    """A trial compared with LRU at the present capacity on the same window.

    `gains` are by the names of kvscope.tuning.bootstrap, `attainment_gain` is a difference of
    shares; both are empty or 0 for LRU itself. `harms` are the limits that it breaks. They follow
    from `resampled`; `meeting_share` (0-1) of its resamples meet the target. `keeps_up`: the queue
    does not grow over the window. `ttft_s` are the latencies in order of arrival, in the target's
    view.
    """

    gains: Mapping[str, Gain]
    attainment_gain: Gain
    harms: tuple[Harm, ...]
    resampled: Resampled
    meeting_share: float
    keeps_up: bool
    ttft_s: NDArray[np.float64]
    categories: tuple[PartOutcome, ...]

    def recommendable(self, target: Target) -> bool:
        """Return whether it harms nothing and is significantly better than LRU."""
        return not self.harms and self.keeps_up and self.gains[target.objective].significant

    def preference(self, target: Target) -> tuple[bool, bool, float, int, float]:
        """Return the sort key of contenders, best first.

        What is recommendable, then what meets the SLO, then the share of requests within it to 0.1
        points, the percentile to 2 %, prefill throughput.
        """
        scale = np.log(max(self.target_s, 1e-9)) / np.log1p(_ALIKE)
        return (
            not self.recommendable(target),
            not self.meets(target),
            -round(self.attainment, 3),
            int(scale) if np.isfinite(scale) else np.iinfo(np.int64).max,
            -self.served_per_s,
        )


class Window:
    """One window of the trace: replays of policies, compared with LRU there."""

    def __init__(self, evaluator: Evaluator, limits: Limits) -> None:
        self.evaluator, self.target, self._limits = evaluator, evaluator.target, limits
        workload = evaluator.workload
        first = first_counted(workload.prompts, workload.setting.definition)
        self.bootstrap = Bootstrap(workload.prompts.conversation[first:], self.target)

    def measure(
        self, policy: Policy, capacity_blocks: int, baseline: WindowTrial | None = None
    ) -> WindowTrial:
        """Replay and return the window's trial, compared with `baseline`."""
        self.evaluator.prepare([policy])
        served = self.evaluator.served(policy, capacity_blocks)
        trial, times = trial_of(policy, capacity_blocks, served, self.target), None
        times = ttft_s(served, self.target)
        resampled = self.bootstrap.figures(times)
        gains: Mapping[str, Gain] = {}
        attainment, broken = Gain(0.0, 0.0, 0.0), ()
        if baseline is not None:
            gains = self.bootstrap.gains(baseline.resampled, resampled)
            attainment = self.bootstrap.attainment_gain(baseline.resampled, resampled)
            broken = self._harms(baseline, trial, attainment, gains)
        rate_scale = self.evaluator.workload.setting.rate_scale
        queued = self.target.view == "queued"
        return WindowTrial(
            **{field.name: getattr(trial, field.name) for field in fields(Trial)},
            gains=gains,
            attainment_gain=attainment,
            harms=broken,
            resampled=resampled,
            meeting_share=self.bootstrap.meeting_share(resampled),
            keeps_up=not queued or keeps_up(served, self.target.slo_s, rate_scale),
            ttft_s=times,
            categories=by_category(served, self.target.slo_s),
        )

    def measure_all(
        self,
        points: Sequence[PolicyAt],
        baseline: WindowTrial,
        advance: Advance | None = None,
    ) -> list[WindowTrial]:
        """Return `measure` of each policy and capacity, computed on all cores."""
        self.evaluator.prepare([policy for policy, _ in points])
        return self.evaluator.each(lambda point: self.measure(*point, baseline), points, advance)

    def _harms(
        self, baseline: Trial, trial: Trial, attainment: Gain, gains: Mapping[str, Gain]
    ) -> tuple[Harm, ...]:
        limits, most = self._limits, self._limits.tail_ratio - 1
        throughput = trial.served_per_s / baseline.served_per_s - 1
        changes = (
            Harm("attainment", attainment.low, -limits.attainment_loss),
            Harm("tel", -gains["tel"].low, most),
            Harm(self.target.rank_name, -gains[self.target.rank_name].low, most),
            Harm("p50", -gains["p50"].value, limits.max_p50_regression),
            Harm("prefill throughput", throughput, limits.min_throughput),
        )
        return tuple(
            harm
            for harm in changes
            if not (
                harm.change >= harm.limit
                if harm.figure in _FALLING
                else harm.change <= harm.limit
            )
        )

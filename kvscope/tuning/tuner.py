"""Choose on the training window, measure on the held-out one, decide what to run.

1. Every policy's parameters are searched at the user's capacity, on the training window.
2. So is the least capacity that meets the SLO, for LRU and for the policies that beat it.
3. The choice is replayed once over the whole trace and measured by the held-out requests, next to
   LRU, an infinite cache and the oracles.
4. Gains get intervals by the bootstrap; one whose interval contains 0 is none.

Source: Tail-Optimized Caching for LLM Inference, section 6 (the comparison, and the choice of xi).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, fields, replace
from threading import Event
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvscope.characterize.windows import Windows
from kvscope.core.runs import PartOutcome, RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.policies.base import Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.tail_belady import TailBelady
from kvscope.policies.tlru import TLru
from kvscope.replay.curve import first_counted
from kvscope.replay.metrics import by_category
from kvscope.replay.parameter_estimates import Estimates, bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.tuning.bootstrap import Bootstrap, Gain, Resampled
from kvscope.tuning.capacity import least_for_any, least_for_lru
from kvscope.tuning.ranking import rank_contenders
from kvscope.tuning.search import Contender, search, xi_hints
from kvscope.tuning.split import Split, split_windows, window_workloads
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Advance, Evaluator, PolicyAt, Trial, trial_of, ttft_s

Verdict = Literal["switch", "keep-lru", "add-capacity", "unreachable"]
Progress = Callable[[str], AbstractContextManager[Advance]]

ORACLES = (Belady, TailBelady)
WARMUP, HELD_OUT = 0.2, 0.4
SCALES = (0.5, 2.0)  # prefill that takes half and twice as long as assumed

_KEPT_POLICIES, _KEPT_SETTINGS = 3, 3  # that the search for capacities goes on with
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """The target, the variants that compete with LRU, and the capacities.

    `capacity_blocks` is the user's; None: where LRU gets half of the possible hits. The least
    capacity is searched from `lowest_blocks` to `highest_blocks`, None: to where LRU has all hits.
    `warmup` and `held_out` are shares of the requests. `scales` are factors of prefill time to
    repeat the tuning for.
    """

    target: Target
    variants: tuple[Variant, ...]
    capacity_blocks: int | None = None
    lowest_blocks: int = 0
    highest_blocks: int | None = None
    warmup: float = WARMUP
    held_out: float = HELD_OUT
    scales: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldOutTrial(Trial):
    """A trial on the held-out window, its parameters chosen before.

    `gains` are over LRU at the user's capacity, by the names of kvscope.tuning.bootstrap; empty for
    LRU there. They follow from `resampled`; `meeting_share` (0-1) of its resamples meet the target.
    `ttft_s` are the latencies in order of arrival, in the target's view.
    """

    gains: Mapping[str, Gain]
    resampled: Resampled
    meeting_share: float
    ttft_s: NDArray[np.float64]
    categories: tuple[PartOutcome, ...]


@dataclass(frozen=True, slots=True)
class RequiredCapacity:
    """The least capacity that meets the SLO on the training window, and its held-out trial.

    `would_need_blocks` is what the held-out window would have needed, where `held_out` does not
    meet the SLO; None where it does, or where no capacity would.
    """

    training: Trial
    held_out: Trial
    would_need_blocks: int | None


@dataclass(frozen=True, slots=True)
class PrefillScenario:
    """The answer if prefill took `times` as long: what to run, and what it would give.

    Latencies are at the target's percentile, of LRU at the user's capacity and of what to run.
    """

    times: float
    verdict: Verdict
    policy: str
    params: Mapping[str, float]
    capacity_blocks: int
    baseline_s: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The recommendation and all that it rests on.

    `chosen` is the policy that ranked first on the training window, measured at the user's
    capacity; `recommended` is what to run, which may be LRU, or have another capacity. `contenders`
    are the best of each policy, in the order of the training window; `explored` are all trials on
    that window, `infinite_training` is that of an infinite cache.
    """

    target: Target
    setting: RunSetting
    split: Split
    capacity_blocks: int
    estimates: Estimates
    verdict: Verdict
    recommended: HeldOutTrial
    baseline: HeldOutTrial
    chosen: HeldOutTrial
    contenders: tuple[HeldOutTrial, ...]
    infinite: HeldOutTrial
    infinite_training: Trial
    least_lru: RequiredCapacity | None
    least_any: RequiredCapacity | None
    explored: tuple[Trial, ...]
    capacity_origin: str = ""
    oracles: tuple[HeldOutTrial, ...] = ()
    scenarios: tuple[PrefillScenario, ...] = ()


def decide(
    target: Target,
    lru: HeldOutTrial,
    best: HeldOutTrial,
    larger: Callable[[], HeldOutTrial | None],
    *,
    reachable: bool,
) -> tuple[Verdict, HeldOutTrial]:
    """Return the verdict and what to run: `lru`, the `best` contender, or one with more capacity.

    `reachable`: an infinite cache meets the SLO. `larger` is called for `add-capacity` alone; it
    returns None where no larger capacity is known to help.
    """
    if lru.meets(target):
        return "keep-lru", lru
    better = target.objective in best.gains and best.gains[target.objective].significant
    choice = best if better else lru
    if not reachable:
        return "unreachable", choice
    if better and best.meets(target):
        return "switch", best
    return "add-capacity", larger() or choice


class Tuner:
    """The workloads of both windows, and the search for a recommendation."""

    def __init__(
        self,
        training: Workload,
        whole: Workload,
        options: TuningOptions,
        progress: Progress,
        stop: Event,
    ) -> None:
        target = options.target
        self.options, self.target, self.progress, self.stop = options, target, progress, stop
        self.training = Evaluator(training, target, stop=stop)
        self.held_out = Evaluator(whole, target, stop=stop)
        first = first_counted(whole.prompts, whole.setting.definition)
        self.bootstrap = Bootstrap(whole.prompts.conversation[first:], target)
        self.estimates = estimate_parameters(
            training.request_traffic, training.profile, target.slo_s, share=1.0
        )

    def close(self) -> None:
        """Drop the replays that have not begun."""
        self.training.close()
        self.held_out.close()

    def run(self, capacity: int, variants: Sequence[Variant], split: Split) -> TuningResult:
        """Return what to run at `capacity` blocks or more, and what that rests on."""
        names = ", ".join(variant.policy.name for variant in variants)
        with self.progress(f"searching {names} at {capacity:,} blocks") as advance:
            hints = xi_hints(self.training, capacity)
            contenders = search(self.training, variants, self.estimates, hints, capacity, advance)
            contenders = rank_contenders(self.training, contenders, advance)
        with self.progress("searching the least capacity") as advance:
            low, high = self.options.lowest_blocks, self._highest(self.training)
            lru = least_for_lru(self.training, low, high, advance)
            best = self._least_for_any(contenders, lru, capacity, advance)
        with self.progress("replaying the held-out window") as advance:
            baseline = self.measure(Lru(), capacity)
            *measured, infinite = self.measure_all(
                [
                    *((contender.best.policy, capacity) for contender in contenders),
                    (Lru(), _lossless(self.held_out)),
                ],
                baseline,
                advance,
            )
            infinite_training = self.training.trial(Lru(), _lossless(self.training))
            least_lru, least_any = self._required(lru), self._required(best)
        chosen = measured[0] if measured else baseline
        verdict, recommended = decide(
            self.target,
            baseline,
            chosen,
            lambda: self._larger(baseline, least_any, least_lru),
            reachable=infinite.meets(self.target) and infinite_training.meets(self.target),
        )
        return TuningResult(
            target=self.target,
            setting=self.held_out.workload.setting,
            split=split,
            capacity_blocks=capacity,
            estimates=self.estimates,
            verdict=verdict,
            recommended=recommended,
            baseline=baseline,
            chosen=chosen,
            contenders=tuple(measured),
            infinite=infinite,
            infinite_training=infinite_training,
            least_lru=least_lru,
            least_any=least_any,
            explored=tuple(self.training.trials.values()),
        )

    def measure(
        self, policy: Policy, capacity: int, baseline: HeldOutTrial | None = None
    ) -> HeldOutTrial:
        """Replay the whole trace and return its held-out requests; gains are over `baseline`."""
        self.held_out.workload.prepare([policy])
        served = self.held_out.served(policy, capacity)
        trial = trial_of(policy, capacity, served, self.target)
        times = ttft_s(served, self.target)
        resampled = self.bootstrap.figures(times)
        return HeldOutTrial(
            **{field.name: getattr(trial, field.name) for field in fields(Trial)},
            gains=self.bootstrap.gains(baseline.resampled, resampled) if baseline else {},
            resampled=resampled,
            meeting_share=self.bootstrap.meeting_share(resampled),
            ttft_s=times,
            categories=by_category(served, self.target.slo_s),
        )

    def measure_all(
        self, points: Sequence[PolicyAt], baseline: HeldOutTrial, advance: Advance
    ) -> list[HeldOutTrial]:
        """Return `measure` of each policy and capacity, computed on all cores."""
        self.held_out.workload.prepare([policy for policy, _ in points])
        return self.held_out.each(lambda point: self.measure(*point, baseline), points, advance)

    def _larger(
        self,
        baseline: HeldOutTrial,
        least_any: RequiredCapacity | None,
        least_lru: RequiredCapacity | None,
    ) -> HeldOutTrial | None:
        """Return what meets the SLO in both windows at the least capacity beyond the present one.

        Another policy counts only if it is significantly better than LRU at that capacity. That the
        held-out window is looked at here favours no policy: it is what traffic turned out to need.
        """
        for least in (least_any, least_lru):
            if least is None:
                continue
            needed = least.would_need_blocks or least.training.capacity_blocks
            if needed <= baseline.capacity_blocks:
                continue
            measured = self.measure(least.training.policy, needed, baseline)
            if least is least_lru or self.bootstrap.significantly_better(
                self.measure(Lru(), needed).resampled, measured.resampled
            ):
                return measured
        return None

    def _least_for_any(
        self,
        contenders: Sequence[Contender],
        lru: Trial | None,
        capacity: int,
        advance: Advance,
    ) -> Trial | None:
        """Search with the settings that did best at the user's capacity, up to what LRU needs."""
        settings = [
            trial.policy
            for contender in contenders[:_KEPT_POLICIES]
            for trial in contender.trials[:_KEPT_SETTINGS]
        ]
        high = lru.capacity_blocks if lru else self._highest(self.training)
        if not settings or not high:
            return lru
        low, policies = self.options.lowest_blocks, [Lru(), *settings]
        return least_for_any(self.training, policies, low, high, advance, also=capacity)

    def _required(self, training: Trial | None) -> RequiredCapacity | None:
        """Return the least capacity with its trial on the held-out window."""
        if training is None:
            return None
        policy, blocks = training.policy, training.capacity_blocks
        held_out = self.held_out.trial(policy, blocks)
        if held_out.meets(self.target):
            return RequiredCapacity(training, held_out, None)
        more = least_for_any(self.held_out, [policy], blocks, self._highest(self.held_out))
        return RequiredCapacity(training, held_out, more.capacity_blocks if more else None)

    def _highest(self, evaluator: Evaluator) -> int:
        """Return the largest capacity to search."""
        limit = self.options.highest_blocks
        return _lossless(evaluator) if limit is None else min(limit, _lossless(evaluator))


def _lossless(evaluator: Evaluator) -> int:
    """Return the least capacity at which LRU evicts nothing that is reused."""
    curve = evaluator.workload.curve
    return max(curve.capacity_for(curve.ideal), 1)


def tune(
    prompts: Prompts,
    setting: RunSetting,
    options: TuningOptions,
    windows: Windows,
    *,
    lineage: Lineage,
    progress: Progress,
    stop: Event | None = None,
) -> TuningResult:
    """Return the recommendation for a trace; a set `stop` raises Stopped.

    `lineage` is the origin of the trace's conversations. Raises InputError where the trace is too
    short to be split, or lacks the times that queues need; UsageError for shares that cannot split
    it.
    """
    split = split_windows(prompts, options.warmup, options.held_out, options.target.percentile)
    with progress("preparing"):
        early, whole = window_workloads(
            prompts, split, replace(setting, slo_s=options.target.slo_s), windows, lineage
        )
        capacity, origin = options.capacity_blocks, "as asked"
        if capacity is None:
            capacity = max(early.curve.capacity_for(_HALF * early.curve.ideal), 1)
            origin = "where LRU gets half of the hits that there are, since none was named"
    tuner = Tuner(early, whole, options, progress, stop or Event())
    with closing(tuner):
        result = tuner.run(capacity, options.variants, split)
        with progress("replaying the oracles") as advance:
            points = [(bind(Variant(policy), tuner.estimates), capacity) for policy in ORACLES]
            oracles = tuner.measure_all(points, result.baseline, advance)
        return replace(
            result,
            capacity_origin=origin,
            oracles=tuple(oracles),
            scenarios=tuple(_scenario(tuner, result, times) for times in options.scales),
        )


def _scenario(tuner: Tuner, result: TuningResult, times: float) -> PrefillScenario:
    """Return the answer if prefill took `times` as long, the chosen policy being searched again."""
    training, whole = (
        evaluator.workload.with_prefill(times) for evaluator in (tuner.training, tuner.held_out)
    )
    policy = result.chosen.policy
    variants = (variant for variant in tuner.options.variants if _covers(variant, policy))
    variant = next(variants, Variant(TLru))
    scaled = Tuner(training, whole, tuner.options, tuner.progress, tuner.stop)
    with closing(scaled):
        other = scaled.run(result.capacity_blocks, (variant,), result.split)
    best = other.recommended
    return PrefillScenario(
        times=times,
        verdict=other.verdict,
        baseline_s=other.baseline.target_s,
        policy=best.policy.name,
        params=best.policy.values,
        capacity_blocks=best.capacity_blocks,
        expected_s=best.target_s,
    )


def _covers(variant: Variant, policy: Policy) -> bool:
    """Return whether a search of the variant may have found the policy."""
    return variant.policy is type(policy) and (
        variant.given.items() <= policy.values.items() and variant.leaves in {None, policy.evicts}
    )

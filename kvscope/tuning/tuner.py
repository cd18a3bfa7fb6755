"""The procedure: choose on one part of a trace, judge on the next, say what to do.

1. Every policy's parameters are searched at the capacity the user has, on the part to choose on.
2. So is the least capacity that keeps the SLO, for LRU and for the policies that beat it.
3. What was chosen is replayed once over the whole trace, and judged by the requests that nothing
   was chosen on: with LRU, an infinite cache and the clairvoyant ceilings beside it.
4. Gains get intervals by drawing judged requests; one whose interval contains 0 is none.

Source: Tail-Optimized Caching for LLM Inference, section 6 (the comparison, and the choice of xi).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from threading import Event

from kvscope.characterize.windows import Windows
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.policies.base import Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.tail_belady import TailBelady
from kvscope.policies.tlru import TLru
from kvscope.replay.curve import first_counted
from kvscope.replay.metrics import by_category
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.tuning.bootstrap import Bootstrap, surely_better
from kvscope.tuning.capacity import least_for_any, least_for_lru
from kvscope.tuning.objective import Question, Trial, tried, ttft_s
from kvscope.tuning.prefer import preferred
from kvscope.tuning.result import Judged, Least, Scaled, Tuning, decide
from kvscope.tuning.search import Advance, Contender, Evaluator, PolicyAt, hints_from, search
from kvscope.tuning.split import Split, parts, split

Progress = Callable[[str], AbstractContextManager[Advance]]

CEILINGS = (Belady, TailBelady)  # what knows the future, for comparison

_KEPT_POLICIES, _KEPT_SETTINGS = 3, 3  # that the search for capacities goes on with


class Tuner:
    """The workloads of both windows, and what is to be recommended for them."""

    def __init__(
        self,
        training: Workload,
        whole: Workload,
        question: Question,
        progress: Progress,
        stop: Event,
    ) -> None:
        target = question.target
        self.question, self.target, self.progress, self.stop = question, target, progress, stop
        self.training = Evaluator(training, target, stop=stop)
        self.held_out = Evaluator(whole, target, stop=stop)
        first = first_counted(whole.prompts, whole.setting.definition)
        self.bootstrap = Bootstrap(whole.prompts.conversation[first:], target)
        self.lru = Lru()
        self.found = estimate_parameters(
            training.request_traffic, training.profile, target.slo_s, share=1.0
        )

    def close(self) -> None:
        """Drop what has not begun."""
        self.training.close()
        self.held_out.close()

    def decide(self, capacity: int, variants: Sequence[Variant], split: Split) -> Tuning:
        """Return what to run at `capacity` blocks or more, and what that rests on."""
        at = f"{capacity:,} blocks"
        names = ", ".join(variant.policy.name for variant in variants)
        with self.progress(f"searching {names} at {at}") as advance:
            hints = hints_from(self.training, self.lru, capacity)
            contenders = search(self.training, variants, self.found, hints, capacity, advance)
            contenders = preferred(self.training, self.lru, contenders, advance)
        with self.progress("searching the least capacity") as advance:
            lru = self._least_for_lru(advance)
            best = self._least_for_any(contenders, lru, capacity, advance)
        with self.progress("replaying the held-out window") as advance:
            baseline = self.judged(self.lru, capacity)
            *judged, infinite = self._all_judged(
                [
                    *((contender.best.policy, capacity) for contender in contenders),
                    (self.lru, _useful(self.held_out)),
                ],
                baseline,
                advance,
            )
            infinite_chosen = self.training.trial(self.lru, _useful(self.training))
            least_lru, least_best = self._settled(lru), self._settled(best)
        chosen = judged[0] if judged else baseline
        verdict, recommended = decide(
            baseline,
            chosen,
            lambda: self._larger(baseline, least_best, least_lru),
            lru_meets=baseline.trial.meets(self.target),
            best_meets=chosen.trial.meets(self.target),
            best_is_better=bool(judged) and surely_better(chosen.gains, self.target),
            reachable=infinite.trial.meets(self.target) and infinite_chosen.meets(self.target),
        )
        return Tuning(
            target=self.target,
            setting=self.held_out.workload.setting,
            split=split,
            capacity_blocks=capacity,
            found=self.found,
            verdict=verdict,
            recommended=recommended,
            baseline=baseline,
            chosen=chosen,
            contenders=tuple(judged),
            infinite=infinite,
            infinite_chosen=infinite_chosen,
            least_lru=least_lru,
            least_best=least_best,
            explored=tuple(self.training.tried.values()),
        )

    def _larger(
        self, baseline: Judged, least_best: Least | None, least_lru: Least | None
    ) -> Judged | None:
        """Return what meets the SLO in both windows at the least capacity beyond the present one.

        Another policy counts only if it is significantly better than LRU at that capacity. That the
        held-out window is looked at here favours no policy: it is what traffic turned out to need.
        """
        for least in (least_best, least_lru):
            if least is None:
                continue
            needed = least.would_need_blocks or least.chosen.capacity_blocks
            if needed <= baseline.trial.capacity_blocks:
                continue
            judged = self.judged(least.chosen.policy, needed, baseline)
            if least is least_lru or self.bootstrap.surely_less(
                self.judged(self.lru, needed).drawn, judged.drawn
            ):
                return judged
        return None

    def ceilings(self, baseline: Judged) -> tuple[Judged, ...]:
        """What knowing the future would give at the same capacity."""
        with self.progress("judging what knows the future") as advance:
            bound = [bind(Variant(policy), self.found) for policy in CEILINGS]
            at = baseline.trial.capacity_blocks
            return tuple(self._all_judged([(one, at) for one in bound], baseline, advance))

    def _all_judged(
        self, questions: Sequence[PolicyAt], baseline: Judged, advance: Advance
    ) -> list[Judged]:
        self.held_out.workload.prepare([policy for policy, _ in questions])
        return self.held_out.each(lambda one: self.judged(*one, baseline), questions, advance)

    def judged(self, policy: Policy, capacity: int, baseline: Judged | None = None) -> Judged:
        """A replay of the whole trace, by its judged requests; gains are over `baseline`."""
        self.held_out.workload.prepare([policy])
        served = self.held_out.served(policy, capacity)
        times = ttft_s(served, self.target)
        trial = tried(policy, capacity, served, self.target)
        drawn = self.bootstrap.figures(times)
        return Judged(
            trial=trial,
            gains=self.bootstrap.gains(baseline.drawn, drawn) if baseline else {},
            drawn=drawn,
            keeps=self.bootstrap.keeps(drawn),
            ttft_s=times,
            categories=by_category(served, self.target.slo_s),
        )

    def _least_for_lru(self, advance: Advance) -> Trial | None:
        low, high = self.question.lowest_blocks, self._highest(self.training)
        return least_for_lru(self.training, self.lru, low, high, advance)

    def _least_for_any(
        self,
        contenders: Sequence[Contender],
        lru: Trial | None,
        capacity: int,
        advance: Advance | None,
    ) -> Trial | None:
        """With the settings that did best where the user is, up to what LRU needs."""
        settings = [
            trial.policy
            for one in contenders[:_KEPT_POLICIES]
            for trial in one.trials[:_KEPT_SETTINGS]
        ]
        high = lru.capacity_blocks if lru else self._highest(self.training)
        if not settings or not high:
            return lru
        low = self.question.lowest_blocks
        every = [self.lru, *settings]
        return least_for_any(self.training, every, low, high, advance, also=capacity)

    def _settled(self, least: Trial | None) -> Least | None:
        """How the least capacity does on the judged part."""
        if least is None:
            return None
        trial = self.held_out.trial(least.policy, least.capacity_blocks)
        if trial.meets(self.target):
            return Least(least, trial, None)
        high = self._highest(self.held_out)
        more = least_for_any(self.held_out, [least.policy], least.capacity_blocks, high)
        return Least(least, trial, more.capacity_blocks if more else None)

    def _highest(self, evaluator: Evaluator) -> int:
        """The largest capacity worth a look."""
        limit = self.question.highest_blocks
        return _useful(evaluator) if limit is None else min(limit, _useful(evaluator))


def _useful(evaluator: Evaluator) -> int:
    """The least capacity at which LRU loses nothing that is reused."""
    curve = evaluator.workload.curve
    return max(curve.capacity_for(curve.ideal), 1)


_HALF = 0.5


def tune(
    prompts: Prompts,
    setting: RunSetting,
    question: Question,
    windows: Windows,
    *,
    lineage: Lineage,
    progress: Progress,
    stop: Event | None = None,
) -> Tuning:
    """Answer `question` for a trace. `progress` is told what is done; `stop` ends it with Stopped.

    `lineage` is how the trace knows its conversations. Raises InputError where the trace is too
    short to be split, or tells no time for queues; UsageError for shares that cannot split it.
    """
    parted = split(prompts, question.warmup, question.judged, question.target.percentile)
    with progress("preparing"):
        early, whole = parts(
            prompts, parted, replace(setting, slo_s=question.target.slo_s), windows, lineage
        )
        capacity, origin = _capacity(early, question)
    tuner = Tuner(early, whole, question, progress, stop or Event())
    with closing(tuner):
        tuning = tuner.decide(capacity, question.variants, parted)
        return replace(
            tuning,
            capacity_origin=origin,
            ceilings=tuner.ceilings(tuning.baseline),
            scaled=tuple(_scaled(tuner, tuning, times) for times in question.scales),
        )


def _scaled(tuner: Tuner, tuning: Tuning, times: float) -> Scaled:
    """Return the answer if prefill took `times` as long, the chosen policy being searched again."""
    training, whole = (
        evaluator.workload.with_prefill(times) for evaluator in (tuner.training, tuner.held_out)
    )
    chosen = tuning.chosen.trial.policy
    variants = (variant for variant in tuner.question.variants if _of(variant, chosen))
    variant = next(variants, Variant(TLru))
    scaled = Tuner(training, whole, tuner.question, tuner.progress, tuner.stop)
    with closing(scaled):
        other = scaled.decide(tuning.capacity_blocks, (variant,), tuning.split)
    best = other.recommended.trial
    return Scaled(
        times=times,
        verdict=other.verdict,
        baseline_s=other.baseline.trial.target_s,
        policy=best.policy.name,
        params=best.policy.values,
        capacity_blocks=best.capacity_blocks,
        expected_s=best.target_s,
    )


def _of(variant: Variant, policy: Policy) -> bool:
    """Whether a search of the variant may have come to the policy."""
    return variant.policy is type(policy) and (
        variant.given.items() <= policy.values.items() and variant.leaves in {None, policy.evicts}
    )


def _capacity(early: Workload, question: Question) -> tuple[int, str]:
    if question.capacity_blocks is not None:
        return question.capacity_blocks, "as asked"
    half = max(early.curve.capacity_for(_HALF * early.curve.ideal), 1)
    return half, "where LRU gets half of the hits that there are, since none was named"

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
from dataclasses import dataclass, replace
from threading import Event

import numpy as np
from numpy.typing import NDArray

from kvscope.characterize.windows import Windows
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage
from kvscope.policies.base import Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.tail_belady import TailBelady
from kvscope.policies.tlru import TLru
from kvscope.replay.curve import first_counted
from kvscope.replay.summary import by_category
from kvscope.replay.variants import Variant, bind, found_values
from kvscope.replay.workload import Workload
from kvscope.store.prompts import Prompts
from kvscope.tune.bootstrap import Bootstrap, surely_better
from kvscope.tune.capacity import least_for_any, least_for_lru
from kvscope.tune.objective import Question, Trial, tried, ttft_s
from kvscope.tune.prefer import preferred
from kvscope.tune.result import Judged, Least, Scaled, Tuning, Verdict, decide
from kvscope.tune.search import Advance, Contender, Evaluator, PolicyAt, hints_from, search
from kvscope.tune.split import parts, split

Progress = Callable[[str], AbstractContextManager[Advance]]

CEILINGS = (Belady, TailBelady)  # what knows the future, for comparison

_KEPT_POLICIES, _KEPT_SETTINGS = 3, 3  # that the search for capacities goes on with


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict with what it rests on; `sure` is whether the choice surely beats LRU.

    Fields as in `Tuning`.
    """

    verdict: Verdict
    sure: bool
    baseline: Judged
    contenders: tuple[Judged, ...]
    infinite: Judged
    infinite_chosen: Trial
    least_lru: Least | None
    least_best: Least | None

    @property
    def chosen(self) -> Judged:
        """What did best on the part to choose on."""
        return self.contenders[0] if self.contenders else self.baseline


class Tuner:
    """Both parts of a trace, and what is asked of them."""

    def __init__(
        self,
        early: Workload,
        whole: Workload,
        question: Question,
        progress: Progress,
        stop: Event,
    ) -> None:
        self.question, self.progress, self.stop = question, progress, stop
        self.target = question.target
        self.choose = Evaluator(early, question.target, stop=stop)
        self.judge = Evaluator(whole, question.target, stop=stop)
        self.bootstrap = Bootstrap(_judged_conversations(whole), question.target)
        self.lru = Lru()
        self.found = found_values(early.turns, early.profile, question.target.slo_s, share=1.0)

    def close(self) -> None:
        """End what is under way."""
        self.choose.close()
        self.judge.close()

    def decide(self, capacity: int, variants: Sequence[Variant]) -> Decision:
        """Choose, judge, and what to do."""
        at = f"{capacity:,} blocks"
        with self.progress(
            f"searching {', '.join(one.policy.name for one in variants)} at {at}"
        ) as (advance):
            hints = hints_from(self.choose, self.lru, capacity)
            contenders = search(self.choose, variants, self.found, hints, capacity, advance)
            contenders = preferred(self.choose, self.lru, contenders, advance)
        with self.progress("searching the least capacity") as advance:
            lru = self._least_for_lru(self.choose, advance)
            best = self._least_for_any(contenders, lru, capacity, advance)
        with self.progress("judging") as advance:
            baseline = self.judged(self.lru, capacity)
            *judged, infinite = self._all_judged(
                [
                    *((one.best.policy, capacity) for one in contenders),
                    (self.lru, _useful(self.judge)),
                ],
                baseline,
                advance,
            )
            infinite_chosen = self.choose.trial(self.lru, _useful(self.choose))
            least_lru, least_best = self._settled(lru), self._settled(best)
        sure = bool(judged) and surely_better(judged[0].gains, self.target)
        return Decision(
            verdict=decide(
                lru_meets=baseline.trial.meets(self.target),
                best_meets=bool(judged) and judged[0].trial.meets(self.target),
                best_is_sure=sure,
                reachable=infinite.trial.meets(self.target) and infinite_chosen.meets(self.target),
            ),
            sure=sure,
            baseline=baseline,
            contenders=tuple(judged),
            infinite=infinite,
            infinite_chosen=infinite_chosen,
            least_lru=least_lru,
            least_best=least_best,
        )

    def recommended(self, made: Decision) -> Judged:
        """What to run: another policy only if it is surely better and LRU is not good enough."""
        surely = made.sure and made.verdict != "keep-lru"
        if made.verdict != "add-capacity":
            return made.chosen if surely else made.baseline
        have = made.baseline.trial.capacity_blocks
        for least in (made.least_best, made.least_lru):
            if least is None or (blocks := _more(least, have)) is None:
                continue
            found = self.judged(least.chosen.policy, blocks, made.baseline)
            if least is made.least_lru or self._beats_lru(found):
                return found
        return made.chosen if surely else made.baseline

    def _beats_lru(self, found: Judged) -> bool:
        """Whether a policy is surely better than LRU at its own capacity."""
        there = self.judged(self.lru, found.trial.capacity_blocks)
        return self.bootstrap.surely_less(there.drawn, found.drawn)

    def ceilings(self, baseline: Judged) -> tuple[Judged, ...]:
        """What knowing the future would give at the same capacity."""
        with self.progress("judging what knows the future") as advance:
            bound = [bind(Variant(policy), self.found) for policy in CEILINGS]
            at = baseline.trial.capacity_blocks
            return tuple(self._all_judged([(one, at) for one in bound], baseline, advance))

    def _all_judged(
        self, questions: Sequence[PolicyAt], baseline: Judged, advance: Advance
    ) -> list[Judged]:
        self.judge.workload.prepare([policy for policy, _ in questions])
        return self.judge.each(lambda one: self.judged(*one, baseline), questions, advance)

    def judged(self, policy: Policy, capacity: int, baseline: Judged | None = None) -> Judged:
        """A replay of the whole trace, by its judged requests; gains are over `baseline`."""
        self.judge.workload.prepare([policy])
        served = self.judge.served(policy, capacity)
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

    def _least_for_lru(self, evaluator: Evaluator, advance: Advance | None = None) -> Trial | None:
        low, high = self.question.lowest_blocks, self._highest(evaluator)
        return least_for_lru(evaluator, self.lru, low, high, advance)

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
        high = lru.capacity_blocks if lru else self._highest(self.choose)
        if not settings or not high:
            return lru
        low = self.question.lowest_blocks
        every = [self.lru, *settings]
        return least_for_any(self.choose, every, low, high, advance, also=capacity)

    def _settled(self, least: Trial | None) -> Least | None:
        """How the least capacity does on the judged part."""
        if least is None:
            return None
        trial = self.judge.trial(least.policy, least.capacity_blocks)
        if trial.meets(self.target):
            return Least(least, trial, None)
        high = self._highest(self.judge)
        more = least_for_any(self.judge, [least.policy], least.capacity_blocks, high)
        return Least(least, trial, more.capacity_blocks if more else None)

    def _highest(self, evaluator: Evaluator) -> int:
        """The largest capacity worth a look."""
        limit = self.question.highest_blocks
        return _useful(evaluator) if limit is None else min(limit, _useful(evaluator))


def _more(least: Least, have: int) -> int | None:
    """A capacity beyond the present one that keeps the SLO in both parts, None if none is known.

    That the judged part is looked at here favours no policy: it is what traffic turned out to need.
    """
    needed = least.would_need_blocks or least.chosen.capacity_blocks
    return needed if needed > have else None


def _judged_conversations(whole: Workload) -> NDArray[np.int32]:
    return whole.prompts.conversation[first_counted(whole.prompts, whole.setting.definition) :]


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
        made = tuner.decide(capacity, question.variants)
        return Tuning(
            target=question.target,
            setting=whole.setting,
            split=parted,
            capacity_blocks=capacity,
            capacity_origin=origin,
            found=tuner.found,
            verdict=made.verdict,
            recommended=tuner.recommended(made),
            baseline=made.baseline,
            chosen=made.chosen,
            contenders=made.contenders,
            ceilings=tuner.ceilings(made.baseline),
            infinite=made.infinite,
            infinite_chosen=made.infinite_chosen,
            least_lru=made.least_lru,
            least_best=made.least_best,
            explored=tuple(tuner.choose.tried.values()),
            scaled=tuple(_scaled(tuner, made, times) for times in question.scales),
        )


def _scaled(tuner: Tuner, made: Decision, times: float) -> Scaled:
    """The answer with the same policy's parameters searched anew, were prefill so much slower."""
    early, whole = (one.workload.with_prefill(times) for one in (tuner.choose, tuner.judge))
    other = Tuner(early, whole, tuner.question, tuner.progress, tuner.stop)
    chosen = made.chosen.trial.policy
    variant = next((one for one in tuner.question.variants if _of(one, chosen)), Variant(TLru))
    with closing(other):
        found = other.decide(made.baseline.trial.capacity_blocks, (variant,))
        best = other.recommended(found)
    return Scaled(
        times=times,
        verdict=found.verdict,
        baseline_s=found.baseline.trial.target_s,
        policy=best.trial.policy.name,
        params=best.trial.policy.values,
        capacity_blocks=best.trial.capacity_blocks,
        expected_s=best.trial.target_s,
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

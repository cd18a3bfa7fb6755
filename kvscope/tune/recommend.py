"""The procedure: choose on one part of a trace, judge on the next, say what to do.

1. Every policy's parameters are searched at the capacity the user has, on the part to choose on.
2. So is the least capacity that keeps the SLO, for LRU and for the policies that beat it.
3. What was chosen is replayed once over the whole trace, and judged by the requests that nothing
   was chosen on: with LRU, an infinite cache and the clairvoyant ceilings beside it.
4. Gains get intervals by drawing judged requests; one whose interval contains 0 is none.

Source: Tail-Optimized Caching for LLM Inference, section 6 (the comparison, and the choice of xi).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from threading import Event

from kvscope.characterize.windows import Windows
from kvscope.facts import Lineage, RunSetting
from kvscope.policies.base import Policy
from kvscope.policies.tlru import TLru
from kvscope.simulate.variants import Variant
from kvscope.simulate.workload import Workload
from kvscope.store.prompts import Prompts
from kvscope.tune.facts import Scaled, Tuning
from kvscope.tune.question import Question
from kvscope.tune.split import parts, split
from kvscope.tune.tuner import Decision, Progress, Tuner

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

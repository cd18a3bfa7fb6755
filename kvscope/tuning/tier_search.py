"""The search of a tier: sizes first, then the options of its way to offload, one after the other.

Every way is replayed at every size as it is. At the size that would be chosen and at smaller ones,
each option in turn takes the value that gains on the training window, and keeps its own where none
does. So replays grow with the number of values, not with that of their combinations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from kvscope.replay.parameter_estimates import Estimates, bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.tuning.tier_trial import (
    ALIKE,
    DEFAULT_INTERVAL,
    Options,
    TierCandidate,
    TierPlan,
    TierTrial,
    TierWindow,
    about_lowest,
    candidate_of,
)
from kvscope.tuning.trial import Advance
from kvscope.vllm_sim.offload_engines import parse_offload
from kvscope.vllm_sim.offload_spec import OffloadSpec

_POLICY, _THRESHOLD = "eviction_policy", "store_threshold"
_PREFETCHES = "hicache_storage_prefetch_policy"
_INTERVAL, _OUTPUTS = "prefix_cache_retention_interval", "offload_prompt_only"


def explore(
    plan: TierPlan, training: TierWindow, advance: Advance
) -> tuple[list[TierTrial], list[TierTrial]]:
    """Return all trials on the training window, and those worth comparing.

    These are all sizes of every way as it is, and each searched size with the best options. Of a
    hybrid model, the interval between its windows is one, searched first, and with outputs stored
    too: those are hit at the windows that it keeps alone.
    """
    plain = training.all(plan.candidates, advance)
    explored, worth = list(plain), list(plain)
    estimates = _estimates(plan, training.evaluator.workload)
    for way in dict.fromkeys(map(_way, plain)):
        leading = _around(plan, training, [each for each in plain if _way(each) == way])
        own = plan.options.get(way, ())
        with_outputs = tuple(each for each in own if each[0] == _OUTPUTS and plan.intervals)
        for name, values in (*_intervals(plan), *own):
            also = with_outputs if name == _INTERVAL else ()
            varied = [
                _varied(plan, candidate_of(each), (name, values), also, estimates)
                for each in leading
            ]
            trials = training.all([each for several in varied for each in several], advance)
            explored += trials
            for at, several in enumerate(varied):
                for trial in trials:
                    if trial.candidate in several and gains(trial, leading[at]):
                        leading[at] = trial
        worth += [each for each in leading if candidate_of(each) not in plan.candidates]
    return explored, worth


def with_parameters(plan: TierPlan, training: Workload) -> TierPlan:
    """Return the plan with all parameters of policies of kvscope that candidates state.

    What is not given is estimated on the training window, as for those that the search tries.
    """

    def bound(candidate: TierCandidate) -> TierCandidate:
        spec = parse_offload(candidate.offload)
        if not isinstance(spec, OffloadSpec) or spec.policy is None:
            return candidate
        return replace(candidate, offload=_bound(spec, _estimates(plan, training)).text)

    return replace(plan, candidates=tuple(map(bound, plan.candidates)))


def gains(trial: TierTrial, other: TierTrial) -> bool:
    """Return whether a trial is better by more than does not matter.

    By the target's percentile; where that is alike by GPU time, and where both are by price.
    """
    figures = (
        (trial.trial.target_s, other.trial.target_s),
        (trial.prefill_share, other.prefill_share),
        (trial.cost_hour, other.cost_hour),
    )
    for own, its in figures:
        if own < its * (1 - ALIKE):
            return True
        if own > its * (1 + ALIKE):
            return False
    return False


def _intervals(plan: TierPlan) -> Options:
    """Return the intervals to search, as those of an option: others than the pool's."""
    others = (each for each in (DEFAULT_INTERVAL, *plan.intervals) if each != plan.interval)
    return ((_INTERVAL, tuple(others)),) if plan.intervals else ()


def _varied(
    plan: TierPlan,
    candidate: TierCandidate,
    option: tuple[str, tuple[object, ...]],
    also: Options,
    estimates: Estimates,
) -> list[TierCandidate]:
    """Return a candidate with each other value of an option, and of each with those of others."""
    name, values = option
    varied = [_with(candidate, name, value, estimates) for value in values]
    for other, its in also:
        varied += [_with(each, other, value, estimates) for each in varied for value in its]
    allowed = (each for each in varied if each != candidate and plan.safe(each))
    return list(allowed) if _takes(candidate, name) else []


def _way(trial: TierTrial) -> str:
    return candidate_of(trial).offload


def _takes(candidate: TierCandidate, option: str) -> bool:
    """Return whether an engine takes an option: with files below, or without."""
    return option != (_THRESHOLD if candidate.files_bytes else _PREFETCHES)


def _around(plan: TierPlan, training: TierWindow, sizes: Sequence[TierTrial]) -> list[TierTrial]:
    """Return the sizes of each kind of tiers at which options are searched, ascending.

    The size that would be chosen without options, and the two below it; where the pool alone meets
    the SLO, the size that saves most takes the place of one of these. Of a hybrid model that misses
    it with all sizes, the next larger one and the largest too: what an interval keeps takes room.
    """
    alone, leading = training.baseline, []
    for kinds in dict.fromkeys(candidate_of(each).kinds for each in sizes):
        own = [each for each in sizes if candidate_of(each).kinds == kinds]
        own.sort(key=lambda each: candidate_of(each).sizes)
        met = alone.trial.meets(plan.target)  # then any size meets it
        at = own.index((about_lowest(own) if met else plan.nearest(alone, own))[0])
        searched = {at, at - 1, at - 2}
        if met and plan.gpu_hour is not None:
            nets = [plan.net_hour(alone, each) for each in own]
            searched = {at, at - 1, nets.index(max(nets))}
        if plan.intervals and not own[at].trial.meets(plan.target):
            searched |= {min(at + 1, len(own) - 1), len(own) - 1}
        leading += [own[each] for each in sorted(searched) if each >= 0]
    return leading


def _with(candidate: TierCandidate, name: str, value: Any, estimates: Estimates) -> TierCandidate:
    """Return a candidate with another value of an option; a policy's parameters are estimated."""
    if name == _INTERVAL:
        return replace(candidate, interval=value)
    spec = parse_offload(candidate.offload)
    if isinstance(spec, OffloadSpec):
        own = () if name == _POLICY else spec.params
        spec = _bound(replace(spec, params=own, **{name: value}), estimates)
    else:
        spec = replace(spec, **{name: value})  # type: ignore[type-var]
    return replace(candidate, offload=spec.text)


def _estimates(plan: TierPlan, training: Workload) -> Estimates:
    traffic, slo_s = training.request_traffic, plan.target.slo_s
    return estimate_parameters(traffic, training.profile, slo_s, share=1.0)


def _bound(spec: OffloadSpec, estimates: Estimates) -> OffloadSpec:
    """Return the spec with every parameter of its policy, estimates in whole tokens."""
    given = dict(spec.params)
    spec = spec.bound(lambda kind, own: bind(Variant(kind, own), estimates))
    params = tuple((key, given.get(key, _whole(each))) for key, each in spec.params)
    return replace(spec, params=params)


def _whole(value: float) -> float:
    """Return whole tokens; an infinite number as the most that a parameter takes."""
    return float(round(value)) if math.isfinite(value) else 1e15

"""Search the best parameters of every policy at one capacity, on the training window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.parameters import Parameter
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.replay.parameter_estimates import Estimates, bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Evaluator, Progress, Trial

XI = "xi_tokens"
REFINEMENTS = 3
_AROUND = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_HINTS = (0.5, 0.75, 0.9, 0.95, 0.99)

Values = Mapping[str, Sequence[float]]
Rank = Callable[[Trial], tuple[float, ...]]
"""A function that returns the sort key of a trial, the best first."""


class Contender(Struct, frozen=True):
    """One variant of a policy and its trials at one capacity, the best first."""

    variant: Variant
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """Return the trial with the best parameters."""
        return self.trials[0]


def search(
    evaluator: Evaluator,
    variants: Sequence[Variant],
    estimates: Estimates,
    hints: Values,
    capacity_blocks: int,
    rank: Rank,
    progress: Progress,
) -> list[Contender]:
    """Return each variant with its best parameters, the best variant first.

    First the values of each parameter are tried, with the other parameters unchanged, then up to 3
    times those half-way between the best value and its neighbours. `rank` returns a trial's sort
    key; `progress` takes a step's name and its number of replays. All variants run in parallel.
    """
    names = ", ".join(variant.policy.name for variant in variants)

    def evaluate(groups: Sequence[Sequence[Policy]], how: str = "searching") -> list[list[Trial]]:
        points = [(policy, capacity_blocks) for group in groups for policy in group]
        with progress(f"{how} {names} at {capacity_blocks:,} blocks", len(points)) as advance:
            trials = iter(evaluator.evaluate(points, advance))
        return [sorted((next(trials) for _ in group), key=rank) for group in groups]

    values = [search_values(variant, estimates, hints) for variant in variants]
    groups = [
        coarse(variant, estimates, space) for variant, space in zip(variants, values, strict=True)
    ]
    ranked = evaluate(groups)
    for _ in range(REFINEMENTS):
        groups = []
        for trials, space in zip(ranked, values, strict=True):
            groups.append(list(finer(trials[0].policy, space)))
            for policy in groups[-1]:
                for name in space:
                    space[name] = sorted({*space[name], policy.values[name]})
        if not any(groups):
            break
        ranked = [
            sorted([*trials, *new], key=rank)
            for trials, new in zip(ranked, evaluate(groups, "refining"), strict=True)
        ]
    contenders = [
        Contender(variant, tuple(trials)) for variant, trials in zip(variants, ranked, strict=True)
    ]
    return sorted(contenders, key=lambda contender: rank(contender.best))


def search_values(variant: Variant, estimates: Estimates, hints: Values) -> dict[str, list[float]]:
    """Return the values to try of each parameter that the variant does not state, ascending.

    These are the policy's own, the further values that `hints` maps to the parameter's name, and
    for xi 0.25 to 2 times its estimate, if any (the tokens that are prefilled within the SLO). The
    result maps names to values; parameters without values are left out.
    """
    chosen: dict[str, list[float]] = {}
    for parameter in variant.policy.parameters:
        if parameter.name in variant.given:
            continue
        values = [*parameter.search, *hints.get(parameter.name, ())]
        if parameter.name == XI and XI in estimates:
            values += [share * estimates[XI].value for share in _AROUND]
        if values:
            chosen[parameter.name] = sorted({_rounded(parameter, value) for value in values})
    return chosen


def coarse(variant: Variant, estimates: Estimates, values: Values) -> list[Policy]:
    """Return the policy with stated, else estimated, else default values, then its variations.

    Each has one parameter changed to one of its `values`.
    """
    start = bind(variant, estimates)
    return [start, *(with_value(start, name, value) for name in values for value in values[name])]


def finer(best: Policy, tried: Values) -> Iterator[Policy]:
    """Yield `best` with one parameter half-way to the nearest value tried below it, and above it.

    `tried` maps names of parameters to the values tried; other parameters stay.
    """
    for parameter in best.parameters:
        if parameter.name not in tried:
            continue
        value = best.values[parameter.name]
        below = max((other for other in tried[parameter.name] if other < value), default=None)
        above = min((other for other in tried[parameter.name] if other > value), default=None)
        for other in (below, above):
            if other is not None:
                between = _rounded(parameter, _between(value, other))
                if between not in {value, other}:
                    yield with_value(best, parameter.name, between)


def with_value(policy: Policy, name: str, value: float) -> Policy:
    """Return the policy with another value of one parameter."""
    return type(policy)(dict(policy.values) | {name: value}, policy.evicts)


def _between(value: float, other: float) -> float:
    """Return the geometric mean of two values, the arithmetic mean if one is 0."""
    return math.sqrt(value * other) if value > 0 and other > 0 else (value + other) / 2


def _rounded(parameter: Parameter, value: float) -> float:
    """Return the nearest permitted value: whole tokens, else three significant digits."""
    whole = parameter.name.endswith("_tokens") and math.isfinite(value)
    rounded = float(round(value)) if whole else float(f"{value:.3g}")
    return min(max(rounded, parameter.low), parameter.high)


def xi_hints(evaluator: Evaluator, capacity_blocks: int) -> dict[str, list[float]]:
    """Return values of xi: percentiles of the tokens that LRU leaves uncached, where gains peak.

    Source: Tail-Optimized Caching for LLM Inference, section 6.2.
    """
    served = evaluator.served(Lru(), capacity_blocks)
    uncached = np.sort(served.uncached_tokens[served.first :])
    ranks = np.ceil(np.array([*_HINTS, evaluator.target.percentile]) * len(uncached)) - 1
    return {XI: [float(tokens) for tokens in uncached[ranks.astype(np.int64)]]}


def has_xi(policy: type[Policy]) -> bool:
    """Return whether a policy has the parameter xi."""
    return any(parameter.name == XI for parameter in policy.parameters)


def over_xi(
    workload: Workload, variant: Variant, capacity_blocks: int, target: Target
) -> list[Policy]:
    """Return the policy with every xi to try, ascending.

    Its other parameters are as stated, else as estimated from the workload, else their defaults.
    A xi that the variant states is ignored. The policy must have that parameter.
    """
    given = {name: value for name, value in variant.given.items() if name != XI}
    free = replace(variant, given=given)
    estimates = estimate_parameters(workload.request_traffic, workload.profile, target.slo_s)
    hints = xi_hints(Evaluator(workload, target), capacity_blocks)
    start = bind(free, estimates)
    return [with_value(start, XI, xi) for xi in search_values(free, estimates, hints)[XI]]

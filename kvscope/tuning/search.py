"""The best parameters of every policy at one capacity, by replaying the part to choose on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

import numpy as np

from kvscope.core.errors import Stopped
from kvscope.policies.base import Parameter, Policy
from kvscope.replay.capacity_models import replayed
from kvscope.replay.policy_options import Variant
from kvscope.replay.summary import Served
from kvscope.replay.variants import Found, bind
from kvscope.replay.workload import Asked, Workload, cores
from kvscope.tuning.objective import Trial, tried
from kvscope.tuning.target import Target

_AROUND = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
XI = "xi_tokens"

Values = Mapping[str, Sequence[float]]


def values_to_try(
    variant: Variant, found: Mapping[str, Found], hints: Values
) -> dict[str, list[float]]:
    """The values of each parameter that nobody fixed, ascending; those without any are left out.

    The policy's own, fractions and multiples of xi as the SLO has it, and `hints` by name.
    """
    chosen: dict[str, list[float]] = {}
    for parameter in variant.policy.parameters:
        if parameter.name in variant.given:
            continue
        values = [*parameter.search, *hints.get(parameter.name, ())]
        if parameter.name == XI and XI in found:
            values += [share * found[XI].value for share in _AROUND]
        if values:
            chosen[parameter.name] = sorted({_rounded(parameter, one) for one in values})
    return chosen


def coarse(variant: Variant, found: Mapping[str, Found], values: Values) -> list[Policy]:
    """The policy as it comes, and with each parameter changed alone."""
    start = bind(variant, found)
    return [start, *(changed(start, name, one) for name in values for one in values[name])]


def finer(best: Policy, tried: Mapping[str, Sequence[float]]) -> Iterator[Policy]:
    """`best` with one parameter half-way to the next values on either side that were tried."""
    for parameter in best.parameters:
        if parameter.name not in tried:
            continue
        at = best.values[parameter.name]
        below = max((one for one in tried[parameter.name] if one < at), default=None)
        above = min((one for one in tried[parameter.name] if one > at), default=None)
        for other in (below, above):
            if other is not None:
                between = _rounded(parameter, _between(at, other))
                if between not in {at, other}:
                    yield changed(best, parameter.name, between)


def changed(policy: Policy, name: str, value: float) -> Policy:
    """The same policy with another value of one parameter."""
    return type(policy)(dict(policy.values) | {name: value}, policy.evicts)


def _between(one: float, other: float) -> float:
    """Half-way by factors, as the values are spaced; by differences next to 0."""
    return math.sqrt(one * other) if one > 0 and other > 0 else (one + other) / 2


def _rounded(parameter: Parameter, value: float) -> float:
    """A value that the parameter may have: whole tokens, else three significant digits."""
    kept = float(round(value)) if parameter.name.endswith("_tokens") else float(f"{value:.3g}")
    return min(max(kept, parameter.low), parameter.high)


PolicyAt = tuple[Policy, int]
Key = tuple[str, str, tuple[tuple[str, float], ...], int]
Advance = Callable[[int], None]
T = TypeVar("T")
R = TypeVar("R")


class Evaluator:
    """Answers which TTFT a policy gives at a capacity, over one workload.

    `tried` holds every trial made, in the order of the questions. Once `stop` is set, questions
    raise Stopped. To be closed.
    """

    def __init__(self, workload: Workload, target: Target, *, stop: Event | None = None) -> None:
        self.workload = workload
        self.target = target
        self.tried: dict[Key, Trial] = {}
        self._stop = stop or Event()
        self._pool = ThreadPoolExecutor(cores(), thread_name_prefix="tune")

    def close(self) -> None:
        """Drop what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def trials(self, questions: Sequence[PolicyAt], advance: Advance | None = None) -> list[Trial]:
        """A trial for each question, in their order; `advance` is told of each replay made."""
        new = {_key(*one): one for one in questions if _key(*one) not in self.tried}
        self.workload.prepare([policy for policy, _ in new.values()])
        made = self.each(lambda one: self._try(*one), list(new.values()), advance)
        self.tried |= zip(new, made, strict=True)
        return [self.tried[_key(*one)] for one in questions]

    def each(
        self, work: Callable[[T], R], items: Sequence[T], advance: Advance | None = None
    ) -> list[R]:
        """What `work` makes of each item, on all cores; it must not come back here itself."""
        futures = [self._pool.submit(work, item) for item in items]
        made = []
        for future in futures:
            made.append(future.result())
            if advance is not None:
                advance(1)
        return made

    def trial(self, policy: Policy, capacity_blocks: int) -> Trial:
        """The trial of one question."""
        return self.trials([(policy, capacity_blocks)])[0]

    def served(self, policy: Policy, capacity_blocks: int) -> Served:
        """How each request fares, which no trial keeps."""
        if self._stop.is_set():
            raise Stopped("stopped before the search was finished")
        return replayed(self.workload, Asked(policy, capacity_blocks)).served

    def _try(self, policy: Policy, capacity_blocks: int) -> Trial:
        served = self.served(policy, capacity_blocks)
        return tried(policy, capacity_blocks, served, self.target)


def _key(policy: Policy, capacity_blocks: int) -> Key:
    return policy.name, policy.evicts, tuple(policy.values.items()), capacity_blocks


REFINEMENTS = 3
_HINTS = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Contender:
    """One variant of a policy and its trials at one capacity, the best first."""

    variant: Variant
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """With the parameters that did best."""
        return self.trials[0]


def search(
    evaluator: Evaluator,
    variants: Sequence[Variant],
    found: Mapping[str, Found],
    hints: Values,
    capacity_blocks: int,
    advance: Advance | None = None,
) -> list[Contender]:
    """Each variant with its best parameters, the best variant first.

    First every parameter's values one at a time, then REFINEMENTS times half-way between the best
    one and its neighbours. Trials of all variants are made side by side.
    """
    values = [values_to_try(variant, found, hints) for variant in variants]
    asked = [coarse(variant, found, space) for variant, space in zip(variants, values, strict=True)]
    known = _evaluated(evaluator, asked, capacity_blocks, advance)
    for _ in range(REFINEMENTS):
        more: list[list[Policy]] = []
        for trials, space in zip(known, values, strict=True):
            more.append(list(finer(trials[0].policy, space)))
            for policy in more[-1]:
                for name in space:
                    space[name] = sorted({*space[name], policy.values[name]})
        if not any(more):
            break
        for trials, new in zip(
            known, _evaluated(evaluator, more, capacity_blocks, advance), strict=True
        ):
            trials.extend(new)
            trials.sort(key=lambda trial: trial.rank(evaluator.target))
    contenders = [
        Contender(variant, tuple(trials)) for variant, trials in zip(variants, known, strict=True)
    ]
    return sorted(contenders, key=lambda one: one.best.rank(evaluator.target))


def hints_from(evaluator: Evaluator, lru: Policy, capacity_blocks: int) -> dict[str, list[float]]:
    """Values of xi near what LRU leaves uncached, where the paper found the gains to peak.

    Source: Tail-Optimized Caching for LLM Inference, section 6.2.
    """
    served = evaluator.served(lru, capacity_blocks)
    uncached = np.sort(served.uncached_tokens[served.first :])
    ranks = np.ceil(np.array([*_HINTS, evaluator.target.percentile]) * len(uncached)) - 1
    return {XI: [float(one) for one in uncached[ranks.astype(np.int64)]]}


def _evaluated(
    evaluator: Evaluator,
    asked: Sequence[Sequence[Policy]],
    capacity_blocks: int,
    advance: Advance | None,
) -> list[list[Trial]]:
    """The trials of each group, the best first."""
    questions = [(policy, capacity_blocks) for group in asked for policy in group]
    answers = iter(evaluator.trials(questions, advance))
    groups = [[next(answers) for _ in group] for group in asked]
    return [sorted(group, key=lambda trial: trial.rank(evaluator.target)) for group in groups]

"""The best parameters of every policy at one capacity, by replaying the part to choose on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvscope.policies.base import Policy
from kvscope.simulate.variants import Found, Variant
from kvscope.tune.evaluate import Advance, Evaluator
from kvscope.tune.objective import Trial
from kvscope.tune.space import XI, Values, coarse, finer, values_to_try

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

"""Which contender to prefer: not the one that came out best, but the one that is surest to be good.

Of many settings the best looks better than it is, the more so where a percentile rests on few
requests. So the settings that did best are compared by the lower ends of their gains' intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvscope.policies.base import Policy
from kvscope.tune.bootstrap import Bootstrap, Drawn, objective_of
from kvscope.tune.evaluate import Advance, Evaluator
from kvscope.tune.flags import flags
from kvscope.tune.objective import Trial, ttft_s
from kvscope.tune.search import Contender

SETTINGS = 3  # of each contender
DRAWS = 200  # an order needs fewer than an interval that is shown


def surest_first(
    evaluator: Evaluator,
    lru: Policy,
    contenders: Sequence[Contender],
    advance: Advance | None = None,
) -> list[Contender]:
    """The contenders, and the trials of each, by the least gain over LRU that is to be expected.

    Of those that are not surely apart, one that an engine has as it is comes before others.
    """
    if not contenders:
        return []
    capacity = contenders[0].best.capacity_blocks
    served = evaluator.served(lru, capacity)
    bootstrap = Bootstrap(
        served.prompts.conversation[served.first :], evaluator.target, draws=DRAWS
    )
    baseline = bootstrap.figures(ttft_s(served, evaluator.target))
    name = objective_of(evaluator.target)

    def compared(trial: Trial) -> _Compared:
        drawn = bootstrap.figures(
            ttft_s(evaluator.served(trial.policy, capacity), evaluator.target)
        )
        return _Compared(trial, drawn, bootstrap.gains(baseline, drawn)[name].low)

    leading = [trial for one in contenders for trial in one.trials[:SETTINGS]]
    found = iter(evaluator.each(compared, leading, advance))
    ordered = []
    for one in contenders:
        best = sorted((next(found) for _ in one.trials[:SETTINGS]), key=lambda each: -each.least)
        trials = (*(each.trial for each in best), *one.trials[SETTINGS:])
        ordered.append((best[0], replace(one, trials=trials)))
    ordered.sort(key=lambda pair: -pair[0].least)
    first = ordered[0][0]
    for number, (other, _) in enumerate(ordered):
        apart = bootstrap.gains(other.drawn, first.drawn)[name].sure
        if other.least > 0 and not apart and _ready(other.trial.policy):
            ordered.insert(0, ordered.pop(number))
            break
    return [one for _, one in ordered]


@dataclass(frozen=True, slots=True)
class _Compared:
    trial: Trial
    drawn: Drawn
    least: float


def _ready(policy: Policy) -> bool:
    """Whether an engine has the policy as it is."""
    return flags(policy, 0).built_in

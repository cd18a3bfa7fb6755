"""Which contender to prefer: not the one that came out best, but the one that is surest to be good.

Of many settings the best looks better than it is, the more so where a percentile rests on few
requests. So the settings that did best are compared by the lower ends of their gains' intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvscope.policies.base import Policy
from kvscope.tune.bootstrap import Bootstrap, objective_of
from kvscope.tune.evaluate import Advance, Evaluator
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
    """The contenders, and the trials of each, by the least gain over LRU that is to be expected."""
    if not contenders:
        return []
    capacity = contenders[0].best.capacity_blocks
    served = evaluator.served(lru, capacity)
    bootstrap = Bootstrap(
        served.prompts.conversation[served.first :], evaluator.target, draws=DRAWS
    )
    baseline = bootstrap.figures(ttft_s(served, evaluator.target))
    name = objective_of(evaluator.target)

    def least_gain(trial: Trial) -> float:
        times = ttft_s(evaluator.served(trial.policy, capacity), evaluator.target)
        return bootstrap.gains(baseline, bootstrap.figures(times))[name].low

    compared = [trial for one in contenders for trial in one.trials[:SETTINGS]]
    least = iter(evaluator.each(least_gain, compared, advance))
    ordered = []
    for one in contenders:
        sure = [(-next(least), trial) for trial in one.trials[:SETTINGS]]
        sure.sort(key=lambda pair: pair[0])  # stable: of equal ones the better trial stays first
        trials = (*(trial for _, trial in sure), *one.trials[SETTINGS:])
        ordered.append((sure[0][0], replace(one, trials=trials)))
    return [one for _, one in sorted(ordered, key=lambda pair: pair[0])]

"""Which contender to prefer: not the one that came out best, but one that is surely good enough.

Of many settings the best looks better than it is, the more so where a percentile rests on few
requests. So what did well is compared by the lower ends of the gains' intervals. And where several
settings surely keep the SLO, the tail has been paid for: of those the cheapest is preferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvscope.policies.base import Policy
from kvscope.tuning.bootstrap import Bootstrap, Drawn, objective_of
from kvscope.tuning.flags import flags
from kvscope.tuning.objective import Trial, ttft_s
from kvscope.tuning.search import Advance, Contender, Evaluator
from kvscope.tuning.target import Target

SETTINGS = 3  # of each contender: so many by what the target measures, and by what they cost
DRAWS = 200  # an order needs fewer than an interval that is shown
SURELY = 0.9  # of the draws
ALIKE = 0.03  # differences in throughput that do not matter


def preferred(
    evaluator: Evaluator,
    lru: Policy,
    contenders: Sequence[Contender],
    advance: Advance | None = None,
) -> list[Contender]:
    """The contenders, and the trials of each, the one to choose first.

    Those that are surely better than LRU and keep the SLO in SURELY of the draws come by how much
    an engine can take with them; then the others, by the least gain over LRU that is to be
    expected. Of what is not surely apart, a policy that an engine has as it is comes first.
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
        times = ttft_s(evaluator.served(trial.policy, capacity), evaluator.target)
        drawn = bootstrap.figures(times)
        least = bootstrap.gains(baseline, drawn)[name].low
        return _Compared(trial, drawn, least, least > 0 and bootstrap.keeps(drawn) >= SURELY)

    leading = [_leading(one, evaluator.target) for one in contenders]
    found = iter(evaluator.each(compared, [trial for some in leading for trial in some], advance))
    ordered = []
    for one, some in zip(contenders, leading, strict=True):
        best = sorted((next(found) for _ in some), key=_Compared.order)
        rest = (trial for trial in one.trials if all(trial is not other for other in some))
        ordered.append((best[0], replace(one, trials=(*(each.trial for each in best), *rest))))
    ordered.sort(key=lambda pair: pair[0].order())
    first = ordered[0][0]
    for number, (other, _) in enumerate(ordered):
        if other.least > 0 and _ready(other.trial.policy) and not _apart(first, other, bootstrap):
            ordered.insert(0, ordered.pop(number))
            break
    return [one for _, one in ordered]


@dataclass(frozen=True, slots=True)
class _Compared:
    """A trial with its draws, the lower end of its gain, and whether it surely keeps the SLO."""

    trial: Trial
    drawn: Drawn
    least: float
    keeps: bool

    def order(self) -> tuple[bool, float]:
        return not self.keeps, -(self.trial.served_per_s if self.keeps else self.least)


def _leading(one: Contender, target: Target) -> list[Trial]:
    """The settings worth a comparison."""
    best = list(one.trials[:SETTINGS])
    meeting = [trial for trial in one.trials[SETTINGS:] if trial.meets(target)]
    meeting.sort(key=lambda trial: -trial.served_per_s)
    return best + meeting[:SETTINGS]


def _apart(first: _Compared, other: _Compared, bootstrap: Bootstrap) -> bool:
    """Whether `first` is surely the better choice."""
    if first.keeps:
        return not other.keeps or (
            other.trial.served_per_s < (1 - ALIKE) * first.trial.served_per_s
        )
    return bootstrap.surely_less(other.drawn, first.drawn)


def _ready(policy: Policy) -> bool:
    """Whether an engine has the policy as it is."""
    return flags(policy, 0).built_in

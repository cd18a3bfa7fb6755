"""Rank contenders: first not the best-looking one, but one that is significantly good enough.

The best of many settings looks better than it is, the more so where a percentile rests on few
requests. So leading settings are compared by the lower ends of the gains' intervals. Where several
settings meet the SLO in nearly all resamples, the tail needs no more: the cheapest of them is
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvscope.policies.lru import Lru
from kvscope.tuning.bootstrap import Bootstrap, Resampled
from kvscope.tuning.flags import flags
from kvscope.tuning.search import Contender
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Advance, Evaluator, Trial, ttft_s

SETTINGS = 3  # of each contender: so many by the target's measure, and by throughput
RESAMPLES = 200  # an order needs fewer than an interval that is shown
CONFIDENT = 0.9  # share of the resamples that must meet the SLO
ALIKE = 0.03  # differences in throughput that do not matter


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A trial, its resampled figures, and the lower end of its gain over LRU.

    `meets`: at least CONFIDENT of the resamples meet the SLO, with a significant gain.
    """

    trial: Trial
    figures: Resampled
    least_gain: float
    meets: bool

    def order(self) -> tuple[bool, float]:
        return not self.meets, -(self.trial.served_per_s if self.meets else self.least_gain)


def rank_contenders(
    evaluator: Evaluator, contenders: Sequence[Contender], advance: Advance | None = None
) -> list[Contender]:
    """Return the contenders, and the trials of each, the preferred one first.

    Those that are significantly better than LRU and meet the SLO in CONFIDENT of the resamples come
    first, by throughput; then the others, by the lower end of their gain over LRU. Of what does not
    differ significantly, a policy built into an engine comes first.
    """
    if not contenders:
        return []
    target, capacity = evaluator.target, contenders[0].best.capacity_blocks
    served = evaluator.served(Lru(), capacity)
    conversation = served.prompts.conversation[served.first :]
    bootstrap = Bootstrap(conversation, target, resamples=RESAMPLES)
    baseline = bootstrap.figures(ttft_s(served, target))

    def candidate(trial: Trial) -> _Candidate:
        figures = bootstrap.figures(ttft_s(evaluator.served(trial.policy, capacity), target))
        least = bootstrap.gains(baseline, figures)[target.objective].low
        return _Candidate(
            trial, figures, least, least > 0 and bootstrap.meeting_share(figures) >= CONFIDENT
        )

    leading = [_leading(contender, target) for contender in contenders]
    candidates = iter(
        evaluator.each(candidate, [trial for trials in leading for trial in trials], advance)
    )
    ranked = []
    for contender, compared in zip(contenders, leading, strict=True):
        best = sorted((next(candidates) for _ in compared), key=_Candidate.order)
        rest = [
            trial for trial in contender.trials if all(trial is not other for other in compared)
        ]
        trials = (*(other.trial for other in best), *rest)
        ranked.append((best[0], replace(contender, trials=trials)))
    ranked.sort(key=lambda pair: pair[0].order())
    first = ranked[0][0]
    for number, (other, _) in enumerate(ranked):
        built_in = flags(other.trial.policy, 0).built_in
        if other.least_gain > 0 and built_in and not _better(first, other, bootstrap):
            ranked.insert(0, ranked.pop(number))
            break
    return [contender for _, contender in ranked]


def _leading(contender: Contender, target: Target) -> list[Trial]:
    """Return the settings worth a comparison: the best ones, and the cheapest that meet the SLO."""
    meeting = [trial for trial in contender.trials[SETTINGS:] if trial.meets(target)]
    meeting.sort(key=lambda trial: -trial.served_per_s)
    return [*contender.trials[:SETTINGS], *meeting[:SETTINGS]]


def _better(first: _Candidate, other: _Candidate, bootstrap: Bootstrap) -> bool:
    """Return whether `first` is significantly better than `other`."""
    if first.meets:
        return not other.meets or (
            other.trial.served_per_s < (1 - ALIKE) * first.trial.served_per_s
        )
    return bootstrap.significantly_better(other.figures, first.figures)

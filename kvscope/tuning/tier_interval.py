"""The retention interval of the pool alone, which costs nothing: the baseline that tiers must beat.

A hybrid model keeps windows before multiples of an interval. Those that gain on the training window
are compared with today's pool on the validation window; the choice is kept if it gains and does no
harm on the held-out one, and at the ends of what is not known exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kvscope.tuning.tier_search import gains
from kvscope.tuning.tier_trial import ALIKE, TierTrial, TierWindow
from kvscope.tuning.trial import Advance

_COMPARED = 5  # intervals on the validation window
_LEAST_FREED = 0.01  # of the GPU's time that is worth a change where the SLO is met


class PoolInterval(Struct, frozen=True):
    """The interval that was chosen for the pool alone, on validation and on held-out window.

    `kept`: it gains and does no harm on held-out requests and at all ends.
    """

    choice: tuple[TierTrial, TierTrial]
    kept: bool


def tune_interval(
    windows: Sequence[TierWindow], advance: Advance
) -> tuple[PoolInterval | None, list[TierTrial]]:
    """Return the interval for the pool alone, and all trials on the training window, today's first.

    None where no other than today's is better.
    """
    training, validation, held_out = windows
    explored = training.all_alone(training.plan.intervals, advance)
    better = [trial for trial in explored if gains(trial, training.today)]
    better.sort(key=lambda trial: trial.trial.rank(training.plan.target))
    leading = [trial.interval for trial in better[:_COMPARED]]
    chosen = _choose(validation, validation.all_alone(leading, advance))
    explored = [training.today, *explored]
    if chosen is None:
        return None, explored
    judged = held_out.alone(chosen.interval)
    kept = _gains(held_out, judged) and all(
        _harmless_at(held_out.at(end), chosen.interval) for end in held_out.plan.ends
    )
    return PoolInterval((chosen, judged), kept), explored


def _choose(window: TierWindow, compared: Sequence[TierTrial]) -> TierTrial | None:
    """Return the interval to judge, None for today's.

    The one that `tune` would prefer; where the SLO is met anyway, the one that saves most GPU time.
    """
    target = window.plan.target
    if window.today.trial.meets(target):
        able = [trial for trial in compared if _gains(window, trial)]
        return min(able, key=lambda trial: trial.prefill_share, default=None)
    able = [trial for trial in compared if trial.trial.recommendable(target)]
    return min(able, key=lambda trial: trial.trial.preference(broken=False), default=None)


def _gains(window: TierWindow, trial: TierTrial) -> bool:
    """Return whether an interval gains on a window, and does no harm."""
    today, target, own = window.today, window.plan.target, trial.trial
    if own.harms or not own.keeps_up:
        return False
    if today.trial.meets(target):
        freed = today.prefill_share - trial.prefill_share
        return freed > max(today.prefill_share * ALIKE, _LEAST_FREED)
    return own.gains[target.objective].value > 0


def _harmless_at(window: TierWindow, interval: float) -> bool:
    own = window.alone(interval).trial
    return not own.harms and (own.keeps_up or not window.today.trial.keeps_up)

"""The verdict, and whether the SLO is met: decided in one place from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kvscope.tuning.comparison import WindowTrial
from kvscope.tuning.rule import Judged
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Trial

Verdict = Literal["switch", "keep-lru", "add-capacity", "unreachable", "overloaded"]
SloAnswer = Literal["meets", "misses", "undecided", "overloaded"]


def decide(target: Target, lru: Judged, choice: Judged | None, infinite: WindowTrial) -> Verdict:
    """Return what to do with the present capacity.

    `choice` is the contender to change to, or to try on a canary, None without any. `infinite` is
    an infinite cache on the validation window.

    - switch: the choice is to be changed to now, wherever the SLO lies.
    - overloaded: LRU does not keep up with the arrivals.
    - keep-lru: LRU meets the SLO on both windows.
    - unreachable: even an infinite cache misses it.
    - add-capacity: otherwise.
    """
    if choice is not None and choice.grade == "do-now":
        return "switch"
    if not lru.keeps_up:
        return "overloaded"
    if lru.meets(target):
        return "keep-lru"
    return "add-capacity" if infinite.meets(target) else "unreachable"


def slo_answer(target: Target, judged: Judged, ends: Sequence[Trial]) -> SloAnswer:
    """Return whether a policy meets the SLO; `ends` are its trials at the ends of what is unknown.

    - overloaded: its queue grows over one of the windows.
    - meets: on both windows and at all ends, the interval over both windows included.
    - misses: on both windows and at all ends, the interval included.
    - undecided: otherwise.
    """
    if not judged.keeps_up:
        return "overloaded"
    low_s, high_s = judged.later.interval_s
    met = [each.meets(target) for each in (judged.validation, judged.held_out, *ends)]
    if all(met) and high_s <= target.slo_s:
        return "meets"
    return "misses" if not any(met) and low_s > target.slo_s else "undecided"

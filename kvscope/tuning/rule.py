"""Whether a change of policy is an improvement, whatever the SLO: no harm, and a certain gain.

A change is judged on two later windows. The validation window chooses the settings and their order,
the held-out window may reject; intervals use both windows together, since either alone has too few
late requests to show that nothing gets worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from kvscope.policies.base import Policy
from kvscope.tuning.comparison import Harm, Window, WindowTrial
from kvscope.tuning.split import Split
from kvscope.tuning.target import CERTAIN, LIKELY, Target
from kvscope.tuning.trial import Advance, PolicyAt, Trial

Verdict = Literal["switch", "keep-lru", "add-capacity", "unreachable", "overloaded"]
SloAnswer = Literal["meets", "misses", "undecided", "overloaded"]
Grade = Literal["do-now", "canary", "no"]
_TOLD = 1.96  # deviations from 0 of a 95 % interval's end
_ONE_SIDED = 1.645
_POWER = 0.842  # of 80 %
_INTERVALS = {"attainment", "tel"}


class Judged(Struct, frozen=True):
    """One policy at one capacity, on the validation and held-out windows and on both together.

    Each trial is compared with a baseline's, mostly LRU's today; those of a baseline with none.
    """

    DOCUMENT: ClassVar[str] = (
        "policy=policy.name params=policy.values grade likely=later.likely harms validation"
        " held_out later"
    )
    validation: WindowTrial
    held_out: WindowTrial
    later: WindowTrial

    @property
    def policy(self) -> Policy:
        """The policy, with its parameters."""
        return self.later.policy

    def meets(self, target: Target) -> bool:
        """Return whether the SLO is met on both windows."""
        return self.validation.meets(target) and self.held_out.meets(target)

    @property
    def keeps_up(self) -> bool:
        """Whether the queue stays bounded over both windows."""
        return self.validation.keeps_up and self.held_out.keeps_up

    @property
    def harms(self) -> tuple[Harm, ...]:
        """The limits that the policy breaks: on both windows together, and by value on either."""
        broken = (*self.later.harms, *self.harms_by_value)
        return tuple({harm.figure: harm for harm in reversed(broken)}.values())

    @property
    def harms_by_value(self) -> tuple[Harm, ...]:
        """The limits that the figures themselves break on any window, not just interval ends."""
        windows = self.later, self.held_out, self.validation
        return tuple(harm for window in windows for harm in window.by_value)

    @property
    def gains_twice(self) -> bool:
        """Whether TEL or attainment gains on both windows: a gain on one alone rarely recurs."""
        return all(
            trial.gains["tel"].value > 0 or trial.attainment_gain.value > 0
            for trial in (self.validation, self.held_out)
        )

    @property
    def grade(self) -> Grade:
        """Whether to change now (`do-now`), on a canary first (`canary`), or not (`no`)."""
        if self.harms or not self.keeps_up or self.later.likely < LIKELY or not self.gains_twice:
            return "no"
        return "do-now" if self.later.likely >= CERTAIN else "canary"

    def requests_needed(self, target: Target, requests: int) -> int | None:
        """Return how many requests a trace needs to show no harm and a gain; it has `requests`.

        None if more requests would not help: a figure is worse, or no better. With the number
        returned, each interval that is too wide now is narrow enough in 80 % of cases; rounded up
        to two significant digits.
        """
        trial, wider = self.later, 1.0
        gains = {"attainment": trial.attainment_gain, **trial.gains}
        for harm in trial.harms:
            gain = gains.get(harm.figure)
            if gain is None or harm.figure not in _INTERVALS | {target.rank_name}:
                return None
            room = gain.value + abs(harm.limit)
            if not room > 0 or not math.isfinite(gain.low):
                return None
            wider = max(wider, (gain.value - gain.low) / room * (_TOLD + _POWER) / _TOLD)
        if trial.likely < CERTAIN:
            from scipy.special import ndtri

            deviations = float(ndtri(trial.likely))
            if not deviations > 0:
                return None
            wider = max(wider, (_ONE_SIDED + _POWER) / deviations)
        if wider == 1.0:  # no interval is too wide
            return requests
        needed = requests * wider**2
        step = 10.0 ** (math.floor(math.log10(needed)) - 1)
        return round(math.ceil(needed / step - 1e-9) * step)


class PolicyComparison(Struct, frozen=True, kw_only=True):
    """LRU and the contenders at one capacity of each replica; `split` has the sizes of windows.

    `contenders` are the best setting of each policy, in the order of the validation window.
    """

    target: Target
    split: Split
    capacity_blocks: int
    replicas: int
    lru: Judged
    contenders: tuple[Judged, ...]

    @property
    def choice(self) -> Judged | None:
        """The first contender to change to now, else the first for a canary; None without either.

        If the held-out window rejects a contender, the next one is tried.
        """
        graded = {each.grade: each for each in reversed(self.contenders)}
        return graded.get("do-now", graded.get("canary"))

    @property
    def grade(self) -> Grade:
        """Whether to change the policy now, on a canary first, or not."""
        return self.choice.grade if self.choice else "no"

    @property
    def chosen(self) -> Judged:
        """The policy to run at the present capacity: the choice, else LRU."""
        return self.choice or self.lru

    @property
    def promising(self) -> tuple[Judged, int] | None:
        """The contender that more requests would probably prove better, and how many; else None.

        None as well if there is a choice already.
        """
        if self.choice is not None:
            return None
        here = self.split.requests
        needed = (
            (contender, contender.requests_needed(self.target, here) or 0)
            for contender in self.contenders
            if contender.later.likely >= LIKELY
        )
        return next(((each, count) for each, count in needed if count > here), None)


class LaterWindows:
    """The validation window, the held-out window, and both together (`later`).

    `later` replays the same requests as `held_out`, and counts from the validation window on.
    """

    def __init__(self, validation: Window, held_out: Window, later: Window) -> None:
        self.validation, self.held_out, self.later = validation, held_out, later

    def judge(self, policy: Policy, capacity: int, lru: Judged | None = None) -> Judged:
        """Return a policy's trials on all windows, compared with `lru` if given."""
        validation = self.validation.measure(policy, capacity, lru.validation if lru else None)
        later = self.later.evaluator
        later.prepare([policy])
        served = later.served(policy, capacity)
        last = replace(served, first=self.held_out.first)
        return Judged(
            validation,
            self.held_out.compare(policy, capacity, last, lru.held_out if lru else None),
            self.later.compare(policy, capacity, served, lru.later if lru else None),
        )

    def judge_all(
        self, points: Sequence[PolicyAt], lru: Judged, advance: Advance | None = None
    ) -> list[Judged]:
        """Return `judge` of each policy and capacity, compared with `lru`; replay on all cores."""
        evaluator = self.later.evaluator
        evaluator.prepare([policy for policy, _ in points])
        before = map(evaluator.executor.shared, (self, lru))
        return evaluator.each(LaterWindows._judge, points, *before, advance=advance)

    def _judge(self, lru: Judged, point: PolicyAt) -> Judged:
        return self.judge(*point, lru)


def decide(target: Target, lru: Judged, choice: Judged | None, infinite: WindowTrial) -> Verdict:
    """Return the verdict at the present capacity.

    `choice` is the contender to change to, or to try on a canary, None without any. `infinite` is
    the trial of an infinite cache on the validation window. The first of these that applies:

    - switch: change to the choice now, whether or not the SLO is met.
    - overloaded: LRU does not keep up with the arrivals.
    - keep-lru: LRU meets the SLO on both windows.
    - unreachable: even the infinite cache misses the SLO.
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
    """Return whether a policy meets the SLO; `ends` are trials at extremes of uncertain inputs.

    - overloaded: its queue grows over one of the windows.
    - meets: on both windows and at all extremes, and at the upper end of the 95 % interval.
    - misses: on both windows and at all extremes, and at the lower end of that interval.
    - undecided: otherwise.
    """
    if not judged.keeps_up:
        return "overloaded"
    low_s, high_s = judged.later.interval_s
    met = [each.meets(target) for each in (judged.validation, judged.held_out, *ends)]
    if all(met) and high_s <= target.slo_s:
        return "meets"
    return "misses" if not any(met) and low_s > target.slo_s else "undecided"

"""Tiers of memory below a GPU's pool: whether they pay, of which size, and how they store.

Candidates (an engine's way to offload, and a size) are replayed on the simulated engine. Those that
no cheaper one equals on the training window are compared with the pool alone on the validation
window; the choice is accepted or rejected on the held-out one, and at the ends of what is not known
exactly: latency, pool, and how fast copies are. Without acceptance the answer is to keep no tier.

Of a hybrid model, the pool alone is that with the best retention interval: a setting that costs
nothing is no gain of a tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from threading import Event
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.executor import Executor
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.canary import Canary
from kvscope.tuning.split import Split
from kvscope.tuning.tier_interval import PoolInterval, tune_interval
from kvscope.tuning.tier_search import explore, with_parameters
from kvscope.tuning.tier_trial import (
    ALIKE,
    TierCandidate,
    TierPlan,
    TierRejection,
    TierTrial,
    TierWindow,
    candidate_of,
    pareto_front,
)
from kvscope.tuning.trial import Advance, Evaluator
from kvscope.tuning.tuner import End

TierVerdict = Literal["pays", "helps", "set-interval", "keep-none"]
Why = Literal[
    "",
    "overloaded",
    "no-gain",
    "too-dear",
    "costs-more",
    "met-without",
    "held-out",
    "uncertain",
    "never-starts",
]
Progress = Callable[[str], AbstractContextManager[Advance]]

SLOW_COPIES = 3.0
"""Times as long as modelled that a copy may take: the choice has to hold there too."""
FULL = End("an SSD full of other files")
_COMPARED = 8  # candidates on the validation window


class TierEnd(Struct, frozen=True):
    """The choice at one end of what is not known, on the held-out window.

    `holds`: it does no harm there, and pays its price where that is what it was chosen for.
    """

    end: End
    copies: float
    baseline: TierTrial
    choice: TierTrial
    holds: bool


class TierTuning(Struct, frozen=True):
    """The verdict and what it rests on.

    - pays: the choice meets the SLO, and the pool alone does not; or it saves more GPU time
      than it costs, on both windows and at the ends of what is not known exactly.
    - helps: the choice is significantly better, but the SLO is missed with it too.
    - set-interval: no tier is to be recommended, but another retention interval of the pool alone,
      which costs nothing; `why` says why no tier beyond that.
    - keep-none: nothing is to be recommended; `why` says what is the reason.

    `today` is the pool alone as it is, `interval` another retention interval chosen for it, None
    without. `baseline` is the pool alone, with that interval if it is kept: what tiers are compared
    with. `choice` is the candidate chosen, each on validation and held-out
    window; without a candidate to choose, None. `front` are candidates on the validation window
    that no cheaper one equals, `sizes` those that work as the choice does, ascending; `least` is
    the smallest of them that may be recommended and does as much for the SLO. `explored` are all
    candidates on the training window, `trained` is the pool alone there. `rejected` are those
    under which requests of some window never start; `never-starts` where the choice is among them.
    `gains` are those of what is recommended over the pool as it is today; `canary` confirms what is
    recommended, None where nothing is.
    """

    verdict: TierVerdict
    why: Why
    split: Split
    today: tuple[TierTrial, TierTrial]
    interval: PoolInterval | None
    baseline: tuple[TierTrial, TierTrial]
    choice: tuple[TierTrial, TierTrial] | None
    front: tuple[TierTrial, ...]
    compared: tuple[TierTrial, ...]
    sizes: tuple[TierTrial, ...]
    least: TierTrial | None
    ends: tuple[TierEnd, ...]
    trained: TierTrial
    explored: tuple[TierTrial, ...]
    rejected: tuple[TierRejection, ...]
    gains: Mapping[str, Gain]
    canary: Canary | None = None

    @property
    def recommended(self) -> TierTrial | None:
        """The choice on the held-out window, None where no tier is to be kept."""
        return self.choice[1] if self.choice and self.verdict in {"pays", "helps"} else None

    @property
    def best(self) -> TierTrial:
        """What to run on the held-out window: the recommended tier, else the pool alone."""
        return self.recommended or self.baseline[1]


def tune_tiers(
    plan: TierPlan,
    progress: Progress,
    stop: Event | None = None,
    executor: Executor | None = None,
) -> TierTuning:
    """Return whether a tier pays, and which; a set `stop` raises Stopped.

    The default executor of replays are threads.
    """
    split, workloads = plan.cut(plan.prompts)
    plan = with_parameters(plan, workloads[0])
    with progress("replaying without a tier") as advance:
        windows = [
            TierWindow(plan, Evaluator(workload, plan.target, stop=stop, executor=executor))
            for workload in workloads
        ]
        interval, tried = tune_interval(windows, advance) if plan.intervals else (None, [])
    if interval is not None and interval.kept:
        plan = plan.keeping(interval.choice[0].interval)
        windows = [window.keeping(plan) for window in windows]
    tuning = _tuned(plan, split, windows, progress)
    return replace(tuning, interval=interval, explored=(*tried, *tuning.explored))


def _tuned(
    plan: TierPlan, split: Split, opened: Sequence[TierWindow], progress: Progress
) -> TierTuning:
    training, validation, held_out = opened
    with progress("replaying tiers") as advance:
        explored, promising = explore(plan, training, advance)
    alone = validation.baseline
    with progress("replaying the validation window") as advance:
        able = _able(plan, training)
        leading = [candidate_of(trial) for trial in _leading(promising)]
        first = _with_plain(able, leading)
        compared = validation.all(first, advance)
        larger = [size for each in validation.rejections for size in _sizes_of(able, each)]
        compared += validation.all([x for x in dict.fromkeys(larger) if x not in first], advance)
        chosen, why = _choose(validation, compared)
        like = _sizes_of(able, candidate_of(chosen)) if chosen else []
        known = {trial.candidate for trial in compared} | validation.rejections.keys()
        compared += validation.all([each for each in like if each not in known], advance)
    if chosen is not None:  # a cheaper size may do that training did not lead to
        chosen, why = _choose(validation, compared)
    rejected = training.rejections | validation.rejections
    unchanged = held_out.baseline is held_out.today
    nothing = partial(
        TierTuning,
        verdict="keep-none" if unchanged else "set-interval",
        rejected=tuple(rejected.values()),
        split=split,
        today=(validation.today, held_out.today),
        interval=None,
        baseline=(alone, held_out.baseline),
        gains=held_out.baseline.trial.gains,
        canary=None if unchanged else held_out.canary(held_out.today, held_out.baseline),
        front=pareto_front([alone, *compared]),
        compared=tuple(compared),
        trained=training.baseline,
        explored=tuple(explored),
    )
    if chosen is None:
        return nothing(why=why, choice=None, sizes=(), least=None, ends=())
    candidate = candidate_of(chosen)
    with progress("judging the choice"):
        sizes = sorted((trial for trial in compared if trial.candidate in like), key=_sizes)
        try:
            judged = held_out.of(candidate)
            ends = _at_ends(plan, held_out, candidate, pays=alone.trial.meets(plan.target))
        except UsageError as error:
            if not candidate.files_bytes:
                raise
            rejected[candidate] = TierRejection(candidate, error.what)
            nothing = partial(nothing, rejected=tuple(rejected.values()))
            return nothing(why="never-starts", choice=None, sizes=(), least=None, ends=())
    done = partial(
        nothing,
        choice=(chosen, judged),
        sizes=tuple(sizes),
        least=_least(validation, sizes, chosen),
        ends=ends,
    )
    met = chosen.trial.meets(plan.target) and judged.trial.meets(plan.target)
    without = all(each.trial.meets(plan.target) for each in (alone, held_out.baseline))
    worth = validation.net_hour(chosen) > 0 and held_out.net_hour(judged) > 0
    worth_at_ends = all(
        plan.net_hour(each.baseline, each.choice) > 0 for each in ends if each.end is not FULL
    )
    harmless = not judged.trial.harms and judged.trial.keeps_up and _better(held_out, judged)
    if not harmless or (without and not worth):
        return done(why="held-out")
    if not all(end.holds for end in ends):
        return done(why="uncertain")
    pays = met or (worth and worth_at_ends)
    return done(
        verdict="pays" if pays else "helps",
        why="",
        gains=held_out.window.against(held_out.today.trial, judged.trial).gains,
        canary=held_out.canary(held_out.baseline, judged),
    )


def _able(plan: TierPlan, training: TierWindow) -> TierPlan:
    """Return the plan without sizes under which requests of the training window never start."""
    sizes = {each.tiers for each in training.rejections}
    return replace(plan, candidates=tuple(x for x in plan.candidates if x.tiers not in sizes))


def _with_plain(plan: TierPlan, leading: Sequence[TierCandidate]) -> list[TierCandidate]:
    """Return candidates, and those as large whose options were not searched."""
    sizes = {each.tiers for each in leading}
    plain = [each for each in plan.candidates if each.tiers in sizes]
    searched = any(each not in plan.candidates for each in leading)
    return list(dict.fromkeys([*leading, *(plain if searched else ())]))


def _sizes_of(plan: TierPlan, chosen: TierCandidate) -> list[TierCandidate]:
    """Return every size that offloads as the choice does."""
    same = (each for each in plan.candidates if each.kinds == chosen.kinds)
    as_chosen = (replace(each, offload=chosen.offload, interval=chosen.interval) for each in same)
    return list(dict.fromkeys(as_chosen))


def _sizes(trial: TierTrial) -> tuple[int, int]:
    return candidate_of(trial).sizes


def _better(window: TierWindow, trial: TierTrial) -> bool:
    """Return whether a tier is better than the pool alone, and than that with its interval."""
    objective = window.plan.target.objective
    return trial.trial.gains[objective].value > 0 and window.beyond(trial)[objective].value > 0


def _choose(window: TierWindow, compared: Sequence[TierTrial]) -> tuple[TierTrial | None, Why]:
    """Return the candidate to judge, or why there is none.

    Where the pool alone misses the SLO, the cheapest that meets it; if none does, the cheapest with
    about the lowest percentile of those that save their price, or of all where none does; none that
    costs more than another engine's GPUs. Where the SLO is met anyway, the one that saves most. Of
    one size, options that are not the engine's own have to gain significantly.
    """
    plan, baseline, target = window.plan, window.baseline, window.plan.target
    able = [
        trial for trial in compared if trial.trial.recommendable(target) and window.earns(trial)
    ]
    affordable = [trial for trial in able if plan.affordable(trial)]
    if not any(trial.trial.keeps_up for trial in (baseline, *compared)):
        return None, "overloaded"
    if baseline.trial.meets(target):
        if plan.gpu_hour is None:
            return None, "met-without"
        harmless = [trial for trial in compared if not trial.trial.harms and trial.trial.keeps_up]
        worth = [trial for trial in harmless if window.net_hour(trial) > 0]
        if not worth:
            return None, "costs-more" if harmless else "no-gain"
        most = max(map(window.net_hour, worth))
        return _cheapest(
            plan, [each for each in worth if window.net_hour(each) >= most * (1 - ALIKE)]
        ), ""
    if not affordable:
        return None, "too-dear" if able else "no-gain"
    return _cheapest(plan, plan.nearest(baseline, affordable), window), ""


def _cheapest(
    plan: TierPlan, trials: Sequence[TierTrial], window: TierWindow | None = None
) -> TierTrial:
    """Return the cheapest trial with the fewest options; with more that gain in the window."""
    least = min(map(_price, trials))
    same = [each for each in trials if _price(each) == least]
    same.sort(key=lambda each: (plan.options_of(candidate_of(each)), each.trial.target_s))
    chosen = same[0]
    for trial in same[1:]:
        if window is not None and window.gains(trial, chosen):
            chosen = trial
    return chosen


def _least(window: TierWindow, sizes: Sequence[TierTrial], chosen: TierTrial) -> TierTrial | None:
    """Return the smallest size that may be chosen too and does for the SLO what the choice does."""
    target = window.plan.target
    for trial in sizes:
        enough = trial.trial.meets(target) or not chosen.trial.meets(target)
        if enough and _choose(window, [trial])[0] is not None:
            return trial
    return None


def _leading(explored: Sequence[TierTrial]) -> list[TierTrial]:
    """Return the candidates to compare: those that no cheaper one equals, of all costs."""
    by_latency = pareto_front(explored)
    by_work = pareto_front(explored, lambda trial: trial.prefill_share)
    leading = sorted({id(each): each for each in (*by_latency, *by_work)}.values(), key=_price)
    if len(leading) <= _COMPARED:
        return leading
    picked = np.linspace(0, len(leading) - 1, _COMPARED).round().astype(int)
    return [leading[at] for at in picked]


def _price(trial: TierTrial) -> tuple[float, tuple[int, int]]:
    return trial.cost_hour, _sizes(trial)


def _at_ends(
    plan: TierPlan, held_out: TierWindow, choice: TierCandidate, *, pays: bool
) -> tuple[TierEnd, ...]:
    """Return the choice at each end of latency, pool and session starts, and with slow copies.

    `pays`: it has to save more than it costs there too. Nor may it do harm once its files fill
    the SSD, as no engine deletes any: they are then no more than CPU memory whose misses are
    looked up in vain.
    """
    ends = [(end, 1.0, choice) for end in plan.ends]
    ends.append((End(f"copies {SLOW_COPIES:g}x as long"), SLOW_COPIES, choice))
    if choice.files_bytes:
        ends.append((FULL, 1.0, replace(choice, files_bytes=1)))
    judged = []
    for end, copies, tiers in ends:
        there = held_out.at(end)
        trial = there.of(tiers, copies)
        holds = not trial.trial.harms and (
            trial.trial.keeps_up or not there.baseline.trial.keeps_up
        )
        holds = holds and (not pays or end is FULL or plan.net_hour(there.baseline, trial) > 0)
        judged.append(TierEnd(end, copies, there.baseline, trial, holds))
    return tuple(judged)

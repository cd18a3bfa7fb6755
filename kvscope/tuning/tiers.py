"""A tier of memory below a GPU's pool: whether it pays, of which size, and how it stores.

Candidates (an engine's way to offload, and a size) are replayed on the simulated engine. Those that
no cheaper one equals on the training window are compared with the pool alone on the validation
window; the choice is accepted or rejected on the held-out one, and at the ends of what is not known
exactly: latency, pool, and how fast copies are. Without acceptance the answer is to keep no tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Literal

import numpy as np

from kvscope.characterize.windows import Windows
from kvscope.core.executor import Executor
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.policies.lru import Lru
from kvscope.replay.derived_traces import begun
from kvscope.replay.sweep import serve_replay
from kvscope.replay.tier_spec import READS, Read, Tier
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.tuning.comparison import Window, WindowTrial
from kvscope.tuning.split import Split, split_windows, window_workloads
from kvscope.tuning.target import Limits, Target
from kvscope.tuning.tier_prices import TierKind, TierPrice
from kvscope.tuning.trial import Advance, Evaluator
from kvscope.tuning.tuner import End

TierVerdict = Literal["pays", "helps", "keep-none"]
Why = Literal[
    "", "overloaded", "no-gain", "too-dear", "costs-more", "met-without", "held-out", "uncertain"
]
Progress = Callable[[str], AbstractContextManager[Advance]]

SLOW_COPIES = 3.0
"""Times as long as modelled that a copy may take: the choice has to hold there too."""
_COMPARED = 8  # candidates on the validation window
_ALIKE = 0.02  # a difference in the target's percentile that does not matter


@dataclass(frozen=True, slots=True)
class TierCandidate:
    """A tier of `size_bytes` below the pool; `offload` is how it works, as `--offload` takes it."""

    offload: str
    kind: TierKind
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TierTrial:
    """What one candidate, or the pool alone (None), did on one window.

    `trial` is compared with the pool alone. `tier_hit_rate` is the tier's share of all input
    tokens, `prefill_share` the prompts' computing time over the window's length (1: a GPU that does
    nothing else), `written_bytes_s` what is written to the tier. `cost_hour` is its price.
    """

    candidate: TierCandidate | None
    trial: WindowTrial
    tier_hit_rate: float
    prefill_share: float
    written_bytes_s: float
    cost_hour: float


@dataclass(frozen=True, slots=True)
class TierEnd:
    """The choice at one end of what is not known, on the held-out window.

    `holds`: it does no harm there, and pays its price where that is what it was chosen for.
    """

    end: End
    copies: float
    baseline: TierTrial
    choice: TierTrial
    holds: bool


@dataclass(frozen=True, slots=True)
class TierPlan:
    """What is tuned: one engine with `pool_blocks`, and the candidates.

    `block_bytes` are those of a block over all `gpus` of the engine, which read side by side.
    `gpu_hour` is the price of one, None for unknown; `prices` are those of each kind of memory.
    `shares` of the requests warm up, validate and are held out.
    """

    prompts: Prompts
    lineage: Lineage
    setting: RunSetting
    windows: Windows
    shares: tuple[float, float, float]
    target: Target
    limits: Limits
    pool_blocks: int
    block_bytes: int
    gpus: int
    candidates: tuple[TierCandidate, ...]
    prices: dict[TierKind, TierPrice]
    gpu_hour: float | None
    ends: tuple[End, ...] = ()

    def cut(self, prompts: Prompts) -> tuple[Split, tuple[Workload, Workload, Workload]]:
        """Return the windows of `prompts`; raise as `split_windows` does."""
        split = split_windows(prompts, *self.shares, self.target.percentile)
        setting = replace(self.setting, slo_s=self.target.slo_s)
        return split, window_workloads(prompts, split, setting, self.windows, self.lineage)

    def saved_hour(self, baseline: TierTrial, trial: TierTrial) -> float | None:
        """Return the price of the GPU time an hour that a tier saves, None without a price."""
        if self.gpu_hour is None:
            return None
        return (baseline.prefill_share - trial.prefill_share) * self.gpus * self.gpu_hour

    def affordable(self, trial: TierTrial) -> bool:
        """Return whether a tier costs less than another engine's GPUs, where that is known."""
        return self.gpu_hour is None or trial.cost_hour < self.gpus * self.gpu_hour


@dataclass(frozen=True, slots=True)
class TierTuning:
    """The verdict and what it rests on.

    - pays: the choice meets the SLO, and the pool alone does not; or it saves more GPU time
      than it costs.
    - helps: the choice is significantly better, but the SLO is missed with it too.
    - keep-none: nothing is to be recommended; `why` says what is the reason.

    `baseline` is the pool alone and `choice` the candidate chosen, each on validation and held-out
    window; without a candidate to choose, None. `front` are candidates on the validation window
    that no cheaper one equals, `sizes` those that work as the choice does, ascending; `least` is
    the smallest of them that may be recommended and does as much for the SLO. `explored` are all
    candidates on the training window, `trained` is the pool alone there.
    """

    verdict: TierVerdict
    why: Why
    split: Split
    baseline: tuple[TierTrial, TierTrial]
    choice: tuple[TierTrial, TierTrial] | None
    front: tuple[TierTrial, ...]
    compared: tuple[TierTrial, ...]
    sizes: tuple[TierTrial, ...]
    least: TierTrial | None
    ends: tuple[TierEnd, ...]
    trained: TierTrial
    explored: tuple[TierTrial, ...]

    @property
    def recommended(self) -> TierTrial | None:
        """The choice on the held-out window, None where no tier is to be kept."""
        return None if self.choice is None or self.verdict == "keep-none" else self.choice[1]


class _TierWindow:
    """Replays of candidates over one window, compared with the pool alone there."""

    def __init__(self, plan: TierPlan, evaluator: Evaluator) -> None:
        self.plan, self.evaluator = plan, evaluator
        self.workload = workload = evaluator.workload
        self.window = Window(self.evaluator, plan.limits)
        arrival_s = workload.prompts.arrival_s / workload.setting.rate_scale
        self._whole_s = max(float(arrival_s[-1] - arrival_s[0]), 1e-9)
        self._arrival_s = arrival_s
        self.baseline = self.of(None)

    def of(self, candidate: TierCandidate | None, copies: float = 1.0) -> TierTrial:
        """Return the trial of a candidate whose copies take so many times as long."""
        self.evaluator.require_going()
        plan, workload, blocks = self.plan, self.workload, self.plan.pool_blocks
        request = ReplayRequest(Lru(), blocks)
        if candidate is not None:
            tiers = Tier("hbm", blocks, Lru()), _tier(plan, candidate, copies)
            workload = workload.with_tier(candidate.offload, plan.block_bytes)
            request = ReplayRequest(Lru(), sum(tier.capacity_blocks for tier in tiers), tiers)
        done = serve_replay(workload, request)
        served, counted = done.served, slice(done.served.first, None)
        baseline = None if candidate is None else self.baseline.trial
        prefill_s = workload.profile.ttft_s(served.uncached_tokens, served.hit_tokens)[counted]
        window_s = float(self._arrival_s[-1] - self._arrival_s[served.first])
        written_s = (done.stored_blocks or 0) * plan.block_bytes / self._whole_s
        price = 0.0
        if candidate is not None:
            price = plan.prices[candidate.kind].hour(candidate.size_bytes, written_s)
        return TierTrial(
            candidate,
            self.window.compare(request.policy, request.capacity_blocks, served, baseline),
            done.tiers[1].token_hit_rate if done.tiers else 0.0,
            float(prefill_s.sum()) / max(window_s, 1e-9),
            written_s,
            price,
        )

    def all(self, candidates: Sequence[TierCandidate], advance: Advance) -> list[TierTrial]:
        """Return the trial of each candidate, computed on all cores."""
        shared = self.evaluator.executor.shared(self)
        return self.evaluator.each(_TierWindow.of, candidates, shared, advance=advance)


def _tier(plan: TierPlan, candidate: TierCandidate, copies: float) -> Tier:
    usual = READS[candidate.kind]
    links = plan.gpus if candidate.kind == "dram" else 1  # each GPU has a link of its own
    read = Read(usual.latency_s, usual.bytes_per_s * links / copies)
    return Tier(candidate.kind, max(1, candidate.size_bytes // plan.block_bytes), Lru(), read)


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
    with progress("replaying without a tier"):
        windows = [
            _TierWindow(plan, Evaluator(workload, plan.target, stop=stop, executor=executor))
            for workload in workloads
        ]
    return _tuned(plan, split, windows, progress)


def _tuned(
    plan: TierPlan, split: Split, opened: Sequence[_TierWindow], progress: Progress
) -> TierTuning:
    training, validation, held_out = opened
    with progress("replaying tiers") as advance:
        explored = training.all(plan.candidates, advance)
    alone = validation.baseline
    with progress("replaying the validation window") as advance:
        compared = validation.all([_of(trial) for trial in _leading(explored)], advance)
        chosen, why = _choose(plan, alone, compared)
        like = [each for each in plan.candidates if chosen and _alike(each, _of(chosen))]
        known = {trial.candidate for trial in compared}
        compared += validation.all([each for each in like if each not in known], advance)
    if chosen is not None:  # a cheaper size may do that training did not lead to
        chosen, why = _choose(plan, alone, compared)
    nothing = partial(
        TierTuning,
        verdict="keep-none",
        split=split,
        baseline=(alone, held_out.baseline),
        front=pareto_front([alone, *compared]),
        compared=tuple(compared),
        trained=training.baseline,
        explored=tuple(explored),
    )
    if chosen is None:
        return nothing(why=why, choice=None, sizes=(), least=None, ends=())
    with progress("judging the choice"):
        sizes = sorted((trial for trial in compared if _alike(_of(trial), _of(chosen))), key=_size)
        judged = held_out.of(_of(chosen))
        ends = _at_ends(plan, held_out, _of(chosen), pays=alone.trial.meets(plan.target))
    done = partial(
        nothing,
        choice=(chosen, judged),
        sizes=tuple(sizes),
        least=_least(plan, alone, sizes, chosen),
        ends=ends,
    )
    if judged.trial.harms or not judged.trial.keeps_up or not _better(plan, judged):
        return done(why="held-out")
    if not all(end.holds for end in ends):
        return done(why="uncertain")
    met = chosen.trial.meets(plan.target) and judged.trial.meets(plan.target)
    without = all(each.trial.meets(plan.target) for each in (alone, held_out.baseline))
    worth = _net(plan, alone, chosen) > 0 and _net(plan, held_out.baseline, judged) > 0
    if without and not worth:
        return done(why="held-out")
    return done(verdict="pays" if worth or met else "helps", why="")


def _of(trial: TierTrial) -> TierCandidate:
    if trial.candidate is None:
        raise ValueError("the pool alone is no candidate")
    return trial.candidate


def _alike(first: TierCandidate, second: TierCandidate) -> bool:
    return (first.offload, first.kind) == (second.offload, second.kind)


def _size(trial: TierTrial) -> int:
    return _of(trial).size_bytes


def _better(plan: TierPlan, trial: TierTrial) -> bool:
    return trial.trial.gains[plan.target.objective].value > 0


def _net(plan: TierPlan, baseline: TierTrial, trial: TierTrial) -> float:
    """Return what a tier saves an hour beyond its price; minus infinity without a GPU's price."""
    saved = plan.saved_hour(baseline, trial)
    return -np.inf if saved is None else saved - trial.cost_hour


def _choose(
    plan: TierPlan, baseline: TierTrial, compared: Sequence[TierTrial]
) -> tuple[TierTrial | None, Why]:
    """Return the candidate to judge, or why there is none.

    Where the pool alone misses the SLO, the cheapest that meets it; if none does, the cheapest with
    about the lowest percentile; none that costs more than another engine's GPUs. Where the SLO is
    met anyway, the one that saves most.
    """
    target = plan.target
    able = [trial for trial in compared if trial.trial.recommendable(target)]
    affordable = [trial for trial in able if plan.affordable(trial)]
    if not any(trial.trial.keeps_up for trial in (baseline, *compared)):
        return None, "overloaded"
    if baseline.trial.meets(target):
        if plan.gpu_hour is None:
            return None, "met-without"
        harmless = [trial for trial in compared if not trial.trial.harms and trial.trial.keeps_up]
        worth = [trial for trial in harmless if _net(plan, baseline, trial) > 0]
        if not worth:
            return None, "costs-more" if harmless else "no-gain"
        return max(worth, key=lambda trial: (_net(plan, baseline, trial), -trial.cost_hour)), ""
    if not affordable:
        return None, "too-dear" if able else "no-gain"
    meeting = [trial for trial in affordable if trial.trial.meets(target)]
    if not meeting:
        lowest_s = min(trial.trial.target_s for trial in affordable)
        meeting = [trial for trial in affordable if trial.trial.target_s <= lowest_s * (1 + _ALIKE)]
    return min(meeting, key=lambda trial: (trial.cost_hour, trial.trial.target_s)), ""


def _least(
    plan: TierPlan, baseline: TierTrial, sizes: Sequence[TierTrial], chosen: TierTrial
) -> TierTrial | None:
    """Return the smallest size that does for the SLO what the choice does, or saves its price."""
    target = plan.target
    for trial in sizes:
        if trial.trial.harms or not trial.trial.keeps_up:
            continue
        if baseline.trial.meets(target):
            if _net(plan, baseline, trial) > 0:
                return trial
        elif trial.trial.recommendable(target) and (
            trial.trial.meets(target) or not chosen.trial.meets(target)
        ):
            return trial
    return None


def _leading(explored: Sequence[TierTrial]) -> list[TierTrial]:
    """Return the candidates to compare: those that no cheaper one equals, of all costs."""
    by_latency = pareto_front(explored)
    by_work = pareto_front(explored, lambda trial: trial.prefill_share)
    leading = sorted({id(each): each for each in (*by_latency, *by_work)}.values(), key=_cost)
    if len(leading) <= _COMPARED:
        return leading
    picked = np.linspace(0, len(leading) - 1, _COMPARED).round().astype(int)
    return [leading[at] for at in picked]


def _cost(trial: TierTrial) -> float:
    return trial.cost_hour


def pareto_front(
    trials: Sequence[TierTrial],
    figure: Callable[[TierTrial], float] = lambda trial: trial.trial.target_s,
) -> tuple[TierTrial, ...]:
    """Return the trials that no cheaper or equally dear one equals in a figure, by cost."""
    front: list[TierTrial] = []
    for trial in sorted(trials, key=lambda each: (each.cost_hour, figure(each))):
        if not front or figure(trial) < figure(front[-1]):
            front.append(trial)
    return tuple(front)


def _at_ends(
    plan: TierPlan, held_out: _TierWindow, choice: TierCandidate, *, pays: bool
) -> tuple[TierEnd, ...]:
    """Return the choice at each end of latency, pool and session starts, and with slow copies.

    `pays`: it has to save more than it costs there too.
    """
    ends = [(end, 1.0) for end in plan.ends]
    ends.append((End(f"copies {SLOW_COPIES:g}x as long"), SLOW_COPIES))
    judged = []
    for end, copies in ends:
        at = replace(plan, pool_blocks=end.capacity_blocks or plan.pool_blocks)
        workload = held_out.workload
        if end.sessions is not None:
            *_, workload = plan.cut(begun(plan.prompts, end.sessions))[1]
        slower = workload.with_prefill(end.prefill_times)
        there = _TierWindow(at, held_out.evaluator.over(replicas=1, workload=slower))
        trial = there.of(choice, copies)
        holds = not trial.trial.harms and (
            trial.trial.keeps_up or not there.baseline.trial.keeps_up
        )
        holds = holds and (not pays or _net(plan, there.baseline, trial) > 0)
        judged.append(TierEnd(end, copies, there.baseline, trial, holds))
    return tuple(judged)

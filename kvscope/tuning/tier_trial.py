"""One tier of memory below a GPU's pool, replayed over a window of the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvscope.characterize.windows import Windows
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.policies.lru import Lru
from kvscope.replay.sweep import serve_replay
from kvscope.replay.tier_spec import READS, Read, Tier
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.tuning.comparison import Window, WindowTrial
from kvscope.tuning.split import Split, split_windows, window_workloads
from kvscope.tuning.target import Limits, Target
from kvscope.tuning.tier_prices import STATED, TierKind, TierPrice, tier_prices
from kvscope.tuning.trial import Advance, Evaluator
from kvscope.tuning.tuner import End

ALIKE = 0.02
"""A difference, as a share of a figure, that does not matter."""
Options = tuple[tuple[str, tuple[object, ...]], ...]


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


def candidate_of(trial: TierTrial) -> TierCandidate:
    """Return the candidate of a trial; ValueError for the pool alone."""
    if trial.candidate is None:
        raise ValueError("the pool alone is no candidate")
    return trial.candidate


@dataclass(frozen=True, slots=True)
class TierPlan:
    """What is tuned: one engine with `pool_blocks`, and the candidates.

    `block_bytes` are those of a block over all `gpus` of the engine, which read side by side.
    `gpu_hour` is the price of one, None for unknown; `prices` are those of each kind of memory.
    `shares` of the requests warm up, validate and are held out. `options` are those of a way to
    offload that are searched, with their values beside its own.
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
    options: Mapping[str, Options] = field(default_factory=dict)

    @property
    def currency(self) -> str:
        """The currency of all prices: of the list's, empty where none of them is used."""
        kinds = {each.kind for each in self.candidates}
        stated = all(self.prices[kind].source == STATED for kind in kinds)
        return "" if stated else tier_prices().currency

    def wear(self, trial: TierTrial) -> float:
        """Return a tier's writes as a multiple of those that its memory is rated for."""
        if trial.candidate is None:
            return 0.0
        price = self.prices[trial.candidate.kind]
        return price.wear(trial.candidate.size_bytes, trial.written_bytes_s)

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

    def net_hour(self, baseline: TierTrial, trial: TierTrial) -> float:
        """Return what a tier saves an hour beyond its price; -inf without a GPU's price."""
        saved = self.saved_hour(baseline, trial)
        return -np.inf if saved is None else saved - trial.cost_hour

    def affordable(self, trial: TierTrial) -> bool:
        """Return whether a tier costs less than another engine's GPUs, where that is known."""
        return self.gpu_hour is None or trial.cost_hour < self.gpus * self.gpu_hour


class TierWindow:
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
            tiers = Tier("hbm", blocks, Lru()), tier_of(plan, candidate, copies)
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

    def gains(self, trial: TierTrial, other: TierTrial) -> bool:
        """Return whether a trial is significantly better than another one of this window."""
        gain = self.window.bootstrap.gains(other.trial.resampled, trial.trial.resampled)
        return gain[self.plan.target.objective].significant

    def all(self, candidates: Sequence[TierCandidate], advance: Advance) -> list[TierTrial]:
        """Return the trial of each candidate, computed on all cores."""
        shared = self.evaluator.executor.shared(self)
        return self.evaluator.each(TierWindow.of, candidates, shared, advance=advance)


def tier_of(plan: TierPlan, candidate: TierCandidate, copies: float = 1.0) -> Tier:
    """Return the tier of a candidate whose copies take so many times as long."""
    usual = READS[candidate.kind]
    links = plan.gpus if candidate.kind == "dram" else 1  # each GPU has a link of its own
    read = Read(usual.latency_s, usual.bytes_per_s * links / copies)
    return Tier(candidate.kind, max(1, candidate.size_bytes // plan.block_bytes), Lru(), read)


def pareto_front(
    trials: Sequence[TierTrial],
    figure: Callable[[TierTrial], float] = lambda trial: trial.trial.target_s,
) -> tuple[TierTrial, ...]:
    """Return the trials that no cheaper one equals in a figure, by price, then by size."""
    front: list[TierTrial] = []

    def rank(trial: TierTrial) -> tuple[float, int, float]:
        size = trial.candidate.size_bytes if trial.candidate else 0
        return trial.cost_hour, size, figure(trial)

    for trial in sorted(trials, key=rank):
        if not front or figure(trial) < figure(front[-1]):
            front.append(trial)
    return tuple(front)

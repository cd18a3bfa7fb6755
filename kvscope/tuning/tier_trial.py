"""Tiers of memory below a GPU's pool, replayed over a window of the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvscope.characterize.windows import Windows
from kvscope.core.errors import UsageError
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.policies.lru import Lru
from kvscope.replay.sweep import serve_replay
from kvscope.replay.tier_spec import READS, WRITES, Read, Tier, offload_spec
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.tuning.comparison import Window, WindowTrial
from kvscope.tuning.split import Split, split_windows, window_workloads
from kvscope.tuning.target import Limits, Target
from kvscope.tuning.tier_prices import STATED, TierKind, TierPrice, tier_prices
from kvscope.tuning.trial import Advance, Evaluator
from kvscope.tuning.tuner import End
from kvscope.vllm_sim.offload_engines import Offloading

ALIKE = 0.02
"""A difference, as a share of a figure, that does not matter."""
Options = tuple[tuple[str, tuple[object, ...]], ...]


@dataclass(frozen=True, slots=True)
class TierCandidate:
    """A tier of `size_bytes` below the pool; `offload` is how it works, as `--offload` takes it.

    `files_bytes` are those of an SSD below CPU memory, where an engine keeps files; 0 without.
    """

    offload: str
    kind: TierKind
    size_bytes: int
    files_bytes: int = 0

    @property
    def spec(self) -> Offloading:
        """How it works, with the files below."""
        return offload_spec(self.offload, files=self.files_bytes > 0)

    @property
    def kinds(self) -> tuple[TierKind, ...]:
        """The kind of memory of each tier, from the pool down."""
        return tuple(kind for kind, _ in self.tiers)

    @property
    def sizes(self) -> tuple[int, int]:
        """Both sizes, to sort by."""
        return self.size_bytes, self.files_bytes

    @property
    def tiers(self) -> tuple[tuple[TierKind, int], ...]:
        """The kind of memory and the size of each tier, from the pool down."""
        below: tuple[tuple[TierKind, int], ...] = (("ssd", self.files_bytes),)
        return (self.kind, self.size_bytes), *(below if self.files_bytes else ())


@dataclass(frozen=True, slots=True)
class TierRejection:
    """A candidate under which requests of a window never start, and why."""

    candidate: TierCandidate
    reason: str


@dataclass(frozen=True, slots=True)
class TierTrial:
    """What one candidate, or the pool alone (None), did on one window.

    `trial` is compared with the pool alone. `tier_hit_rate` is the tiers' share of all input
    tokens, `prefill_share` the prompts' computing time over the window's length (1: a GPU that does
    nothing else), `written_bytes_s` what is written to the tier, and on to files below it at most
    (what a file has already is not written again). `cost_hour` is the price of all tiers.
    """

    candidate: TierCandidate | None
    trial: WindowTrial
    tier_hit_rate: float
    prefill_share: float
    written_bytes_s: float
    cost_hour: float

    @property
    def full_s(self) -> float | None:
        """In how many seconds files fill their SSD, at the earliest; None without files."""
        if self.candidate is None or not self.candidate.files_bytes:
            return None
        return self.candidate.files_bytes / max(self.written_bytes_s, 1e-9)


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
        stated = all(self.prices[kind].source == STATED for kind in self.kinds)
        return "" if stated else tier_prices().currency

    @property
    def kinds(self) -> list[TierKind]:
        """The kinds of memory of all candidates, sorted."""
        return sorted({kind for each in self.candidates for kind in each.kinds})

    def wear(self, trial: TierTrial) -> float:
        """Return the writes to the tier that wears most, as a multiple of those it is rated for."""
        tiers = trial.candidate.tiers if trial.candidate else ()
        return max(
            (self.prices[kind].wear(size, trial.written_bytes_s) for kind, size in tiers),
            default=0.0,
        )

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

    def nearest(self, baseline: TierTrial, trials: Sequence[TierTrial]) -> list[TierTrial]:
        """Return the trials that meet the target; without any, those with about the lowest figure.

        Where none meets it, those that save more than their price go before all others: memory is
        then no way to the SLO, and only worth what it saves.
        """
        meeting = [trial for trial in trials if trial.trial.meets(self.target)]
        paying = [trial for trial in trials if self.net_hour(baseline, trial) > 0]
        return meeting or about_lowest(paying or trials)

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
        self.rejections: dict[TierCandidate, TierRejection] = {}
        self.baseline = self.of(None)

    def of(self, candidate: TierCandidate | None, copies: float = 1.0) -> TierTrial:
        """Return the trial of a candidate whose copies take so many times as long.

        Raises UsageError where chunks read from its files drop each other from too small a memory.
        """
        self.evaluator.require_going()
        plan, workload, blocks = self.plan, self.workload, self.plan.pool_blocks
        request = ReplayRequest(Lru(), blocks)
        if candidate is not None:
            tiers = Tier("hbm", blocks, Lru()), *tiers_of(plan, candidate, copies)
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
            price = sum(plan.prices[kind].hour(size, written_s) for kind, size in candidate.tiers)
        return TierTrial(
            candidate,
            self.window.compare(request.policy, request.capacity_blocks, served, baseline),
            sum(tier.token_hit_rate for tier in done.tiers[1:]),
            float(prefill_s.sum()) / max(window_s, 1e-9),
            written_s,
            price,
        )

    def gains(self, trial: TierTrial, other: TierTrial) -> bool:
        """Return whether a trial is significantly better than another one of this window."""
        gain = self.window.bootstrap.gains(other.trial.resampled, trial.trial.resampled)
        return gain[self.plan.target.objective].significant

    def all(self, candidates: Sequence[TierCandidate], advance: Advance) -> list[TierTrial]:
        """Return the trial of each candidate that serves all requests, computed on all cores.

        The others join `rejections`.
        """
        shared = self.evaluator.executor.shared(self)
        done = self.evaluator.each(TierWindow._tried, candidates, shared, advance=advance)
        rejected = [each for each in done if isinstance(each, TierRejection)]
        self.rejections |= {each.candidate: each for each in rejected}
        return [each for each in done if isinstance(each, TierTrial)]

    def _tried(self, candidate: TierCandidate) -> TierTrial | TierRejection:
        try:
            return self.of(candidate)
        except UsageError as error:
            if not candidate.files_bytes:
                raise
            return TierRejection(candidate, error.what)


def tiers_of(plan: TierPlan, candidate: TierCandidate, copies: float = 1.0) -> list[Tier]:
    """Return the tiers of a candidate whose copies take so many times as long."""

    def tier(kind: TierKind, size_bytes: int) -> Tier:
        usual = READS[kind]
        links = plan.gpus if kind == "dram" else 1  # each GPU has a link of its own
        read = Read(usual.latency_s, usual.bytes_per_s * links / copies)
        blocks = max(1, size_bytes // plan.block_bytes)
        return Tier(kind, blocks, Lru(), read, WRITES[kind] * links / copies)

    return [tier(*each) for each in candidate.tiers]


def about_lowest(trials: Sequence[TierTrial]) -> list[TierTrial]:
    """Return the trials whose percentile is about the lowest; there is at least one."""
    most_s = min(trial.trial.target_s for trial in trials) * (1 + ALIKE)
    return [trial for trial in trials if not trial.trial.target_s > most_s]


def pareto_front(
    trials: Sequence[TierTrial],
    figure: Callable[[TierTrial], float] = lambda trial: trial.trial.target_s,
) -> tuple[TierTrial, ...]:
    """Return the trials that no cheaper one equals in a figure, by price, then by size."""
    front: list[TierTrial] = []

    def rank(trial: TierTrial) -> tuple[float, tuple[int, int], float]:
        sizes = trial.candidate.sizes if trial.candidate else (0, 0)
        return trial.cost_hour, sizes, figure(trial)

    for trial in sorted(trials, key=rank):
        if not front or figure(trial) < figure(front[-1]):
            front.append(trial)
    return tuple(front)

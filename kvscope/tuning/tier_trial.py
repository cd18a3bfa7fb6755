"""Tiers of memory below a GPU's pool, replayed over a window of the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.characterize.windows import Windows
from kvscope.core.errors import UsageError
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.lru_retention import retained_by, retaining
from kvscope.replay.derived_traces import begun
from kvscope.replay.metrics import ServedRequests
from kvscope.replay.sweep import serve_replay
from kvscope.replay.tier_spec import READS, WRITES, Read, Tier, offload_spec
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.canary import Canary
from kvscope.tuning.comparison import Window, WindowTrial
from kvscope.tuning.split import Split, split_windows, window_workloads
from kvscope.tuning.target import Limits, Target
from kvscope.tuning.tier_prices import STATED, TierKind, TierPrice, tier_prices
from kvscope.tuning.trial import Advance, Evaluator
from kvscope.tuning.tuner import End
from kvscope.vllm_sim.offload_engines import Offloading
from kvscope.vllm_sim.offload_spec import OffloadSpec

ALIKE = 0.02
"""A difference, as a share of a figure, that does not matter."""
Options = tuple[tuple[str, tuple[object, ...]], ...]
DEFAULT_INTERVAL = 0.0
"""vLLM's `--prefix-cache-retention-interval`, as `kvscope.policies.lru_retention` counts them."""


class TierCandidate(Struct, frozen=True):
    """A tier of `size_bytes` below the pool; `offload` is how it works, as `--offload` takes it.

    `files_bytes` are those of an SSD below CPU memory, where an engine keeps files; 0 without.
    `interval` are the tokens between windows that a hybrid model keeps, in pool and tier; inf: all.
    """

    offload: str
    kind: TierKind
    size_bytes: int
    files_bytes: int = 0
    interval: float = DEFAULT_INTERVAL

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


class TierRejection(Struct, frozen=True):
    """A candidate under which requests of a window never start, and why."""

    candidate: TierCandidate
    reason: str


class TierTrial(Struct, frozen=True):
    """What one candidate, or the pool alone (None), did on one window.

    `trial` is compared with the baseline of its `TierWindow`; its harms are also those against the
    pool alone as it is today. `tier_hit_rate` is the tiers' share of all input
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
    def interval(self) -> float:
        """The tokens between windows that a hybrid model keeps, as in `TierCandidate`."""
        return retained_by(self.trial.policy)

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


class TierPlan(Struct, frozen=True):
    """What is tuned: one engine with `pool_blocks`, and the candidates.

    `block_bytes` are those of a block over all `gpus` of the engine, which read side by side.
    `gpu_hour` is the price of one, None for unknown; `prices` are those of each kind of memory.
    `shares` of the requests warm up, validate and are held out. `options` are those of a way to
    offload that are searched, with their values beside its own, and `intervals` those between the
    windows of a hybrid model, beside vLLM's default. `interval` is that of the pool alone with
    which tiers are compared.
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
    intervals: tuple[float, ...] = ()
    interval: float = DEFAULT_INTERVAL

    @property
    def groups(self) -> KvGroups | None:
        """The groups of a hybrid model's layers, with vLLM's default interval."""
        return KvGroups.parse(self.setting.kv_groups) if self.setting.kv_groups else None

    def keeping(self, interval: float) -> TierPlan:
        """Return the plan with another interval of the pool alone, and of the tiers above it."""
        others = (replace(each, interval=interval) for each in self.candidates)
        pairs = zip(self.candidates, others, strict=True)
        safe = tuple(other if self.safe(other) else each for each, other in pairs)
        return replace(self, interval=interval, candidates=safe)

    def options_of(self, candidate: TierCandidate) -> int:
        """Return how many options of a candidate are not the engine's, or the pool's, own."""
        return candidate.offload.count(":") + (candidate.interval != self.interval)

    def safe(self, candidate: TierCandidate) -> bool:
        """Return whether vLLM loads what it stored with a candidate's options.

        With all windows kept and outputs stored it may load blocks of another request where those
        of windows are smaller than those of full attention (docs/offload-hybrid.md).
        """
        spec, groups = candidate.spec, self.groups
        stores_outputs = isinstance(spec, OffloadSpec) and not spec.offload_prompt_only
        keeps_all = groups is not None and groups.smaller_windows and np.isinf(candidate.interval)
        return not (stores_outputs and keeps_all)

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
    """Replays of candidates over one window, compared with the pool alone there.

    `today` is the pool alone as it is, `baseline` the same with the interval of the plan.
    """

    def __init__(self, plan: TierPlan, evaluator: Evaluator) -> None:
        self.plan, self.evaluator = plan, evaluator
        self.workload = workload = evaluator.workload
        self.window = Window(self.evaluator, plan.limits)
        arrival_s = workload.prompts.arrival_s / workload.setting.rate_scale
        self._whole_s = max(float(arrival_s[-1] - arrival_s[0]), 1e-9)
        self._arrival_s = arrival_s
        self.rejections: dict[TierCandidate, TierRejection] = {}
        self._alone: dict[float, TierTrial] = {}
        self.today = self.alone(DEFAULT_INTERVAL)
        self.baseline = self.alone(plan.interval)

    def keeping(self, plan: TierPlan) -> TierWindow:
        """Return the window for a plan with another interval of the pool alone."""
        other = copy(self)
        other.plan, other.baseline = plan, self.alone(plan.interval)
        return other

    def at(self, end: End) -> TierWindow:
        """Return the window at one end of what is not known exactly."""
        plan, workload = self.plan, self.workload
        if end.sessions is not None:
            *_, workload = plan.cut(begun(plan.prompts, end.sessions))[1]
        slower = workload.with_prefill(end.prefill_times)
        plan = replace(plan, pool_blocks=end.capacity_blocks or plan.pool_blocks)
        return TierWindow(plan, self.evaluator.over(replicas=1, workload=slower))

    def alone(self, interval: float) -> TierTrial:
        """Return the trial of the pool alone with an interval, against that of today."""
        if interval not in self._alone:
            self._alone[interval] = self._replayed(None, interval)
        return self._alone[interval]

    def of(self, candidate: TierCandidate, copies: float = 1.0) -> TierTrial:
        """Return the trial of a candidate whose copies take so many times as long.

        Raises UsageError where chunks read from its files drop each other from too small a memory.
        """
        return self._replayed(candidate, candidate.interval, copies)

    def _replayed(
        self, candidate: TierCandidate | None, interval: float, copies: float = 1.0
    ) -> TierTrial:
        self.evaluator.require_going()
        plan, workload, blocks = self.plan, self.workload, self.plan.pool_blocks
        policy = retaining(interval)
        request = ReplayRequest(policy, blocks)
        if candidate is not None:
            tiers = Tier("hbm", blocks, policy), *tiers_of(plan, candidate, copies)
            workload = workload.with_tier(candidate.offload, plan.block_bytes)
            request = ReplayRequest(policy, sum(tier.capacity_blocks for tier in tiers), tiers)
        done = serve_replay(workload, request)
        served, counted = done.served, slice(done.served.first, None)
        prefill_s = workload.profile.ttft_s(served.uncached_tokens, served.hit_tokens)[counted]
        window_s = float(self._arrival_s[-1] - self._arrival_s[served.first])
        written_s = (done.stored_blocks or 0) * plan.block_bytes / self._whole_s
        price = 0.0
        if candidate is not None:
            price = sum(plan.prices[kind].hour(size, written_s) for kind, size in candidate.tiers)
        return TierTrial(
            candidate,
            self._compared(candidate, policy, request.capacity_blocks, served),
            sum(tier.token_hit_rate for tier in done.tiers[1:]),
            float(prefill_s.sum()) / max(window_s, 1e-9),
            written_s,
            price,
        )

    def _compared(
        self,
        candidate: TierCandidate | None,
        policy: Policy,
        capacity_blocks: int,
        served: ServedRequests,
    ) -> WindowTrial:
        """Return the trial of a replay: a tier's against the baseline, the pool's against today."""
        if candidate is None:
            today = self._alone.get(DEFAULT_INTERVAL)
            before = None if today is None else today.trial
            return self.window.compare(policy, capacity_blocks, served, before)
        trial = self.window.compare(policy, capacity_blocks, served, self.baseline.trial)
        if self.baseline is self.today:
            return trial
        since_today = self.window.against(self.today.trial, trial).harms
        known = {harm.figure for harm in trial.harms}
        more = (harm for harm in since_today if harm.figure not in known)
        return replace(trial, harms=(*trial.harms, *more))

    def earns(self, trial: TierTrial) -> bool:
        """Return whether a tier gains significantly more than its interval does without it."""
        own = trial.interval == self.plan.interval  # compared with that already
        return own or self.beyond(trial)[self.plan.target.objective].significant

    def net_hour(self, trial: TierTrial) -> float:
        """Return what a tier saves an hour beyond its price, and what its interval saves alone."""
        alone = self.baseline, self.alone(trial.interval)
        return min(self.plan.net_hour(each, trial) for each in alone)

    def beyond(self, trial: TierTrial) -> Mapping[str, Gain]:
        """Return the gains of a tier over the pool alone with its interval."""
        alone = self.alone(trial.interval).trial
        return self.window.bootstrap.gains(alone.resampled, trial.trial.resampled)

    def canary(self, baseline: TierTrial, trial: TierTrial) -> Canary:
        """Return the canary that shows the gain of a trial of this window on one engine."""
        return self.window.canary(baseline.trial, trial.trial, replicas=1)

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

    def all_alone(self, intervals: Sequence[float], advance: Advance) -> list[TierTrial]:
        """Return the trial of the pool alone with each interval, computed on all cores."""
        shared = self.evaluator.executor.shared(self)
        done = self.evaluator.each(TierWindow.alone, intervals, shared, advance=advance)
        self._alone |= zip(intervals, done, strict=True)
        return done

    def _tried(self, candidate: TierCandidate) -> TierTrial | TierRejection:
        try:
            return self.of(candidate)
        except UsageError as error:
            if not candidate.files_bytes:
                raise
            return TierRejection(candidate, error.what)


def tiers_of(plan: TierPlan, candidate: TierCandidate, copies: float = 1.0) -> list[Tier]:
    """Return the tiers of a candidate whose copies take so many times as long."""
    return [tier_of(*each, plan.block_bytes, plan.gpus, copies) for each in candidate.tiers]


def tier_of(
    kind: TierKind, size_bytes: int, block_bytes: int, gpus: int, copies: float = 1.0
) -> Tier:
    """Return a tier of so many bytes below `gpus`, whose copies take so many times as long."""
    usual = READS[kind]
    links = gpus if kind == "dram" else 1  # each GPU has a link of its own
    read = Read(usual.latency_s, usual.bytes_per_s * links / copies)
    blocks = max(1, size_bytes // block_bytes)
    return Tier(kind, blocks, Lru(), read, WRITES[kind] * links / copies)


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

"""The tuning itself: search, choose, judge, and the least capacity that meets the SLO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Event

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.characterize.windows import Windows
from kvscope.core.executor import Executor
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.ingest.clocks import SessionStarts
from kvscope.policies.base import Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.lru_retention import LruRetention
from kvscope.policies.tail_belady import TailBelady
from kvscope.replay.curve import first_counted
from kvscope.replay.derived_traces import begun
from kvscope.replay.parameter_estimates import Estimates, bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.sweep import engine_of
from kvscope.replay.workload import Workload
from kvscope.tuning.canary import Canary
from kvscope.tuning.capacity import least_for_any, least_for_lru
from kvscope.tuning.comparison import Window, WindowTrial, changes, harms
from kvscope.tuning.load import MOST_REPLICAS, Load, least_replicas, load_of
from kvscope.tuning.search import Contender, Rank, search, xi_hints
from kvscope.tuning.split import Split, split_windows, window_workloads
from kvscope.tuning.target import HELD_OUT, VALIDATION, WARMUP, Limits, Target
from kvscope.tuning.trial import Advance, Evaluator, Trial
from kvscope.tuning.verdict import Judged, Verdict, decide
from kvscope.vllm_sim.settings import NO_LIMIT
from kvscope.vllm_sim.state import blocks_needed, engine_traffic

Progress = Callable[[str], AbstractContextManager[Advance]]

ORACLES = (Belady, TailBelady)
_HALF = 0.5
_COMPARED = 5  # settings of each policy that the validation window chooses from
_KEPT_POLICIES, _KEPT_SETTINGS = 3, 3  # that the search for capacities goes on with


class End(Struct, frozen=True):
    """One end of what is not known exactly: the capacity, how long prefill takes, session starts.

    Sessions without a common clock begin as `sessions` say; None: as the trace has them.
    """

    name: str
    prefill_times: float = 1.0
    capacity_blocks: int | None = None
    sessions: SessionStarts | None = None


class TuningOptions(Struct, frozen=True):
    """The target, the variants that compete with LRU, and the capacities.

    `capacity_blocks` is that of each of `replicas`, which share the trace by whole conversations;
    None: where LRU gets half of the possible hits, and at least the longest prompt. The least
    capacity is searched from `lowest_blocks` to `highest_blocks`, None: to where LRU has all hits.
    `warmup`, `validation` and `held_out` are shares of the requests. The verdict is repeated at
    each of `ends`. With `scale_out`, what misses the SLO needs replicas, not a larger pool.
    """

    target: Target
    variants: tuple[Variant, ...]
    capacity_blocks: int | None = None
    replicas: int = 1
    lowest_blocks: int = 0
    highest_blocks: int | None = None
    warmup: float = WARMUP
    validation: float = VALIDATION
    held_out: float = HELD_OUT
    limits: Limits = field(default_factory=Limits)
    ends: tuple[End, ...] = ()
    scale_out: bool = False

    def split(self, prompts: Prompts) -> Split:
        """Return the windows of a trace; raise as `split_windows` does."""
        return split_windows(
            prompts, self.warmup, self.validation, self.held_out, self.target.percentile
        )


class RequiredCapacity(Struct, frozen=True):
    """The least capacity that meets the SLO on the training window, and its held-out trial.

    `would_need_blocks` is what the held-out window would have needed, where `held_out` does not
    meet the SLO; None where it does, or where no capacity would.
    """

    training: Trial
    held_out: Trial
    would_need_blocks: int | None


class EndVerdict(Struct, frozen=True):
    """The verdict at one end, the choice being the same; both trials are of the held-out window.

    `eligible`: whether the choice may be recommended there, and does no harm on either window;
    None without a choice.
    """

    end: End
    verdict: Verdict
    baseline: Trial
    choice: Trial | None
    eligible: bool | None = None


class TuningResult(Struct, frozen=True):
    """The verdict and all that it rests on.

    `lru` and `choice` are judged on the validation and the held-out window; `choice` is None where
    no contender may be recommended. `recommended` is what to run: the choice, LRU, or either at a
    larger capacity, on the held-out window. `contenders` are the best of each policy, the preferred
    one first, and `infinite` an infinite cache, both on the validation window, as the `oracles`
    are, which know the future. `explored` are all trials on the training window. `replicas_needed`
    meet the SLO with LRU on both windows; None without `scale_out`, for keep-lru, and where
    MOST_REPLICAS times as many as at present do not.
    """

    target: Target
    setting: RunSetting
    split: Split
    capacity_blocks: int
    replicas: int
    estimates: Estimates
    verdict: Verdict
    recommended: WindowTrial
    lru: Judged
    choice: Judged | None
    contenders: tuple[WindowTrial, ...]
    infinite: WindowTrial
    load: Load
    least_lru: RequiredCapacity | None
    least_any: RequiredCapacity | None
    explored: tuple[Trial, ...]
    replicas_needed: int | None = None
    capacity_origin: str = ""
    oracles: tuple[WindowTrial, ...] = ()
    ends: tuple[EndVerdict, ...] = ()
    canary: Canary | None = None

    @property
    def baseline(self) -> WindowTrial:
        """LRU at the present capacity, on the held-out window."""
        return self.lru.held_out

    @property
    def replicas_tried(self) -> int:
        """The most replicas that were tried, where none were enough."""
        return self.replicas * MOST_REPLICAS

    @property
    def certain(self) -> bool:
        """Whether the verdict is the same at all ends."""
        return not self.disagreeing

    @property
    def disagreeing(self) -> tuple[EndVerdict, ...]:
        """The ends with another verdict."""
        return tuple(end for end in self.ends if end.verdict != self.verdict)

    @property
    def layouts(self) -> tuple[EndVerdict, ...]:
        """The ends with other starts of the sessions."""
        return tuple(end for end in self.ends if end.end.sessions)


class Tuner:
    """The three windows of a trace, and the search for a recommendation."""

    def __init__(
        self,
        workloads: tuple[Workload, Workload, Workload],
        options: TuningOptions,
        progress: Progress,
        stop: Event,
        executor: Executor | None = None,
    ) -> None:
        self.options, self.target, self.progress = options, options.target, progress
        self.training, validation, held_out = (
            Evaluator(
                workload,
                options.target,
                replicas=options.replicas,
                stop=stop,
                executor=executor,
            )
            for workload in workloads
        )
        self.validation = Window(validation, options.limits)
        self.held_out = Window(held_out, options.limits)
        training = self.training.workload
        self.estimates = estimate_parameters(
            training.request_traffic, training.profile, options.target.slo_s, share=1.0
        )

    def run(self, capacity: int, split: Split) -> TuningResult:
        """Return what to run at `capacity` blocks or more, and what that rests on."""
        target, options = self.target, self.options
        with self.progress("replaying LRU") as advance:
            lru = self._judged(Lru(), capacity)
            load = (
                load_of(self.validation.evaluator, capacity, options.replicas, advance)
                if target.view == "queued"
                else Load(0.0, overloaded=False)
            )
            lossless = _lossless(self.validation.evaluator)
            setting = self.validation.evaluator.workload.setting
            infinite = self.validation.measure(_keep_all(setting), lossless, lru.validation)
        # Where even an infinite cache does not keep up, no policy does.
        variants = options.variants if infinite.keeps_up else ()
        names = ", ".join(variant.policy.name for variant in variants)
        with self.progress(f"searching {names} at {capacity:,} blocks") as advance:
            hints = xi_hints(self.training, capacity)
            searched = search(
                self.training,
                variants,
                self.estimates,
                hints,
                capacity,
                self._rank(capacity),
                advance,
            )
        with self.progress("replaying the validation window") as advance:
            contenders = self._compared(searched, lru.validation, capacity, advance)
        choice = None
        if contenders and contenders[0].recommendable(target):
            choice = self._judged(contenders[0].policy, capacity, lru)
        verdict = decide(target, lru, choice, infinite)
        least_lru = least_any = None
        if verdict != "overloaded":
            with self.progress("searching the least capacity") as advance:
                low, high = self._lowest, self._highest(self.training)
                training_lru = least_for_lru(self.training, low, high, advance)
                training_any = self._least_for_any(searched, training_lru, capacity, advance)
                least_lru, least_any = self._required(training_lru), self._required(training_any)
        recommended = lru.held_out
        if verdict == "switch" and choice is not None:
            recommended = choice.held_out
        elif verdict == "add-capacity" and not options.scale_out:
            recommended = self._larger(lru, least_any, least_lru) or recommended
        return TuningResult(
            target=target,
            setting=self.held_out.evaluator.workload.setting,
            split=split,
            capacity_blocks=capacity,
            replicas=options.replicas,
            estimates=self.estimates,
            verdict=verdict,
            recommended=recommended,
            lru=lru,
            choice=choice,
            contenders=tuple(contenders),
            infinite=infinite,
            load=load,
            least_lru=least_lru,
            least_any=least_any,
            explored=tuple(self.training.trials.values()),
            replicas_needed=self._replicas_needed(capacity, verdict),
            canary=(
                self.held_out.canary(lru.held_out, choice.held_out, self.options.replicas)
                if verdict == "switch" and choice
                else None
            ),
        )

    def oracles(self, capacity: int, lru: Judged) -> list[WindowTrial]:
        """Return the oracles on the validation window; none where an engine cannot run them."""
        if self.training.workload.setting.capacity_model == "engine":
            return []
        points = [(bind(Variant(policy), self.estimates), capacity) for policy in ORACLES]
        with self.progress("replaying the oracles") as advance:
            return self.validation.measure_all(points, lru.validation, advance)

    def ends(self, result: TuningResult, prompts: Prompts, lineage: Lineage) -> list[EndVerdict]:
        """Return the verdict at each end, for the policy that was chosen.

        `prompts` is the whole trace, whose sessions begin otherwise at some ends.
        """
        before = map(self.training.executor.shared, (self, result, prompts, lineage))
        with self.progress("judging at the ends of what is not known") as advance:
            return self.training.each(Tuner._end, self.options.ends, *before, advance=advance)

    def _end(
        self, result: TuningResult, prompts: Prompts, lineage: Lineage, end: End
    ) -> EndVerdict:
        workloads = [each.evaluator.workload for each in (self.validation, self.held_out)]
        if (starts := end.sessions) is not None:
            laid_out = begun(prompts, starts)
            split = self.options.split(laid_out)
            _, *workloads = window_workloads(
                laid_out, split, result.setting, workloads[0].windows, lineage
            )
        return self._at(end, result, [each.with_prefill(end.prefill_times) for each in workloads])

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"progress": None}  # shown by the process that the user sees

    def _at(self, end: End, result: TuningResult, workloads: Sequence[Workload]) -> EndVerdict:
        capacity = end.capacity_blocks or result.capacity_blocks
        validation, held_out = (
            Window(
                self.training.over(replicas=self.options.replicas, workload=workload),
                self.options.limits,
            )
            for workload in workloads
        )
        lru = _judged(validation, held_out, Lru(), capacity)
        choice, eligible = None, None
        if result.choice is not None:
            policy = result.choice.validation.policy
            choice = _judged(validation, held_out, policy, capacity, lru)
            recommendable = choice.validation.recommendable(self.target)
            eligible = recommendable and not choice.held_out.harms
        unbounded = _keep_all(result.setting), _lossless(validation.evaluator)
        infinite = validation.measure(*unbounded, lru.validation)
        return EndVerdict(
            end,
            decide(self.target, lru, choice if eligible else None, infinite),
            lru.held_out,
            choice.held_out if choice else None,
            eligible,
        )

    def _judged(self, policy: Policy, capacity: int, lru: Judged | None = None) -> Judged:
        return _judged(self.validation, self.held_out, policy, capacity, lru)

    def _compared(
        self,
        searched: Sequence[Contender],
        baseline: WindowTrial,
        capacity: int,
        advance: Advance,
    ) -> list[WindowTrial]:
        """Return the preferred setting of each policy on the validation window, the best first.

        The settings compared were the best in training.
        """
        leading = [contender.trials[:_COMPARED] for contender in searched]
        points = [(trial.policy, capacity) for trials in leading for trial in trials]
        measured = iter(self.validation.measure_all(points, baseline, advance))
        best = [
            min((next(measured) for _ in trials), key=lambda trial: trial.preference(self.target))
            for trials in leading
        ]
        return sorted(best, key=lambda trial: trial.preference(self.target))

    def _rank(self, capacity: int) -> Rank:
        """Return the order of trials in training: what breaks no limit against LRU comes first."""
        target, limits = self.target, self.options.limits
        baseline = self.training.trial(Lru(), capacity)

        def rank(trial: Trial) -> tuple[float, ...]:
            broken = harms(target, limits, changes(target, baseline, trial))
            return bool(broken), *trial.rank(target)

        return rank

    def _larger(
        self,
        lru: Judged,
        least_any: RequiredCapacity | None,
        least_lru: RequiredCapacity | None,
    ) -> WindowTrial | None:
        """Return what meets the SLO in both windows at the least capacity beyond the present one.

        Another policy counts only if it may be recommended over LRU at that capacity. That the
        held-out window is looked at for the capacity favours no policy.
        """
        for least in (least_any, least_lru):
            if least is None:
                continue
            policy, present = least.training.policy, lru.held_out.capacity_blocks
            needed = least.would_need_blocks or least.training.capacity_blocks
            window = self.validation.evaluator
            if not window.trial(policy, max(needed, present)).meets(self.target):
                highest = self._highest(window)
                more = least_for_any(window, [policy], max(needed, present), highest)
                needed = more.capacity_blocks if more else 0
            if needed <= present:
                continue
            if least is not least_lru:
                there = self.validation.measure(Lru(), needed)
                if not self.validation.measure(policy, needed, there).recommendable(self.target):
                    continue
            return self.held_out.measure(policy, needed, lru.held_out)
        return None

    def _least_for_any(
        self,
        contenders: Sequence[Contender],
        lru: Trial | None,
        capacity: int,
        advance: Advance,
    ) -> Trial | None:
        """Search with the settings that did best at the present capacity, up to what LRU needs."""
        settings = [
            trial.policy
            for contender in contenders[:_KEPT_POLICIES]
            for trial in contender.trials[:_KEPT_SETTINGS]
        ]
        high = lru.capacity_blocks if lru else self._highest(self.training)
        if not settings or not high:
            return lru
        low, policies = self._lowest, [Lru(), *settings]
        return least_for_any(self.training, policies, low, high, advance, also=capacity)

    def _required(self, training: Trial | None) -> RequiredCapacity | None:
        """Return the least capacity with its trial on the held-out window."""
        if training is None:
            return None
        policy, blocks = training.policy, training.capacity_blocks
        evaluator = self.held_out.evaluator
        held_out = evaluator.trial(policy, blocks)
        if held_out.meets(self.target):
            return RequiredCapacity(training, held_out, None)
        more = least_for_any(evaluator, [policy], blocks, self._highest(evaluator))
        return RequiredCapacity(training, held_out, more.capacity_blocks if more else None)

    @property
    def _lowest(self) -> int:
        """The least capacity to search: an engine's rejects no more requests than may be late."""
        workload, lowest = self.training.workload, self.options.lowest_blocks
        if workload.setting.capacity_model != "engine":
            return lowest
        first = first_counted(workload.prompts, workload.setting.definition)
        size = workload.prompts.block_size
        engine = engine_of(workload.setting, NO_LIMIT, size)
        times = engine.groups.block_tokens // size if engine.groups else 1
        needed = np.sort(blocks_needed(engine_traffic(workload.prompts), engine)[first:] * times)
        fitting = math.ceil(self.target.percentile * len(needed) - 1e-9)
        return max(lowest, int(needed[fitting - 1]))

    def _highest(self, evaluator: Evaluator) -> int:
        """Return the largest capacity to search."""
        limit = self.options.highest_blocks
        return _lossless(evaluator) if limit is None else min(limit, _lossless(evaluator))

    def _replicas_needed(self, capacity: int, verdict: Verdict) -> int | None:
        if not self.options.scale_out or verdict == "keep-lru":
            return None

        def meets(replicas: int) -> bool:
            windows = (self.validation, self.held_out)
            evaluators = (window.evaluator.over(replicas=replicas) for window in windows)
            trials = (
                Window(each, self.options.limits).measure(Lru(), capacity) for each in evaluators
            )
            return all(trial.keeps_up and trial.meets(self.target) for trial in trials)

        with self.progress("searching the least number of replicas"):
            return least_replicas(meets, self.options.replicas)


def _judged(
    validation: Window, held_out: Window, policy: Policy, capacity: int, lru: Judged | None = None
) -> Judged:
    """Return a policy on both windows, compared with LRU there where that is given."""
    return Judged(
        validation.measure(policy, capacity, lru.validation if lru else None),
        held_out.measure(policy, capacity, lru.held_out if lru else None),
    )


def _keep_all(setting: RunSetting) -> Policy:
    """Return the policy of an infinite cache: nothing that could be hit is dropped."""
    return LruRetention() if setting.kv_groups else Lru()


def _lossless(evaluator: Evaluator) -> int:
    """Return a capacity at which nothing that is reused is evicted: for a cache, the least one."""
    workload = evaluator.workload
    if workload.setting.capacity_model == "engine":
        known = engine_traffic(workload.prompts)
        groups = engine_of(workload.setting, NO_LIMIT, workload.prompts.block_size).groups
        if groups is None:
            return len(known.block_parent) + len(known.leaf)  # a partial block a request at most
        partial = len(known.leaf) * (groups.alignment_tokens // workload.prompts.block_size)
        return (len(known.block_parent) + partial) * len(groups.groups)
    return max(workload.curve.capacity_for(workload.curve.ideal), 1)


def tune(
    prompts: Prompts,
    setting: RunSetting,
    options: TuningOptions,
    windows: Windows,
    *,
    lineage: Lineage,
    progress: Progress,
    stop: Event | None = None,
    executor: Executor | None = None,
) -> TuningResult:
    """Return the recommendation for a trace; a set `stop` raises Stopped.

    The default executor of replays are threads. `lineage` is the origin of the trace's
    conversations. Raises InputError where the trace is too short to be split, or lacks the times
    that queues need; UsageError for shares that cannot split it.
    """
    target = options.target
    split = options.split(prompts)
    with progress("preparing"):
        workloads = window_workloads(
            prompts, split, replace(setting, slo_s=target.slo_s), windows, lineage
        )
        capacity, origin = options.capacity_blocks, "as stated"
        if capacity is None:
            curve, early = workloads[0].curve, workloads[0].prompts
            longest = int(early.carried_blocks.max(initial=1))
            capacity = max(curve.capacity_for(_HALF * curve.ideal), longest, 1)
            origin = "where LRU gets half of the possible hits, at least the longest prompt"
    tuner = Tuner(workloads, options, progress, stop or Event(), executor)
    result = tuner.run(capacity, split)
    return replace(
        result,
        capacity_origin=origin,
        oracles=tuple(tuner.oracles(capacity, result.lru)),
        ends=tuple(tuner.ends(result, prompts, lineage)),
    )

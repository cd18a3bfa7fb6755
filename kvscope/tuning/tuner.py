"""Tuning: search, choose and judge policies, and find the least capacity that meets the SLO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Event
from typing import ClassVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from kvscope.characterize.distributions import Windows
from kvscope.core.executor import Executor
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.ingest.clocks import SessionStarts
from kvscope.policies.belady import Belady, TailBelady
from kvscope.policies.lru import Lru, LruRetention
from kvscope.replay.curve import first_counted
from kvscope.replay.derived_traces import begun
from kvscope.replay.parameter_estimates import Estimates, bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.sweep import engine_of
from kvscope.replay.traffic import with_named_blocks
from kvscope.routers.base import Router
from kvscope.tuning.comparison import Canary, Harm, Window, WindowTrial, bounds, changes, harms
from kvscope.tuning.least import (
    FewestReplicas,
    Load,
    fewest_replicas,
    least_for_any,
    least_for_lru,
    load_of,
    most_tried,
)
from kvscope.tuning.replicas import SESSION, fleet_sweep
from kvscope.tuning.rule import (
    Grade,
    Judged,
    LaterWindows,
    PolicyComparison,
    SloAnswer,
    Verdict,
    decide,
    slo_answer,
)
from kvscope.tuning.search import Contender, Rank, search, xi_hints
from kvscope.tuning.split import Split, later_workload, split_windows, window_workloads
from kvscope.tuning.target import HELD_OUT, VALIDATION, WARMUP, Limits, Target
from kvscope.tuning.trial import Advance, Evaluator, Progress, Trial
from kvscope.vllm_sim.settings import NO_LIMIT
from kvscope.vllm_sim.state import blocks_needed, engine_traffic

ORACLES = (Belady, TailBelady)
_HALF = 0.5
_COMPARED = 5  # settings of each policy that the validation window chooses from
_KEPT_POLICIES, _KEPT_SETTINGS = 3, 3  # that the search for capacities goes on with


class End(Struct, frozen=True):
    """An extreme of the uncertain inputs: pool capacity, prefill time or session starts.

    `prefill_times` scales prefill time. None: the present `capacity_blocks`, `sessions` (starts of
    sessions without a common clock) as in the trace.
    """

    name: str
    prefill_times: float = 1.0
    capacity_blocks: int | None = None
    sessions: SessionStarts | None = None


class TuningOptions(Struct, frozen=True):
    """The target, the variants that compete with LRU, and the capacities.

    `capacity_blocks` is per replica, of `replicas` behind `router`; None: where LRU gets half of
    the possible hits, at least the longest prompt. The least capacity is searched from
    `lowest_blocks` to `highest_blocks`, None: to where LRU has all hits. `shares` of the requests
    warm the cache, validate, and are held out. The verdict is repeated at each of `ends`. With
    `scale_out`, a missed SLO calls for more replicas, not a larger pool; with another router than
    `SESSION` the replicas are ranks of one engine, and no other number is tried.
    """

    target: Target
    variants: tuple[Variant, ...]
    capacity_blocks: int | None = None
    replicas: int = 1
    router: Router = SESSION
    lowest_blocks: int = 0
    highest_blocks: int | None = None
    shares: tuple[float, float, float] = (WARMUP, VALIDATION, HELD_OUT)
    limits: Limits = field(default_factory=Limits)
    ends: tuple[End, ...] = ()
    scale_out: bool = False

    @property
    def of_ranks(self) -> bool:
        """Whether the replicas are ranks of one engine, whose pools depend on their number."""
        return self.router != SESSION

    def split(self, prompts: Prompts) -> Split:
        """Return the windows of a trace; raises UsageError if one is empty, InputError if small."""
        return split_windows(prompts, *self.shares, self.target.percentile)


class RequiredCapacity(Struct, frozen=True):
    """The least capacity that meets the SLO on the training window, and its held-out trial.

    If `held_out` misses the SLO, `would_need_blocks` is the least capacity that meets it there;
    None if `held_out` meets it, or no capacity does.
    """

    training: Trial
    held_out: Trial
    would_need_blocks: int | None


class EndVerdict(Struct, frozen=True):
    """The verdict at `end`, an extreme of uncertain inputs, for the policy chosen without it.

    `baseline` and `choice` are held-out trials there of LRU and of that policy (None: none chosen).
    `eligible`: the choice breaks no limit there, with the SLO scaled like prefill time, so that the
    same requests are near it. For a canary, intervals may cross the limits. With other session
    starts a gain must be likely too. `eligible` is None without a choice.
    """

    DOCUMENT: ClassVar[str] = (
        "*end verdict baseline_ms=baseline.target_s"
        " baseline_hit_rate=baseline.outcome.token_hit_rate choice_ms=choice.target_s"
        " choice_hit_rate=choice.outcome.token_hit_rate eligible"
    )
    end: End
    verdict: Verdict
    baseline: Trial
    choice: Trial | None
    eligible: bool | None = None

    @property
    def run(self) -> Trial:
        """The trial of the policy to run: the choice, or LRU if no policy was chosen."""
        return self.choice or self.baseline


class TuningResult(PolicyComparison, frozen=True, kw_only=True):
    """The verdict and its evidence.

    `enough` is the held-out trial at a larger capacity for the SLO, None if not searched or found.
    `recommended` is the held-out trial of what to run: the choice, else `enough`, else LRU.
    `infinite` is the trial of an infinite cache on the validation window, `limit` on the later
    requests, as are those of `oracles`, which know the future. `explored` are all trials on the
    training window. `least_lru` and `least_any` are the least capacities that meet the SLO on that
    window with LRU, and with LRU or any of the best settings; None if not searched or if none does.
    `capacity_origin` says in words where the present capacity comes from, such as `as stated`.
    `fewest_lru` and `fewest_choice` are the fewest replicas that meet the SLO on the later requests
    with LRU and with the choice, None without `scale_out` and for ranks of one engine (`of_ranks`);
    `fewest_choice` also without a choice, and for hybrid models. `replicas_tried` is the most that
    may be tried.
    """

    setting: RunSetting
    estimates: Estimates
    verdict: Verdict
    recommended: WindowTrial
    infinite: WindowTrial
    limit: WindowTrial
    load: Load
    least_lru: RequiredCapacity | None
    least_any: RequiredCapacity | None
    explored: tuple[Trial, ...]
    enough: WindowTrial | None = None
    fewest_lru: FewestReplicas | None = None
    fewest_choice: FewestReplicas | None = None
    capacity_origin: str = ""
    oracles: tuple[WindowTrial, ...] = ()
    ends: tuple[EndVerdict, ...] = ()
    canary: Canary | None = None
    replicas_tried: int
    of_ranks: bool

    @property
    def baseline(self) -> WindowTrial:
        """LRU at the present capacity, on the held-out window."""
        return self.lru.held_out

    @property
    def replicas_needed(self) -> int | None:
        """The fewest replicas that meet the SLO with LRU, if more than the present; else None."""
        needed = self.fewest_lru.replicas if self.fewest_lru else None
        return needed if needed is not None and needed > self.replicas else None

    @property
    def slo_met(self) -> SloAnswer:
        """Whether the choice, else LRU, meets the SLO at the present capacity."""
        return slo_answer(self.target, self.chosen, [end.run for end in self.ends])

    @property
    def lru_slo_met(self) -> SloAnswer:
        """Whether LRU meets the SLO at the present capacity."""
        return slo_answer(self.target, self.lru, [end.baseline for end in self.ends])

    @property
    def certain(self) -> bool:
        """Whether no extreme disagrees with the result (see `disagreeing`)."""
        return not self.disagreeing

    @property
    def disagreeing(self) -> tuple[EndVerdict, ...]:
        """The extremes where the choice is not eligible; without one, where the verdict differs."""
        return tuple(
            end
            for end in self.ends
            if (end.verdict != self.verdict if end.eligible is None else not end.eligible)
        )

    @property
    def layouts(self) -> tuple[EndVerdict, ...]:
        """The extremes with other session starts."""
        return tuple(end for end in self.ends if end.end.sessions)


class Tuner:
    """The windows of a trace, and the search for a recommendation.

    `lineage` is the origin of the trace's conversations. The default executor uses threads. Raises
    InputError if the trace is too short to be split, or lacks the times that queues need;
    UsageError for shares that cannot split it.
    """

    def __init__(
        self,
        prompts: Prompts,
        setting: RunSetting,
        options: TuningOptions,
        windows: Windows,
        *,
        lineage: Lineage,
        progress: Progress,
        stop: Event | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.options, self.target, self.progress = options, options.target, progress
        self.split, self._prompts, self._lineage = options.split(prompts), prompts, lineage
        self._stop = stop = stop or Event()
        with progress("preparing"):
            setting = replace(setting, slo_s=options.target.slo_s)
            workloads = window_workloads(prompts, self.split, setting, windows, lineage)
            self.capacity_origin = "as stated"
            if options.capacity_blocks is None:
                curve, early = workloads[0].curve, workloads[0].prompts
                longest = int(early.carried_blocks.max(initial=1))
                self.capacity = max(curve.capacity_for(_HALF * curve.ideal), longest, 1)
                half = "where LRU gets half of the possible hits, at least the longest prompt"
                self.capacity_origin = half
            else:
                self.capacity = options.capacity_blocks
        training, validation, held_out, later = (
            Evaluator(
                each,
                self.target,
                replicas=options.replicas,
                router=options.router,
                stop=stop,
                executor=executor,
            )
            for each in (*workloads, later_workload(workloads[-1], self.split))
        )
        self.training = training
        self.windows = LaterWindows(
            *(Window(each, options.limits) for each in (validation, held_out, later))
        )
        self.validation, self.held_out = self.windows.validation, self.windows.held_out
        self.estimates = estimate_parameters(
            training.workload.request_traffic,
            training.workload.profile,
            options.target.slo_s,
            share=1.0,
        )

    def run(self) -> TuningResult:
        """Return the verdict at the present capacity or more, with its evidence."""
        target, options, capacity = self.target, self.options, self.capacity
        with self.progress("replaying LRU") as advance:
            lru = self.windows.judge(Lru(), capacity)
            load = (
                load_of(self.validation.evaluator, capacity, options.replicas, self._most, advance)
                if target.view == "queued"
                else Load(0.0, overloaded=False)
            )
            setting = self.validation.evaluator.workload.setting
            infinite = _infinite(self.windows.validation, lru.validation)
            limit = _infinite(self.windows.later, lru.later)
        # Where even an infinite cache does not keep up, no policy does.
        searched = self._searched(options.variants if infinite.keeps_up else ())
        comparison = self._compared(searched, lru)
        choice = comparison.choice
        verdict = decide(target, lru, choice, infinite)
        least_lru = least_any = None
        if verdict != "overloaded" and not options.scale_out:  # more replicas, not another pool
            with self.progress("searching the least capacity") as advance:
                low, high = self._lowest, self._highest(self.training)
                training_lru = least_for_lru(self.training, low, high, advance)
                training_any = self._least_for_any(searched, training_lru, advance)
                least_lru, least_any = self._required(training_lru), self._required(training_any)
        enough = None
        if not options.scale_out and verdict != "unreachable" and not (choice or lru).meets(target):
            enough = self._larger(lru, choice, least_any, least_lru)
        result = TuningResult(
            **asdict(comparison),
            setting=self.held_out.evaluator.workload.setting,
            estimates=self.estimates,
            verdict=verdict,
            recommended=choice.held_out if choice else enough or lru.held_out,
            infinite=infinite,
            limit=limit,
            load=load,
            least_lru=least_lru,
            least_any=least_any,
            explored=tuple(self.training.trials.values()),
            enough=enough,
            fewest_lru=self._fewest(lru),
            fewest_choice=self._fewest(choice) if choice and not setting.kv_groups else None,
            canary=(
                self.windows.later.canary(
                    lru.later, choice.later, 1 if options.of_ranks else options.replicas
                )
                if choice
                else None
            ),
            capacity_origin=self.capacity_origin,
            replicas_tried=self._most,
            of_ranks=options.of_ranks,
        )
        return replace(result, oracles=self._oracles(lru), ends=self._ends(result))

    def compare(self) -> PolicyComparison:
        """Return LRU and its contenders at the present capacity, without a verdict."""
        lru = self.windows.judge(Lru(), self.capacity)
        return self._compared(self._searched(self.options.variants), lru)

    def _searched(self, variants: Sequence[Variant]) -> list[Contender]:
        """Return each variant with its trials in training: the best variants and trials first."""
        capacity = self.capacity
        hints, rank = xi_hints(self.training, capacity), self._rank()
        return search(self.training, variants, self.estimates, hints, capacity, rank, self.progress)

    def _compared(self, searched: Sequence[Contender], lru: Judged) -> PolicyComparison:
        """Return LRU and each policy in its best setting by the validation window, judged.

        Only the best five settings of the training window compete. Contenders are in the order of
        the validation window, and have trials on all later windows.
        """
        capacity, leading = self.capacity, [each.trials[:_COMPARED] for each in searched]
        points = [(trial.policy, capacity) for trials in leading for trial in trials]

        def preference(trial: WindowTrial) -> tuple[float, ...]:
            return trial.preference(bool(self._broken(lru.validation, trial)))

        with self.progress("replaying the validation window", len(points)) as advance:
            measured = iter(self.windows.validation.measure_all(points, lru.validation, advance))
            best = [min((next(measured) for _ in trials), key=preference) for trials in leading]
        points = [(trial.policy, capacity) for trial in sorted(best, key=preference)]
        with self.progress("replaying the held-out window", len(points)) as advance:
            contenders = self.windows.judge_all(points, lru, advance)
        return PolicyComparison(
            target=self.target,
            split=self.split,
            capacity_blocks=capacity,
            replicas=self.options.replicas,
            lru=lru,
            contenders=tuple(contenders),
        )

    def _oracles(self, lru: Judged) -> tuple[WindowTrial, ...]:
        """Return the oracles' trials on the later requests; () where an engine cannot run them."""
        if self.training.workload.setting.capacity_model == "engine":
            return ()
        points = [(bind(Variant(policy), self.estimates), self.capacity) for policy in ORACLES]
        with self.progress("replaying the oracles", len(points)) as advance:
            return tuple(self.windows.later.measure_all(points, lru.later, advance))

    def _ends(self, result: TuningResult) -> tuple[EndVerdict, ...]:
        before = map(self.training.executor.shared, (self, result))
        ends = self.options.ends
        with self.progress("judging at the ends of what is not known", len(ends)) as advance:
            return tuple(self.training.each(Tuner._end, ends, *before, advance=advance))

    def at_end(self, end: End) -> LaterWindows:
        """Return the later windows at an extreme, with SLO and prefill time scaled alike."""
        windows = self.validation, self.held_out, self.windows.later
        workloads = [each.evaluator.workload for each in windows]
        if (starts := end.sessions) is not None:
            laid_out = begun(self._prompts, starts)
            split, setting = self.options.split(laid_out), workloads[1].setting
            _, *workloads = window_workloads(
                laid_out, split, setting, workloads[0].windows, self._lineage
            )
            workloads.append(later_workload(workloads[-1], split))
        target = replace(self.target, slo_s=self.target.slo_s * end.prefill_times)
        evaluators = (
            self.training.over(
                replicas=self.options.replicas, workload=each.with_prefill(end.prefill_times)
            )
            for each in workloads
        )
        return LaterWindows(
            *(Window(each.aiming(target), self.options.limits) for each in evaluators)
        )

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"progress": None, "_stop": None}  # of the process that users see

    def _end(self, result: TuningResult, end: End) -> EndVerdict:
        capacity = end.capacity_blocks or result.capacity_blocks
        windows = self.at_end(end)
        lru = windows.judge(Lru(), capacity)
        choice = None
        if result.choice is not None:
            choice = windows.judge(result.choice.policy, capacity, lru)
        infinite = _infinite(windows.validation)
        eligible = None
        if choice is not None:
            eligible = eligible_at(end, choice, lru, result.grade)
        return EndVerdict(
            end,
            decide(self.target, lru, choice if eligible else None, infinite),
            lru.held_out,
            choice.held_out if choice else None,
            eligible,
        )

    def _rank(self) -> Rank:
        """Return the sort key of trials in training: trials that break no limit come first."""
        baseline = self.training.trial(Lru(), self.capacity)

        def rank(trial: Trial) -> tuple[float, ...]:
            return bool(self._broken(baseline, trial)), *trial.rank(self.target)

        return rank

    def _broken(self, baseline: Trial, trial: Trial) -> tuple[Harm, ...]:
        """Return the limits that a trial's figures break, without regard to intervals."""
        limits = bounds(self.target, self.options.limits, baseline)
        return harms(limits, changes(self.target, baseline, trial))

    def _larger(
        self,
        lru: Judged,
        choice: Judged | None,
        least_any: RequiredCapacity | None,
        least_lru: RequiredCapacity | None,
    ) -> WindowTrial | None:
        """Return the held-out trial at the least larger capacity for the SLO; None without one.

        The capacity meets the SLO in validation. The held-out trial may miss it, if no capacity or
        only smaller ones meet it there. Policies but LRU count only if they are the choice. To see
        the held-out window here favours no policy.
        """
        for least in (least_any, least_lru):
            if least is None:
                continue
            policy, present = least.training.policy, lru.held_out.capacity_blocks
            if policy.name not in {Lru.name, choice.policy.name if choice else Lru.name}:
                continue
            needed = least.would_need_blocks or least.training.capacity_blocks
            window = self.validation.evaluator
            if not window.trial(policy, max(needed, present)).meets(self.target):
                highest = self._highest(window)
                more = least_for_any(window, [policy], max(needed, present), highest)
                needed = more.capacity_blocks if more else 0
            if needed <= present:
                continue
            return self.held_out.measure(policy, needed, lru.held_out)
        return None

    def _least_for_any(
        self, contenders: Sequence[Contender], lru: Trial | None, advance: Advance
    ) -> Trial | None:
        """Return the training trial at the least capacity for the SLO, by LRU or the best settings.

        `lru` is LRU's trial at its least capacity, up to which others are searched; None if LRU
        meets the SLO at no capacity. The result is None if no setting does, either.
        """
        settings = [
            trial.policy
            for contender in contenders[:_KEPT_POLICIES]
            for trial in contender.trials[:_KEPT_SETTINGS]
        ]
        high = lru.capacity_blocks if lru else self._highest(self.training)
        if not settings or not high:
            return lru
        low, policies = self._lowest, [Lru(), *settings]
        return least_for_any(self.training, policies, low, high, advance, also=self.capacity)

    def _required(self, training: Trial | None) -> RequiredCapacity | None:
        """Return the least capacity (of `training`) with its held-out trial; None without it."""
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
    def _most(self) -> int:
        """The most replicas to try; ranks keep their number, on which their pools depend."""
        replicas = self.options.replicas
        return replicas if self.options.of_ranks else most_tried(replicas)

    @property
    def _lowest(self) -> int:
        """The least capacity to search, in blocks: a smaller pool rejects too many requests."""
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
        limit = self.options.highest_blocks
        return lossless(evaluator) if limit is None else min(limit, lossless(evaluator))

    def _fewest(self, judged: Judged) -> FewestReplicas | None:
        """Return the fewest replicas with a policy that meet the SLO on the later requests.

        None without `scale_out`, and for ranks of one engine. If the deployment's only replica
        meets the SLO, no fleet is replayed, and `size` is None.
        """
        if not self.options.scale_out or self.options.of_ranks:
            return None
        later, target, policy = self.windows.later.evaluator, self.target, judged.policy
        if self.options.replicas == 1 and judged.later.keeps_up and judged.later.meets(target):
            return FewestReplicas(SESSION, policy, 1, tried=1, compared=1, size=None)
        sweep = fleet_sweep(later.workload, self.capacity, target)
        counts = range(1, self._most + 1)
        with self.progress("searching the fewest replicas"):
            return fewest_replicas(
                sweep, SESSION, policy, counts, stop=self._stop, executor=later.executor
            )


def eligible_at(end: End, judged: Judged, before: Judged, grade: Grade) -> bool:
    """Return whether a change with this `grade` may be recommended by its results at one extreme.

    It must keep up with the arrivals if `before`, the present policy, does, and break no limit: for
    a canary, or if it does not keep up, intervals may cross limits. With other session starts, a
    change that keeps up needs a likely gain, and no interval may cross a limit.
    """
    if not judged.keeps_up:
        return not before.keeps_up and not judged.harms_by_value
    if end.sessions:
        return judged.grade != "no"
    return not (judged.harms if grade == "do-now" else judged.harms_by_value)


def _infinite(window: Window, baseline: WindowTrial | None = None) -> WindowTrial:
    """Return the trial of a cache that never evicts a block before its last hit."""
    setting = window.evaluator.workload.setting
    policy = LruRetention() if setting.kv_groups else Lru()
    return window.measure(policy, lossless(window.evaluator), baseline)


def lossless(evaluator: Evaluator) -> int:
    """Return a capacity at which no block is evicted before reuse; the least without an engine."""
    workload = evaluator.workload
    if workload.setting.capacity_model == "engine":
        known = engine_traffic(workload.prompts)
        groups = engine_of(workload.setting, NO_LIMIT, workload.prompts.block_size).groups
        if groups is None:
            return len(known.block_parent) + len(known.leaf)  # a partial block a request at most
        partial = len(known.leaf) * (groups.alignment_tokens // workload.prompts.block_size)
        return (len(known.block_parent) + partial) * len(groups.groups)
    if workload.on_tree(Lru()):
        known = with_named_blocks(workload.traffic)
        return len(known.block_parent) + int(known.length.max(initial=0)) + 1  # and a request's own
    return max(workload.curve.capacity_for(workload.curve.ideal), 1)

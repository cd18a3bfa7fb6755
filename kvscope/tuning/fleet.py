"""Choose a fleet for an SLO: router, number of replicas and eviction policy.

The first fifth of the requests fills caches, the next two fifths choose, the last two judge that
one choice. Choosing sees no later request; every replay starts at the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Event
from typing import Literal

import numpy as np

from kvscope.characterize.windows import Windows
from kvscope.core.arrays import Float64s
from kvscope.core.errors import InputError, Stopped
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.fleet.outcome import Slo
from kvscope.fleet.replay import FleetReplay
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.replay.curve import first_counted
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.routers.base import Router
from kvscope.tuning.bootstrap import Bootstrap, clusters_of
from kvscope.tuning.comparison import Harm, harms
from kvscope.tuning.fleet_size import FleetSize, fleet_size
from kvscope.tuning.load import least_replicas
from kvscope.tuning.split import FEWEST, counted_from, first_requests
from kvscope.tuning.target import Limits, Target
from kvscope.vllm_sim import EngineSettings

WARMUP, CHOOSING = 0.2, 0.4
"""Shares of the requests that fill the caches and that choose; the others judge."""
MOST = 64
"""The most replicas that are tried."""
_SEARCHED = 2  # routers whose parameters are searched

FleetVerdict = Literal["confirmed", "resized", "misses-slo"]
WindowName = Literal["choosing", "judged"]
Advance = Callable[[int], None]
"""Called with how many replays were done."""


@dataclass(frozen=True, slots=True)
class FleetWindows:
    """The number of requests, in order of arrival, that warm caches, choose, and judge."""

    warmup_requests: int
    choosing_requests: int
    judged_requests: int


@dataclass(frozen=True, slots=True)
class RouterSize:
    """A router with LRU: the fewest replicas that meet the SLO on the choosing window.

    `run` is that fleet; the most that were tried where `replicas` is None.
    """

    router: Router
    replicas: int | None
    run: FleetRun

    @property
    def rank(self) -> tuple[float, float, float]:
        """The sort key of fleets, best first: replicas, attainment, the SLO's percentile."""
        return _rank(self.run)


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """An eviction policy behind the chosen router, compared with LRU on the choosing window.

    `replicas` are the fewest that meet the SLO and harm nothing, at most as many as LRU takes; the
    fewest that meet it where all harm. `run` is that fleet, else the one of as many as LRU takes.
    Compared with LRU there, `harms` are the limits that the policy breaks, and `significant` says
    whether it is better.
    """

    policy: Policy
    replicas: int | None
    harms: tuple[Harm, ...]
    significant: bool
    run: FleetRun


@dataclass(frozen=True)
class FleetTuning:
    """A fleet, chosen on one window and judged on the next.

    `chosen` is the choice on its window, None where no fleet meets the SLO there. `recommended` is
    what the judged window leaves of it, on that window: the choice, or more replicas with LRU; None
    where none of the numbers tried meets the SLO on both. `judged` is the choice itself there.
    `one_fewer` misses the SLO with one replica fewer, on the window `fewer_on`; None
    for one replica, and where the policy meets it with fewer but breaks a limit against LRU. `size`
    is the number of replicas that the judged window takes by itself, with its interval.
    `on_engines` is what was to be recommended, on a deployment's simulated vLLMs. Where it misses
    the SLO there, `recommended` is the fewest replicas with LRU that meet it there.
    """

    windows: FleetWindows
    routers: tuple[RouterSize, ...]
    policies: tuple[PolicyTrial, ...]
    chosen: FleetRun | None = None
    judged: FleetRun | None = None
    recommended: FleetRun | None = None
    one_fewer: FleetRun | None = None
    fewer_on: WindowName | None = None
    size: FleetSize | None = None
    on_engines: FleetRun | None = None

    @property
    def verdict(self) -> FleetVerdict:
        """Whether the choice holds on the judged window, more replicas do, or nothing does."""
        if self.recommended is None:
            return "misses-slo"
        return "confirmed" if self.recommended is self.judged else "resized"


class FleetWindow:
    """One window: fleets replayed, each once."""

    def __init__(self, prompts: Prompts, first: int, plan: FleetPlan, stop: Event) -> None:
        setting = counted_from(plan.setting, first, len(prompts.leaf))
        workload = Workload(prompts, setting, Windows(1.0, 1))
        self.sweep = FleetSweep(workload, plan.capacity_blocks, plan.slo, seeds=plan.seeds)
        self._first = first_counted(prompts, setting.definition)
        self.clusters = clusters_of(
            prompts.conversation[self._first :], prompts.user[self._first :]
        )
        self._runs: dict[Fleet, FleetRun] = {}
        self.target = plan.target
        self._advance, self._stop = plan.advance, stop

    def runs(self, fleets: Sequence[Fleet]) -> list[FleetRun]:
        """Return the run of each fleet. Raises Stopped."""
        missing = [fleet for fleet in dict.fromkeys(fleets) if fleet not in self._runs]
        for _ in self.sweep.prepare(missing):
            pass
        for run in self.sweep.sweep(missing, self._stop):
            self._runs[run.fleet] = run
            self._advance(len(run.outcomes))
        if self._stop.is_set():
            raise Stopped("stopped before a fleet was chosen")
        return [self._runs[fleet] for fleet in fleets]

    def fewest(self, router: Router, policy: Policy, most: int) -> int | None:
        """Return the fewest replicas up to `most` that meet the SLO: doubled, then all below.

        All larger numbers up to the doubled one meet it too: one that does alone is luck.
        """
        for count in _doubled(most):
            (run,) = self.runs([Fleet(router, policy, count)])
            if run.meets:
                below = [Fleet(router, policy, fewer) for fewer in range(1, count + 1)]
                meets = [each.meets for each in self.runs(below)]
                return 1 + max((at + 1 for at, met in enumerate(meets) if not met), default=0)
        return None

    def at(self, router: Router, policy: Policy, replicas: int) -> FleetRun:
        """Return one fleet's run."""
        return self.runs([Fleet(router, policy, replicas)])[0]

    def replay(self, run: FleetRun) -> FleetReplay:
        """Return the replay of the run's slowest seed, which decides whether the SLO is met."""
        times = [each.target_ttft_s for each in run.outcomes]
        return self.sweep.replay(run.fleet, int(np.argmax(times)))

    def ttft_s(self, done: FleetReplay) -> Float64s:
        """Return the TTFT of the counted requests in order of arrival, inf without a token."""
        return np.nan_to_num(done.ttft_s[self._first :], nan=np.inf)

    def served_per_s(self, done: FleetReplay) -> float:
        """Return the counted requests that one replica prefills in a second."""
        spent_s = done.token_s[self._first :] - done.begin_s[self._first :]
        return float(len(spent_s) / spent_s.sum())


@dataclass(frozen=True)
class FleetPlan:
    """What is tuned: requests, contenders and the SLO; `capacity_blocks` is that of a replica."""

    prompts: Prompts
    lineage: Lineage
    setting: RunSetting
    capacity_blocks: int
    slo: Slo
    routers: Sequence[Router]
    variants: Sequence[Variant]
    limits: Limits
    seeds: int
    advance: Advance
    engine: EngineSettings | None = None

    @cached_property
    def windows(self) -> FleetWindows:
        """The windows. Raises InputError where one has too few requests."""
        requests = len(self.prompts.leaf)
        warm, chosen = int(requests * WARMUP), int(requests * (WARMUP + CHOOSING) + 1e-6)
        if chosen - warm < FEWEST:
            raise InputError(
                f"{requests:,} requests are too few to choose a fleet and to judge it",
                remedy=f"take a longer trace: each window needs {FEWEST:,} requests",
            )
        return FleetWindows(warm, chosen - warm, requests - chosen)

    @property
    def target(self) -> Target:
        """The SLO as intervals and limits take it."""
        return Target(self.slo.ttft_s, self.slo.percentile, view="queued")


def tune_fleet(plan: FleetPlan, stop: Event) -> FleetTuning:
    """Return the fleet for the plan's SLO. Raises Stopped, and InputError for too few requests."""
    windows = plan.windows
    until = windows.warmup_requests + windows.choosing_requests
    early = first_requests(plan.prompts, until, plan.lineage)
    choosing = FleetWindow(early, windows.warmup_requests, plan, stop)
    most = min(MOST, windows.choosing_requests)
    lru = Lru()
    routers = _routers(choosing, plan.routers, lru, most)
    best = routers[0]
    if best.replicas is None:
        return FleetTuning(windows, routers, ())
    policies = tuple(_policies(choosing, best.router, best.replicas, plan, lru))
    taken = [each.run for each in policies if _better(each, best.replicas)]
    chosen = min([best.run, *taken], key=_rank)
    judging = FleetWindow(plan.prompts, until, plan, stop)
    tuning = FleetTuning(windows, routers, policies, chosen)
    tuning = _judged(choosing, judging, tuning, lru, most)
    return _on_engines(judging, tuning, plan.engine, lru, most)


def _routers(
    window: FleetWindow, routers: Sequence[Router], lru: Policy, most: int
) -> tuple[RouterSize, ...]:
    """Return the routers, best first; those of the best two with their parameters' values too."""

    def sized(router: Router) -> RouterSize:
        fewest = window.fewest(router, lru, most)
        return RouterSize(router, fewest, window.at(router, lru, fewest or _doubled(most)[-1]))

    sizes = sorted(map(sized, routers), key=lambda each: each.rank)
    searched = [
        sized(router) for each in sizes[:_SEARCHED] for router in searched_values(each.router)
    ]
    return tuple(sorted([*sizes, *searched], key=lambda each: each.rank))


def searched_values(router: Router) -> Iterator[Router]:
    """Yield the router with each value that a parameter is searched with, one at a time."""
    for parameter in router.parameters:
        for value in parameter.search:
            if value != router.values[parameter.name]:
                yield type(router)({**router.values, parameter.name: value})


def _policies(
    window: FleetWindow, router: Router, replicas: int, plan: FleetPlan, lru: Policy
) -> Iterator[PolicyTrial]:
    """Yield each policy behind the router, with at most as many replicas as LRU takes."""
    workload = window.sweep.workload
    estimates = estimate_parameters(workload.traffic, workload.profile, plan.slo.ttft_s)
    target = plan.target
    bootstrap = Bootstrap(window.clusters, target)

    def compared(run: FleetRun) -> PolicyTrial:
        of_lru = window.replay(window.at(router, lru, run.fleet.replicas))
        done = window.replay(run)
        baseline, figures = (bootstrap.figures(window.ttft_s(each)) for each in (of_lru, done))
        gains = bootstrap.gains(baseline, figures)
        changes = {
            "attainment": bootstrap.attainment_gain(baseline, figures).low,
            "tel": -gains["tel"].low,
            target.rank_name: -gains[target.rank_name].low,
            "p50": -gains["p50"].value,
            "prefill throughput": window.served_per_s(done) / window.served_per_s(of_lru) - 1,
        }
        return PolicyTrial(
            run.fleet.policy,
            run.fleet.replicas if run.meets else None,
            harms(target, plan.limits, changes),
            gains[target.rank_name].significant,
            run,
        )

    for variant in plan.variants:
        policy = bind(variant, estimates)
        runs = window.runs([Fleet(router, policy, count) for count in range(1, replicas + 1)])
        trials = [compared(run) for run in runs if run.meets] or [compared(runs[-1])]
        yield next((trial for trial in trials if not trial.harms), trials[0])


def _better(trial: PolicyTrial, replicas: int) -> bool:
    """Return whether a policy harms nothing, and saves a replica or gains significantly."""
    if trial.replicas is None or trial.harms:
        return False
    return trial.replicas < replicas or trial.significant


def _judged(
    choosing: FleetWindow, judging: FleetWindow, tuning: FleetTuning, lru: Policy, most: int
) -> FleetTuning:
    """Return the tuning with what the judged window says of its choice."""
    chosen = tuning.chosen
    assert chosen is not None  # noqa: S101  (nothing is judged without a choice)
    router, policy, replicas = chosen.fleet.router, chosen.fleet.policy, chosen.fleet.replicas
    judged = judging.at(router, policy, replicas)
    recommended: FleetRun | None = judged
    if not judged.meets:
        policy = lru
        enough = choosing.fewest(router, lru, most), judging.fewest(router, lru, most)
        recommended = None
        if enough[0] is not None and enough[1] is not None:
            recommended = next(
                (
                    judging.at(router, lru, count)
                    for count in range(max(enough[0], enough[1]), most + 1)
                    if choosing.at(router, lru, count).meets
                    and judging.at(router, lru, count).meets
                ),
                None,
            )
    if recommended is None:
        return replace(tuning, judged=judged)
    replicas = recommended.fleet.replicas
    tried = min(max(2 * replicas, replicas + 2), most)
    fleets = [Fleet(router, policy, count) for count in range(1, tried + 1)]
    runs = judging.runs(fleets)
    times = {run.fleet.replicas: judging.ttft_s(judging.replay(run)) for run in runs}
    grows = {
        run.fleet.replicas: any(each.latencies.overloaded for each in run.outcomes) for run in runs
    }
    one_fewer: FleetRun | None = None
    fewer_on: WindowName | None = None
    if replicas > 1:
        before = choosing.at(router, policy, replicas - 1)
        if not before.meets:
            one_fewer, fewer_on = before, "choosing"
        elif not runs[replicas - 2].meets:
            one_fewer, fewer_on = runs[replicas - 2], "judged"
    return replace(
        tuning,
        judged=judged,
        recommended=recommended,
        one_fewer=one_fewer,
        fewer_on=fewer_on,
        size=fleet_size(times, grows, judging.clusters, judging.target),
    )


def _on_engines(
    window: FleetWindow, tuning: FleetTuning, engine: EngineSettings | None, lru: Policy, most: int
) -> FleetTuning:
    """Return the tuning with what the recommended fleet gives on simulated vLLMs.

    Where it misses the SLO there, more replicas with LRU are recommended: the fewest that meet it.
    """
    recommended = tuning.recommended
    if engine is None or recommended is None:
        return tuning
    fleet = recommended.fleet
    run = window.sweep.run(fleet, engine)
    if run.meets:
        return replace(tuning, on_engines=run)
    runs: dict[int, FleetRun] = {}

    def meets(replicas: int) -> bool:
        if replicas > most:
            return False
        runs[replicas] = window.sweep.run(Fleet(fleet.router, lru, replicas), engine)
        return runs[replicas].meets

    enough = least_replicas(meets, fleet.replicas)
    return replace(
        tuning,
        on_engines=run,
        recommended=None if enough is None else runs[enough],
        one_fewer=None,
        fewer_on=None,
    )


def _rank(run: FleetRun) -> tuple[float, float, float]:
    """Return the sort key of fleets, best first; those that miss the SLO come last."""
    outcome = run.outcome
    replicas = run.fleet.replicas if run.meets else np.inf
    return replicas, -outcome.latencies.attainment, outcome.target_ttft_s


def _doubled(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, `most` included."""
    counts = [1]
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], most))
    return counts

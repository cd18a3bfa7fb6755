"""One window of a trace: fleets replayed, each once, and policies compared with LRU there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Event

import numpy as np
from msgspec import Struct

from kvscope.characterize.windows import Windows
from kvscope.core.arrays import Float64s
from kvscope.core.errors import InputError, Stopped
from kvscope.core.executor import Executor
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.fleet.outcome import Slo
from kvscope.fleet.replay import FleetReplay
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.replay.curve import first_counted
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.routers.base import Router
from kvscope.tuning.bootstrap import Bootstrap, clusters_of
from kvscope.tuning.comparison import Harm, harms
from kvscope.tuning.fewest import fewest
from kvscope.tuning.split import FEWEST, counted_from, first_requests
from kvscope.tuning.target import Limits, Target
from kvscope.tuning.tuner import End
from kvscope.vllm_sim import EngineSettings

WARMUP, CHOOSING = 0.2, 0.4
"""Shares of the requests that fill the caches and that choose; the others judge."""
LRU = Lru()

Advance = Callable[[int], None]
"""Called with how many replays were done."""


class FleetWindows(Struct, frozen=True):
    """The number of requests, in order of arrival, that warm caches, choose, and judge."""

    warmup_requests: int
    choosing_requests: int
    judged_requests: int


class FleetPlan(Struct, frozen=True, dict=True):
    """What is tuned: requests, contenders and the SLO.

    `capacities` are those of a replica to choose from, in blocks; none: some up to where LRU loses
    no hits. `replica_cost` compares replicas of different capacities. The answer is repeated at
    `ends`, and on simulated vLLMs with the limits of `engine`, whose blocks are the capacity.
    The default executor are threads.
    """

    prompts: Prompts
    lineage: Lineage
    setting: RunSetting
    capacities: Sequence[int]
    slo: Slo
    routers: Sequence[Router]
    variants: Sequence[Variant]
    limits: Limits
    seeds: int
    advance: Advance
    engine: EngineSettings | None = None
    ends: Sequence[End] = ()
    replica_cost: Callable[[int], float] = lambda _: 1.0
    executor: Executor | None = None

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

    def workloads(self, prompts: Prompts) -> tuple[Workload, Workload]:
        """Return the workloads of the whole trace that end with the choosing and judged window."""
        warm = self.windows.warmup_requests
        until = warm + self.windows.choosing_requests
        early = first_requests(prompts, until, self.lineage)

        def counted(part: Prompts, first: int) -> Workload:
            setting = counted_from(self.setting, first, len(part.leaf))
            return Workload(part, setting, Windows(1.0, 1))

        return counted(early, warm), counted(prompts, until)


class PolicyTrial(Struct, frozen=True):
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

    def better(self, replicas: int) -> bool:
        """Return whether it harms nothing, and takes fewer replicas than LRU or gains certainly."""
        if self.replicas is None or self.harms:
            return False
        return self.replicas < replicas or self.significant


class FleetWindow:
    """The counted requests of a workload, behind replicas of one capacity."""

    def __init__(
        self, workload: Workload, capacity_blocks: int, plan: FleetPlan, stop: Event
    ) -> None:
        self.sweep = FleetSweep(workload, capacity_blocks, plan.slo, seeds=plan.seeds)
        self.target = plan.target
        self._plan, self._stop = plan, stop
        prompts = workload.prompts
        self._first = first_counted(prompts, workload.setting.definition)
        self.clusters = clusters_of(
            prompts.conversation[self._first :], prompts.user[self._first :]
        )
        self._runs: dict[Fleet, FleetRun] = {}

    @cached_property
    def bootstrap(self) -> Bootstrap:
        """Resamples of the counted requests."""
        return Bootstrap(self.clusters, self.target)

    def runs(self, fleets: Sequence[Fleet]) -> list[FleetRun]:
        """Return the run of each fleet. Raises Stopped."""
        missing = [fleet for fleet in dict.fromkeys(fleets) if fleet not in self._runs]
        for _ in self.sweep.prepare(missing):
            pass
        for run in self.sweep.sweep(missing, self._stop, self._plan.executor):
            self._runs[run.fleet] = run
            self._plan.advance(len(run.outcomes))
        if self._stop.is_set():
            raise Stopped("stopped before a fleet was chosen")
        return [self._runs[fleet] for fleet in fleets]

    def fewest(self, router: Router, policy: Policy, most: int) -> int | None:
        """Return the fewest replicas up to `most` that meet the SLO, None where they do not."""

        def meets(counts: Sequence[int]) -> list[bool]:
            return [run.meets for run in self.runs([Fleet(router, policy, n) for n in counts])]

        return fewest(meets, range(1, most + 1))

    def at(self, router: Router, policy: Policy, replicas: int) -> FleetRun:
        """Return one fleet's run."""
        return self.runs([Fleet(router, policy, replicas)])[0]

    def tried(self, router: Router, policy: Policy) -> tuple[FleetRun, ...]:
        """Return the runs so far behind a router, by their number of replicas."""
        runs = (
            run
            for fleet, run in self._runs.items()
            if fleet.router is router and fleet.policy is policy
        )
        return tuple(sorted(runs, key=lambda run: run.fleet.replicas))

    def on_engines(self, fleet: Fleet, engine: EngineSettings) -> FleetRun:
        """Return the fleet's run on simulated vLLMs. Raises Stopped."""
        if self._stop.is_set():
            raise Stopped("stopped before a fleet was chosen")
        block_size = self.sweep.prompts.block_size
        return self.sweep.run(fleet, engine.on_pool(self.sweep.capacity_blocks, block_size))

    def policy(self, router: Router, policy: Policy, most: int) -> PolicyTrial:
        """Return a policy's trial behind the router, with at most as many replicas as LRU takes."""
        runs = self.runs([Fleet(router, policy, count) for count in range(1, most + 1)])
        trials = [self.compared(run) for run in runs if run.meets] or [self.compared(runs[-1])]
        return next((trial for trial in trials if not trial.harms), trials[0])

    def compared(self, run: FleetRun) -> PolicyTrial:
        """Return a fleet compared with LRU on as many replicas."""
        fleet, target = run.fleet, self.target
        of_lru = self.replay(self.at(fleet.router, LRU, fleet.replicas))
        done = self.replay(run)
        baseline, figures = (self.bootstrap.figures(self.ttft_s(each)) for each in (of_lru, done))
        gains = self.bootstrap.gains(baseline, figures)
        changes = {
            "attainment": self.bootstrap.attainment_gain(baseline, figures).low,
            "tel": -gains["tel"].low,
            target.rank_name: -gains[target.rank_name].low,
            "p50": -gains["p50"].value,
            "prefill throughput": self._served_per_s(done) / self._served_per_s(of_lru) - 1,
        }
        return PolicyTrial(
            fleet.policy,
            fleet.replicas if run.meets else None,
            harms(self._plan.limits.bounds(target), changes),
            gains[target.rank_name].significant,
            run,
        )

    def replay(self, run: FleetRun) -> FleetReplay:
        """Return the replay of the run's slowest seed, which decides whether the SLO is met."""
        times = [each.target_ttft_s for each in run.outcomes]
        return self.sweep.replay(run.fleet, int(np.argmax(times)))

    def ttft_s(self, done: FleetReplay) -> Float64s:
        """Return the TTFT of the counted requests in order of arrival, inf without a token."""
        return np.nan_to_num(done.ttft_s[self._first :], nan=np.inf)

    def _served_per_s(self, done: FleetReplay) -> float:
        """Return the counted requests that one replica prefills in a second."""
        spent_s = done.token_s[self._first :] - done.begin_s[self._first :]
        return float(len(spent_s) / spent_s.sum())

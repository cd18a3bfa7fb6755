"""Fleets: how many replicas meet the SLO, behind which router, and what the others lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.app.cluster import replays_on
from kvscope.app.latency import timed
from kvscope.app.monitor import Monitor
from kvscope.app.options import TimeModel
from kvscope.app.requests import FleetRequest
from kvscope.app.traces import require_arrivals
from kvscope.characterize.windows import Windows
from kvscope.core.errors import Stopped, UsageError
from kvscope.core.executor import Executor
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import Model
from kvscope.fleet.closed_loop import ThinkTimes, think_times
from kvscope.fleet.options import router_label
from kvscope.fleet.outcome import FleetOutcome, Slo
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep, PooledHits
from kvscope.policies.base import LanePolicy, Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.replay.curve import HitCurve
from kvscope.replay.parameter_estimates import bind, estimate_parameters, used
from kvscope.replay.policy_options import format_value
from kvscope.replay.workload import Workload
from kvscope.routers.base import Router
from kvscope.tuning.fewest import fewest, most_compared, size_of
from kvscope.tuning.fleet_size import FleetSize

if TYPE_CHECKING:
    from kvscope.vllm_sim import EngineSettings

MEETS, MISSES, OVERLOADED = "meets-slo", "misses-slo", "overloaded"
MISSES_ON_ENGINES = "misses-on-engines"
VERDICTS = (MEETS, MISSES_ON_ENGINES, MISSES, OVERLOADED)


class FleetLine(Struct, frozen=True):
    """One router with one policy at every number of replicas, ascending."""

    router: Router
    policy: Policy
    runs: tuple[FleetRun, ...]

    @property
    def fewest(self) -> int | None:
        """The fewest replicas that meet the SLO, by the rule of all commands; None for none."""
        meets = {run.fleet.replicas: run.meets for run in self.runs}
        return fewest(lambda counts: map(meets.__getitem__, counts), tuple(meets))

    def at(self, replicas: int) -> FleetRun | None:
        """Return the run with so many replicas."""
        return next((run for run in self.runs if run.fleet.replicas == replicas), None)


class FleetStudy(Struct, frozen=True, dict=True):
    """What fleets of one trace gave; `think` is None in open loop.

    `pooled` is the reference of one cache and one queue for the `chosen` number of replicas, None
    in closed loop and on engines; `pooled_hits` are those of one such cache in the trace's order.
    `on_engines`: an answer that meets the SLO, replayed on a deployment's simulated vLLMs.
    `curves` are LRU's over every capacity of a replica, with the chosen number of them, by router:
    of those that see the order alone, in open loop. `pooled_curve` is over that of one cache.
    `size` is the interval of the fewest replicas; None without the fewest. `groups` are
    those of a hybrid model's layers on the simulated vLLMs.
    """

    trace: Trace
    model: Model | None
    deployment: ResolvedDeployment | None
    setting: RunSetting
    slo: Slo
    capacity_blocks: int
    replicas: tuple[int, ...]
    seeds: int
    time_model: TimeModel
    think: ThinkTimes | None
    lines: tuple[FleetLine, ...]
    pooled: FleetOutcome | None = None
    on_engines: FleetRun | None = None
    curves: Mapping[str, HitCurve] = field(default_factory=dict)
    pooled_curve: HitCurve | None = None
    pooled_hits: PooledHits | None = None
    size: FleetSize | None = None
    groups: KvGroups | None = None

    @cached_property
    def ranked(self) -> tuple[FleetLine, ...]:
        """The lines, fewest replicas first, then the lowest TTFT there; references last."""

        def rank(line: FleetLine) -> tuple[bool, float, float, float]:
            run = line.at(line.fewest or self.replicas[-1])
            outcome = None if run is None else run.outcome
            ttft_s = np.inf if outcome is None else outcome.target_ttft_s
            within = 0.0 if outcome is None else outcome.latencies.attainment
            return line.router.reference, line.fewest or np.inf, ttft_s, -within

        return tuple(sorted(self.lines, key=rank))

    @property
    def best(self) -> FleetLine:
        """The line that needs the fewest replicas, a reference only where all are."""
        return self.ranked[0]

    @property
    def fewest(self) -> int | None:
        """The fewest replicas that meet the SLO; of a reference only where all routers are one."""
        return self.best.fewest

    @property
    def chosen(self) -> int:
        """The number of replicas that tables show: the fewest, or the most that were tried."""
        return self.fewest or self.replicas[-1]

    @property
    def answer(self) -> FleetRun:
        """The best line's run with the chosen number of replicas."""
        run = self.best.at(self.chosen)
        assert run is not None  # noqa: S101  (a study without it is not made)
        return run

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        if self.fewest is not None:
            holds = self.on_engines is None or self.on_engines.meets
            return MEETS if holds else MISSES_ON_ENGINES
        return OVERLOADED if self.answer.outcome.latencies.overloaded else MISSES

    @property
    def price_hour(self) -> float | None:
        """Price of the chosen replicas for an hour, None where it is not known."""
        where = self.deployment
        return None if where is None else where.price_of(where.tp * self.chosen)


def fleet(
    trace: Trace, prompts: Prompts, request: FleetRequest, monitor: Monitor | None = None
) -> FleetStudy:
    """Return what every router, policy and number of replicas gives.

    Raises Stopped once the monitor's `stop` is set; UsageError for more replicas than requests, for
    a router that needs sessions which the trace lacks, and for a capacity that holds no block;
    InputError for a trace without arrival times.
    """
    monitor = monitor or Monitor()
    require_arrivals(trace)
    if request.replicas[-1] > trace.requests:
        raise UsageError(
            f"{request.replicas[-1]} replicas for {trace.requests:,} requests",
            where="--replicas",
            remedy="take fewer replicas, or a longer trace",
        )
    routers = routers_for(trace, prompts, request.routers, monitor, named=request.routers_named)
    request, _ = timed(request, trace, prompts, monitor)
    (capacity,) = request.capacities.in_blocks(request.model, trace.block_size)
    workload = Workload(prompts, request.setting, Windows(1.0, 1))
    estimates = estimate_parameters(workload.traffic, workload.profile, request.slo.ttft_s)
    for name, estimate in used(request.variants, estimates).items():
        monitor.note(f"{name} is {format_value(name, estimate.value)}, {estimate.origin}")
    if np.any(prompts.clock >= 1):
        monitor.note("sessions have no common clock, so queues depend on where they were placed")
    think = None
    if request.closed_loop:
        think = think_times(prompts, workload.traffic, workload.profile)
    engine = in_groups(request, trace.block_size)
    engine = engine and engine.on_pool(capacity, trace.block_size)
    sweep = FleetSweep(
        workload,
        capacity,
        request.slo,
        think_s=None if think is None else think.think_s,
        after=None if think is None else think.after,
        seeds=request.seeds,
        engine=engine if request.time_model == "engine" else None,
    )
    policies = [bind(variant, estimates) for variant in request.variants]
    fleets = [
        Fleet(router, policy, replicas)
        for router in routers
        for policy in policies
        for replicas in request.replicas
    ]
    with replays_on(request.on, monitor) as executor:
        runs = _runs(sweep, fleets, monitor, executor)
    lines = _lines(runs, routers, policies)
    study = FleetStudy(
        trace=trace,
        model=request.model,
        deployment=request.deployment,
        setting=request.setting,
        slo=request.slo,
        capacity_blocks=capacity,
        replicas=request.replicas,
        seeds=request.seeds,
        time_model=request.time_model,
        think=think,
        lines=lines,
        groups=engine.groups if engine else None,
    )
    best = study.best
    simulated = isinstance(best.policy, LanePolicy) and not best.router.copies
    queues_meet = study.fewest is not None and sweep.engine is None
    if engine is not None and queues_meet and simulated:
        with monitor.steps("replaying the answer on simulated vLLMs"):
            study = replace(study, on_engines=sweep.run(study.answer.fleet, engine))
    with monitor.steps("replaying one cache for all"):
        workload.prepare([Lru(), Belady(), best.policy])
        pooled = None
        if think is None and sweep.engine is None:
            pooled = sweep.pooled(best.policy, study.chosen)
        study = replace(study, pooled=pooled, pooled_hits=sweep.pooled_hits(study.chosen))
    if study.fewest is not None:
        with monitor.steps("resampling requests"):
            most = most_compared(study.fewest)
            compared = [run for run in best.runs if run.fleet.replicas <= most]
            study = replace(study, size=size_of(sweep, compared))
    if think is not None or not any(isinstance(policy, Lru) for policy in policies):
        return study
    curves = {
        router_label(router): sweep.lru_curve(router, study.chosen)
        for router in routers
        if router.sees == "order"
    }
    return replace(study, curves=curves, pooled_curve=workload.curve)


def in_groups(request: FleetRequest, block_size: int) -> EngineSettings | None:
    """Return the simulated vLLM of a request, with the groups of a hybrid model's layers.

    Without them where blocks of `block_size` tokens do not divide the groups'.
    """
    groups = request.deployment.kv_groups_for(block_size) if request.deployment else None
    if request.engine is None or groups is None or groups.undivided(block_size):
        return request.engine
    return replace(request.engine, groups=groups)


def routers_for(
    trace: Trace, prompts: Prompts, routers: Sequence[Router], monitor: Monitor, *, named: bool
) -> list[Router]:
    """Return the routers that the trace can be replayed with.

    Raises UsageError for `named` routers that need sessions which the trace lacks.
    """
    by_session = [router for router in routers if router.needs == "keys"]
    if not by_session:
        return list(routers)
    if len(np.unique(prompts.conversation)) < trace.requests:
        if trace.lineage == "inferred":
            monitor.note("sessions are inferred from prompts: a real router's keys may differ")
        return list(routers)
    if named:
        raise UsageError(
            f"{by_session[0].name} needs sessions, and no two requests of {trace.name!r} share one",
            where="--router",
            remedy="leave it out, or take a trace with sessions or parents",
        )
    names = ", ".join(router.name for router in by_session)
    monitor.note(f"left out: {names}, since no two requests share a session")
    return [router for router in routers if router not in by_session]


def _runs(
    sweep: FleetSweep, fleets: Sequence[Fleet], monitor: Monitor, executor: Executor | None
) -> list[FleetRun]:
    """Return the runs of all fleets, in their order."""
    with monitor.steps("compiling and preparing"):
        for _ in sweep.prepare(fleets):
            if monitor.stop.is_set():
                raise Stopped("stopped before any fleet was replayed")
    runs = []
    with monitor.steps("replaying fleets", sum(map(sweep.replays, fleets))) as advance:
        for run in sweep.sweep(fleets, monitor.stop, executor):
            runs.append(run)
            advance(len(run.outcomes))
    if len(runs) < len(fleets):
        raise Stopped(f"stopped after {len(runs):,} of {len(fleets):,} fleets")
    return runs


def _lines(
    runs: Sequence[FleetRun], routers: Sequence[Router], policies: Sequence[Policy]
) -> tuple[FleetLine, ...]:
    """Return the runs by router and policy."""
    lines = []
    for router in routers:
        for policy in policies:
            alike = [
                run for run in runs if run.fleet.router is router and run.fleet.policy is policy
            ]
            lines.append(FleetLine(router, policy, tuple(alike)))
    return tuple(lines)

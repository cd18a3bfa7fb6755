"""Simulate a trace: replays with several policies at several capacities, kept in the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.app.latency import timed
from kvscope.app.monitor import Monitor, replays_on
from kvscope.app.options import DEFAULT_POINTS
from kvscope.app.requests import SimulateRequest
from kvscope.app.run_figures import RunFigures, SettingFacts
from kvscope.characterize.distributions import round_windows
from kvscope.core.errors import KvscopeError
from kvscope.core.executor import Executor
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.models import Model
from kvscope.policies.base import Leaves
from kvscope.policies.lru import Lru
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay import run_cache
from kvscope.replay.curve import HitCurve
from kvscope.replay.derived_traces import at_rate
from kvscope.replay.parameter_estimates import ParameterEstimate, bind, estimate_parameters, used
from kvscope.replay.policy_options import format_value
from kvscope.replay.sampling import DrawnTrace
from kvscope.replay.settings import with_groups, with_tiers
from kvscope.replay.sweep import WINDOWS, engine_of, serve_replay, sweep
from kvscope.replay.tier_spec import setting_tiers
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.store import results
from kvscope.store.file import CANNOT_STORE, Stores
from kvscope.tuning.target import Target

STORE_EVERY_S = 2.0

_ORDER = {policy.name: number for number, policy in enumerate(POLICIES)}


class Simulation(Struct, frozen=True):
    """The runs of one setting over one trace.

    `estimates` are the parameters estimated from the trace, by their names; documents call them
    `found`. `curve` is LRU's exact hit rate at every capacity, None where the setting has none.
    `unfinished` counts replays that a stop prevented. `workload` is the replayed workload, for
    views of single requests. The pool without a recommended tier is replayed too: `alone` with LRU,
    and `alone_as_recommended` with the recommended policy, if another; null without such a tier.
    """

    DOCUMENT: ClassVar[str] = (
        "trace *counted model deployment found=estimates results alone alone_as_recommended"
    )
    trace: Trace
    model: Model | None
    setting: RunSetting
    runs: tuple[Run, ...]
    curve: HitCurve | None = None
    estimates: Mapping[str, ParameterEstimate] = field(default_factory=dict)
    unfinished: int = 0
    workload: Workload | None = None
    deployment: ResolvedDeployment | None = None
    without_tier: tuple[Run, ...] = ()

    @property
    def counted(self) -> SettingFacts:
        """The definitions and assumptions behind the numbers."""
        return SettingFacts(self.setting)

    @property
    def results(self) -> tuple[RunFigures, ...]:
        """The runs in every unit that is known."""
        return tuple(RunFigures(run, self.trace.block_size, self.model) for run in self.runs)

    @property
    def alone(self) -> RunFigures | None:
        """LRU in the pool without the recommended tier; None if none is recommended."""
        runs = self.without_tier
        return RunFigures(runs[0], self.trace.block_size, self.model) if runs else None

    @property
    def alone_as_recommended(self) -> RunFigures | None:
        """The recommended policy without the tier; None for LRU, or without a tier."""
        runs = self.without_tier[1:]
        return RunFigures(runs[0], self.trace.block_size, self.model) if runs else None

    @property
    def capacities(self) -> list[int]:
        """The capacities, in blocks, ascending."""
        return sorted({run.capacity_blocks for run in self.runs})

    @property
    def middle(self) -> int:
        """The middle capacity (blocks; of two, the larger), whose runs the default output shows."""
        return self.capacities[len(self.capacities) // 2]

    def at(self, capacity_blocks: int) -> list[Run]:
        """Return the runs at one capacity."""
        return [run for run in self.runs if run.capacity_blocks == capacity_blocks]


def simulate(
    stores: Stores,
    trace: Trace,
    prompts: Prompts | DrawnTrace,
    request: SimulateRequest,
    monitor: Monitor | None = None,
) -> Simulation:
    """Return the runs that `request` wants: from the store, or replayed and stored.

    Once the monitor's `stop` is set, the replays in progress finish and are kept; the others count
    as unfinished. Raises UsageError for a capacity that holds no block.
    """
    monitor = monitor or Monitor()
    # Which of the measured requests waited only the whole trace shows, so a sample is not fitted.
    known = prompts if isinstance(prompts, Prompts) else prompts.without_measurements
    request, _ = timed(request, trace, known, monitor)
    request = on_groups(request, trace)
    setting = request.setting
    if setting.tiers and request.model is not None:
        setting = replace(setting, block_bytes=request.model.bytes_for(trace.block_size))
    named = request.capacities.in_blocks(request.model, trace.block_size)
    if request.tier is not None:
        above, tier = setting, request.tier
        setting = with_tiers(setting, tier.tiers(named[0]), tier.offload)
        setting = replace(setting, block_bytes=tier.kv_bytes_per_token * trace.block_size)
    tiers = setting_tiers(setting)
    if tiers:  # which may not fit the trace's blocks
        engine_of(setting, tiers[0].capacity_blocks, trace.block_size, tiers)
    rate = setting.rate_scale
    prompts = at_rate(prompts, rate) if isinstance(prompts, Prompts) else prompts.at_rate(rate)
    workload = Workload(prompts, setting, round_windows(trace, WINDOWS, rate))
    estimates = estimate_parameters(workload.request_traffic, workload.profile, setting.slo_s)
    for name, estimate in used(request.variants, estimates).items():
        monitor.note(f"{name} is {format_value(name, estimate.value)}, {estimate.origin}")
    policies = [bind(variant, estimates) for variant in request.variants]
    if tiers:
        wanted = [ReplayRequest.over(policy, tiers) for policy in policies]
    else:
        capacities = list(named)
        if request.points is not None or not named:
            more = workload.curve.capacities(request.points or DEFAULT_POINTS)
            capacities = sorted({*named, *more})
        wanted = [ReplayRequest(policy, blocks) for blocks in capacities for policy in policies]
    where = request.deployment
    without_tier: tuple[Run, ...] = ()
    with replays_on(request.on, monitor) as executor:
        if request.tier is not None:
            pool = Workload(prompts, above, workload.windows)
            own = [each for each in policies if each.name != Lru.name]
            requests = [ReplayRequest(policy, named[0]) for policy in (Lru(), *own)]
            without_tier = replay(stores, trace, pool, requests, monitor, executor=executor).runs
        simulation = replay(stores, trace, workload, wanted, monitor, where, executor=executor)
    return replace(
        simulation,
        model=request.model,
        deployment=where,
        estimates=estimates,
        without_tier=without_tier,
    )


def on_groups(request: SimulateRequest, trace: Trace) -> SimulateRequest:
    """Return the request with the layer groups of its model, if an engine runs a hybrid one.

    The setting also gets the deployment's engine, and SGLang's the bytes of a block on each GPU.
    """
    setting, model = with_groups(
        request.setting, request.model, trace.block_size, request.deployment
    )
    if request.copied_bytes_per_token is not None:
        setting = replace(setting, block_bytes=request.copied_bytes_per_token * trace.block_size)
    return replace(request, setting=setting, model=model)


def simulate_over_xi(
    stores: Stores,
    trace: Trace,
    prompts: Prompts,
    request: SimulateRequest,
    monitor: Monitor | None = None,
) -> Simulation:
    """Return runs of LRU, and of the first variant with each xi from `over_xi`, at one capacity.

    That variant must have a parameter xi. The capacity is the smallest stated one, else where LRU
    gets half of the possible hits. Runs are stored; at a stop, those in progress finish first.
    """
    from kvscope.tuning.search import over_xi

    monitor = monitor or Monitor()
    request = on_groups(timed(request, trace, prompts, monitor)[0], trace)
    setting, where = request.setting, request.deployment
    named = request.capacities.in_blocks(request.model, trace.block_size)
    windows = round_windows(trace, WINDOWS, setting.rate_scale)
    workload = Workload(at_rate(prompts, setting.rate_scale), setting, windows)
    blocks = named[0] if named else max(workload.curve.capacity_for(workload.curve.ideal / 2), 1)
    with monitor.steps("choosing values of xi"):
        settings = over_xi(workload, request.variants[0], blocks, Target(setting.slo_s or 0.0))
    wanted = [ReplayRequest(policy, blocks) for policy in (Lru(), *settings)]
    return replay(stores, trace, workload, wanted, monitor, where)


def ttft_by_request(simulation: Simulation, run: Run) -> NDArray[np.float64]:
    """Return the TTFT (s, idle engine) of every request that a run counts, by replaying it again.

    Rejected requests have none and are left out. `run` is one of the simulation's.
    """
    workload = simulation.workload
    if workload is None:
        raise ValueError("this simulation has no workload to replay")
    policy = by_name(run.policy)(dict(run.params), cast("Leaves", run.leaves))
    tiers, request = setting_tiers(run.setting), ReplayRequest(policy, run.capacity_blocks)
    workload.prepare([policy])
    served = serve_replay(workload, ReplayRequest.over(policy, tiers) if tiers else request).served
    times = served.ttft_s[served.first :]
    return times[np.isfinite(times)]


def replay(
    stores: Stores,
    trace: Trace,
    workload: Workload,
    wanted: Sequence[ReplayRequest],
    monitor: Monitor,
    where: ResolvedDeployment | None = None,
    *,
    executor: Executor | None = None,
) -> Simulation:
    """Return the wanted runs: from the store, or replayed and stored as they finish.

    If given, `where` is stored as the deployment of each run. Runs that cannot be stored are
    returned too. The default executor uses threads.
    """
    setting = workload.setting
    deployment = None if where is None else where.stated.as_table
    with stores.reading() as store:
        pending = run_cache.pending_runs(store, trace, setting, wanted)
    runs = list(pending.known)
    if runs:
        monitor.note(f"{len(runs):,} of {pending.count:,} runs were in the store already")
    failure: KvscopeError | None = None
    if deployment is not None and (older := [run for run in runs if run.deployment != deployment]):
        runs = [replace(run, deployment=deployment) for run in runs]
        try:
            with stores.writing() as store:
                results.set_deployment(store, trace, map(results.digest_of, older), deployment)
        except CANNOT_STORE as error:
            failure = error
    with monitor.steps("compiling and preparing"):
        workload.prepare([request.policy for request in pending.missing])
    with monitor.steps("replaying", len(pending.missing)) as advance:
        keeper = _RunKeeper(stores, trace)
        try:
            for replayed in sweep(workload, pending.missing, executor=executor, stop=monitor.stop):
                keeper.add(replace(replayed, deployment=deployment))
                advance(1)
        finally:
            failure = keeper.store_waiting() or failure
    runs += [*keeper.stored, *keeper.waiting]
    if failure is not None:
        monitor.note(f"not all runs were stored: {failure}")
    return Simulation(
        trace,
        None,
        setting,
        ordered(runs),
        None if setting.holds_running else workload.curve,
        unfinished=pending.count - len(runs),
        workload=workload,
    )


class _RunKeeper:
    """Stores runs in batches; the store is closed between batches, while others are replayed."""

    def __init__(self, stores: Stores, trace: Trace) -> None:
        self.stored: list[Run] = []
        self.waiting: list[Run] = []
        self._stores, self._trace = stores, trace
        self._last_s = time.monotonic()

    def add(self, run: Run) -> None:
        """Add a run; store it with the next batch, or later if the store is locked then."""
        self.waiting.append(run)
        if time.monotonic() - self._last_s > STORE_EVERY_S:
            self.store_waiting(patience_s=0.0)

    def store_waiting(self, patience_s: float | None = None) -> KvscopeError | None:
        """Store the waiting runs; return the error if some could not be stored, else None.

        `patience_s` is how long to wait (s) for a store in use; None: as long as the store does.
        """
        self._last_s = time.monotonic()
        if not self.waiting:
            return None
        try:
            with self._stores.writing(patience_s) as store:
                while self.waiting:
                    self.stored.append(run_cache.save_run(store, self._trace, self.waiting[0]))
                    del self.waiting[0]
        except CANNOT_STORE as error:
            return error
        return None


def ordered(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return runs by capacity, then as the registry lists policies, then by parameters."""
    return tuple(
        sorted(
            runs,
            key=lambda run: (
                run.capacity_blocks,
                _ORDER.get(run.policy, len(_ORDER)),
                run.policy,
                run.leaves,
                sorted(run.params.items()),
            ),
        )
    )

"""Tune a fleet: the fewest replicas for an SLO, their router and their eviction policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvscope.app.fleet import routers_for
from kvscope.app.latency import timed
from kvscope.app.monitor import Monitor
from kvscope.app.requests import FleetTuningRequest
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.models import Model
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import FleetRun
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.tuning.fleet import FleetPlan, FleetTuning, tune_fleet

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment


@dataclass(frozen=True)
class FleetRecommendation:
    """A fleet's tuning, with the trace and the deployment that it is for."""

    trace: Trace
    model: Model | None
    deployment: ResolvedDeployment | None
    setting: RunSetting
    slo: Slo
    capacity_blocks: int
    tuning: FleetTuning

    @property
    def answer(self) -> FleetRun | None:
        """What is recommended, on the judged window; else the choice there, else None."""
        return self.tuning.recommended or self.tuning.judged

    @property
    def price_hour(self) -> float | None:
        """Price of the recommended replicas for an hour, None where it is not known."""
        where, run = self.deployment, self.tuning.recommended
        if where is None or run is None:
            return None
        return where.price_of(where.tp * run.fleet.replicas)


def kernels(request: FleetTuningRequest) -> list[type[Policy]]:
    """Return the policies whose kernels the request needs."""
    return [Lru, *(variant.policy for variant in request.fleet.variants)]


def recommend_fleet(
    trace: Trace, prompts: Prompts, request: FleetTuningRequest, monitor: Monitor | None = None
) -> FleetRecommendation:
    """Return the fewest replicas, router and policy for the SLO, judged on later requests.

    Raises Stopped once the monitor's `stop` is set, InputError for a trace without arrival times or
    with too few requests, UsageError for a capacity that holds no block.
    """
    monitor = monitor or Monitor()
    routers = routers_for(trace, prompts, request.fleet, monitor)
    asked = timed(request.fleet, trace, prompts, monitor)
    (capacity,) = asked.capacities.in_blocks(asked.model, trace.block_size)
    with monitor.steps("replaying fleets") as advance:
        plan = FleetPlan(
            prompts=prompts,
            lineage=trace.lineage,
            setting=asked.setting,
            capacity_blocks=capacity,
            slo=asked.slo,
            routers=routers,
            variants=asked.variants,
            limits=request.limits,
            seeds=asked.seeds,
            advance=advance,
            engine=None if asked.engine is None else replace(asked.engine, usable_blocks=capacity),
        )
        tuning = tune_fleet(plan, monitor.stop)
    return FleetRecommendation(
        trace, asked.model, asked.deployment, asked.setting, asked.slo, capacity, tuning
    )

"""Tune a fleet: the fewest replicas for an SLO, their router, eviction policy and capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from kvscope.app.cluster import replays_on
from kvscope.app.ends import ends_of
from kvscope.app.fleet import in_groups, routers_for
from kvscope.app.latency import timed
from kvscope.app.monitor import Monitor
from kvscope.app.requests import FleetTuningRequest
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.models import Model
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import FleetRun
from kvscope.tuning.fleet import FleetTuning, tune_fleet
from kvscope.tuning.fleet_window import FleetPlan

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment


class FleetRecommendation(Struct, frozen=True):
    """A fleet's tuning, with the trace and the deployment that it is for."""

    trace: Trace
    model: Model | None
    deployment: ResolvedDeployment | None
    setting: RunSetting
    slo: Slo
    tuning: FleetTuning

    @property
    def answer(self) -> FleetRun | None:
        """What is recommended, on the judged window; else the choice there, else None."""
        return self.tuning.recommended or self.tuning.judged

    @property
    def price_hour(self) -> float | None:
        """Price of the recommended replicas for an hour, None where it is not known."""
        run = self.tuning.recommended
        return None if run is None else self.price_of(self.tuning.capacity_blocks, run)

    def price_of(self, capacity_blocks: int, run: FleetRun) -> float | None:
        """Return the price of a fleet for an hour: of the GPUs whose pools hold its capacity."""
        if self.deployment is None:
            return None
        price = _replica_price(self.deployment, self.trace, capacity_blocks)
        return None if price is None else price * run.fleet.replicas


def recommend_fleet(
    trace: Trace, prompts: Prompts, request: FleetTuningRequest, monitor: Monitor | None = None
) -> FleetRecommendation:
    """Return the cheapest fleet for the SLO, judged on later requests.

    Without a price of GPUs that is the one of the fewest replicas, then of the least capacity.

    Raises Stopped once the monitor's `stop` is set, InputError for a trace without arrival times or
    with too few requests, UsageError for a capacity that holds no block.
    """
    monitor = monitor or Monitor()
    routers = routers_for(trace, prompts, request.fleet, monitor)
    asked, latency = timed(request.fleet, trace, prompts, monitor)
    where = asked.deployment
    capacities = asked.capacities.in_blocks(asked.model, trace.block_size)
    of_pool = where is not None and asked.capacities.tokens
    pool = where.pool.in_blocks_of(trace.block_size) if where and of_pool else None
    with (
        replays_on(asked.on, monitor) as executor,
        monitor.steps("replaying fleets") as advance,
    ):
        plan = FleetPlan(
            prompts=prompts,
            lineage=trace.lineage,
            setting=asked.setting,
            capacities=capacities,
            slo=asked.slo,
            routers=routers,
            variants=asked.variants,
            limits=request.limits,
            seeds=asked.seeds,
            advance=advance,
            engine=in_groups(asked, trace.block_size),
            ends=ends_of(latency, prompts, latency_named=request.latency_named, pool=pool),
            replica_cost=lambda blocks: (where and _replica_price(where, trace, blocks)) or 1.0,
            executor=executor,
        )
        tuning = tune_fleet(plan, monitor.stop)
    return FleetRecommendation(trace, asked.model, where, asked.setting, asked.slo, tuning)


def _replica_price(where: ResolvedDeployment, trace: Trace, blocks: int) -> float | None:
    """Return the price of a replica of so many blocks for an hour, None where it is not known."""
    return where.price_of(where.gpus_for(blocks * trace.block_size))

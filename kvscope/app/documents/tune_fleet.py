"""The document of `kvscope tune --fleet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from kvscope.app.documents.base import Facts, GatedDocument, ModelFacts, TraceFacts, model_facts
from kvscope.app.documents.deployment import DeploymentFacts, LatencyFacts, deployment_facts
from kvscope.app.gates import tuned_fleet_figures
from kvscope.app.tune_fleet import FleetRecommendation
from kvscope.fleet.outcome import Latencies
from kvscope.fleet.sweep import FleetRun
from kvscope.ingest.clocks import SessionStarts
from kvscope.tuning.comparison import Harm
from kvscope.tuning.fleet import FleetVerdict, WindowName
from kvscope.tuning.fleet_size import FleetSize
from kvscope.tuning.fleet_window import FleetWindows


class TunedFleetFigures(Facts):
    """One fleet on one window; `ttft_at_percentile_ms` is null where the queue grows."""

    router: str
    router_params: Mapping[str, float]
    policy: str
    policy_params: Mapping[str, float]
    replicas: int
    meets: bool
    ttft_at_percentile_ms: float | None
    hit_rate: float
    latencies: Latencies


class RouterSizeFigures(Facts):
    """A router with LRU: the fewest replicas on the choosing window, null where none met the SLO.

    `run` is the fleet of so many, else of the most that were tried.
    """

    replicas: int | None
    run: TunedFleetFigures


class PolicyTrialFigures(Facts):
    """A policy behind the chosen router, compared with LRU on the choosing window."""

    replicas: int | None
    harms: tuple[Harm, ...]
    significant: bool
    run: TunedFleetFigures


class CapacityChoiceFigures(Facts):
    """The best fleet on the choosing window with one capacity of a replica, null for none."""

    capacity_blocks: int
    capacity_tokens: int
    chosen: TunedFleetFigures | None
    price_hour: float | None


class EndFleetFigures(Facts):
    """One end of what is not known exactly; `sessions` are other starts of sessions, else null.

    `capacity_blocks` is null where it is the chosen one. `agrees`: whether the chosen policy would
    be chosen there as well. `replicas` are the fewest that meet the SLO there on both windows with
    the recommended policy, null for more than were tried, and without a recommendation.
    """

    name: str
    prefill_times: float
    capacity_blocks: int | None
    sessions: SessionStarts | None
    agrees: bool
    replicas: int | None


class TuneFleetDocument(GatedDocument):
    """What `kvscope tune --fleet` finds.

    `verdict` is confirmed, resized or misses-slo. `capacities` are those of a replica that were
    compared, the chosen one first. `chosen` is on the choosing window; `judged` (the choice) and
    `recommended` are on the judged one; `judged_harms` are the limits that the choice breaks there.
    `one_fewer`, on the window `fewer_on`, is what
    one replica fewer than recommended gives where it misses the SLO. `size` has the replicas that
    the judged window takes by itself and their 95 % interval (null: more than were tried).
    `routers`, best first, and `policies` are on the choosing window. `on_engines` is what queues
    alone would recommend, on a deployment's simulated vLLMs; where it misses the SLO there,
    `recommended` is the fewest replicas that meet it there, with figures of those engines. `ends`
    are those of pool, latency and session starts.
    """

    command: Literal["tune-fleet"] = "tune-fleet"
    trace: TraceFacts
    model: ModelFacts | None
    deployment: DeploymentFacts | None
    latency: LatencyFacts
    slo_ms: float
    percentile: float
    capacity_blocks: int
    capacity_tokens: int
    windows: FleetWindows
    verdict: FleetVerdict
    words: tuple[str, ...]
    capacities: tuple[CapacityChoiceFigures, ...]
    chosen: TunedFleetFigures | None
    judged: TunedFleetFigures | None
    judged_harms: tuple[Harm, ...]
    recommended: TunedFleetFigures | None
    one_fewer: TunedFleetFigures | None
    fewer_on: WindowName | None
    size: FleetSize | None
    on_engines: TunedFleetFigures | None
    ends: tuple[EndFleetFigures, ...]
    price_hour: float | None
    flags: tuple[str, ...]
    routers: tuple[RouterSizeFigures, ...]
    policies: tuple[PolicyTrialFigures, ...]


def tune_fleet_document(tuned: FleetRecommendation, words: Sequence[str]) -> TuneFleetDocument:
    """Return the document of `kvscope tune --fleet`, with the answer in words."""
    tuning, where = tuned.tuning, tuned.deployment
    named = ("chosen", "judged", "recommended", "one_fewer", "on_engines")
    runs = {name: getattr(tuning, name) for name in named}
    return TuneFleetDocument.build(
        tuned,
        tuning,
        trace=TraceFacts.build(tuned.trace),
        model=model_facts(tuned.model),
        deployment=deployment_facts(where) if where else None,
        latency=LatencyFacts.build(tuned.setting, profile=tuned.setting.latency),
        slo_ms=tuned.slo.ttft_s * 1e3,
        percentile=tuned.slo.percentile,
        capacity_tokens=tuning.capacity_blocks * tuned.trace.block_size,
        capacities=tuple(
            CapacityChoiceFigures.build(
                each,
                capacity_tokens=each.capacity_blocks * tuned.trace.block_size,
                chosen=None if each.chosen is None else _fleet(each.chosen),
                price_hour=each.chosen and tuned.price_of(each.capacity_blocks, each.chosen),
            )
            for each in tuning.capacities
        ),
        ends=tuple(EndFleetFigures.build(each.end, each) for each in tuning.ends),
        words=tuple(words),
        figures=tuned_fleet_figures(tuned),
        flags=tuning.recommended.fleet.router.flags() if tuning.recommended else (),
        routers=tuple(
            RouterSizeFigures(replicas=each.replicas, run=_fleet(each.run))
            for each in tuning.routers
        ),
        policies=tuple(
            PolicyTrialFigures.build(each, run=_fleet(each.run)) for each in tuning.policies
        ),
        **{name: None if run is None else _fleet(run) for name, run in runs.items()},
    )


def _fleet(run: FleetRun) -> TunedFleetFigures:
    fleet, outcome = run.fleet, run.outcome
    ttft_ms = outcome.target_ttft_s * 1e3
    return TunedFleetFigures(
        router=fleet.router.name,
        router_params=fleet.router.values,
        policy=fleet.policy.name,
        policy_params=fleet.policy.values,
        replicas=fleet.replicas,
        meets=run.meets,
        ttft_at_percentile_ms=ttft_ms if np.isfinite(ttft_ms) else None,
        hit_rate=outcome.taken,
        latencies=outcome.latencies,
    )

"""The document of `kvscope fleet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from kvscope.app.documents.base import Facts, GatedDocument, ModelFacts, TraceFacts, model_facts
from kvscope.app.documents.deployment import DeploymentFacts, LatencyFacts, deployment_facts
from kvscope.app.fleet import FleetLine, FleetStudy
from kvscope.app.gates import Figures
from kvscope.app.options import TimeModel
from kvscope.fleet.outcome import Imbalance, Latencies, ReplicaOutcome
from kvscope.fleet.sweep import FleetRun


class LoopFacts(Facts):
    """When requests arrive: `open`, at the trace's times, or `closed`, by think times.

    Counts are of requests that follow another: their think time was `stated` by the trace,
    `recorded` (gap less the
    trace's duration) or `estimated` (gap less service on an idle replica); `floored` ones are 0.
    """

    kind: Literal["open", "closed"]
    recorded: int | None
    estimated: int | None
    floored: int | None
    stated: int | None


class SpreadFacts(Facts):
    """The least and the largest figures over the seeds of a router that draws."""

    seeds: int
    ttft_ms: tuple[float, float]
    hit_rate: tuple[float, float]


class FleetFigures(Facts):
    """One fleet: a router, a policy and a number of replicas.

    `hit_rate` is what was taken: infinite - not_held - not_chosen. `ttft_at_percentile_ms` is the
    SLO's percentile, null where the queue grows. `sent_tokens` has a row a replica, the uncached
    tokens sent to it in bins of `bin_s`; it is empty but for the chosen number of replicas.
    """

    router: str
    router_params: Mapping[str, float]
    reference: bool
    policy: str
    policy_params: Mapping[str, float]
    replicas: int
    meets: bool
    ttft_at_percentile_ms: float | None
    tpot_at_percentile_ms: float | None
    latencies: Latencies
    hit_rate: float
    best_available: float
    infinite: float
    not_held: float
    not_chosen: float
    imbalance: Imbalance
    overloaded_replicas: int
    by_replica: tuple[ReplicaOutcome, ...]
    spread: SpreadFacts | None
    bin_s: float
    sent_tokens: tuple[tuple[float, ...], ...]


class LineFigures(Facts):
    """A router with a policy: the fewest replicas that meet the SLO, null where none do."""

    router: str
    policy: str
    reference: bool
    fewest: int | None
    flags: tuple[str, ...]


class PooledFigures(Facts):
    """One cache as large as all replicas' together: hit rates, and latencies with one queue.

    `latencies` is null in closed loop. `lru` and `belady` are hit rates in the trace's order.
    """

    lru: float
    belady: float
    latencies: Latencies | None


class CapacityCurve(Facts):
    """LRU's hit rate by the blocks of a replica: exact, behind a router that sees the order alone.

    Points from a sixteenth to sixteen times the present capacity, at the chosen number of replicas.
    """

    router: str
    capacity_blocks: tuple[int, ...]
    hit_rate: tuple[float, ...]


class FleetDocument(GatedDocument):
    """What `kvscope fleet` finds; `lines` are ranked, the answer first, references last.

    `verdict` is meets-slo, misses-on-engines, misses-slo or overloaded. `fewest` is null where no
    number of replicas meets the SLO; `chosen` is then the largest one. `fewest_interval` is its 95
    % interval, null in it for more than were tried, null itself without a fewest. What a policy
    learns it learns of the whole fleet's traffic. `on_engines`: an answer of queues that meets the
    SLO, replayed on a deployment's simulated vLLMs.
    """

    command: Literal["fleet"] = "fleet"
    trace: TraceFacts
    model: ModelFacts | None
    deployment: DeploymentFacts | None
    latency: LatencyFacts
    time_model: TimeModel
    loop: LoopFacts
    slo_ms: float
    percentile: float
    tpot_slo_ms: float | None
    warmup: float
    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    verdict: str
    words: tuple[str, ...]
    fewest: int | None
    fewest_interval: tuple[int | None, int | None] | None
    chosen: int
    price_hour: float | None
    pooled: PooledFigures | None
    on_engines: FleetFigures | None
    lines: tuple[LineFigures, ...]
    fleets: tuple[FleetFigures, ...]
    curves: tuple[CapacityCurve, ...]


def fleet_document(study: FleetStudy, words: Sequence[str], figures: Figures) -> FleetDocument:
    """Return the document of `kvscope fleet`, with the answer in words."""
    tokens = study.capacity_blocks * study.trace.block_size
    steps = 2.0 ** np.arange(-4, 5)
    blocks = np.unique(np.maximum(np.round(study.capacity_blocks * steps), 1).astype(np.int64))
    where, setting, think = study.deployment, study.setting, study.think
    return FleetDocument.build(
        study,
        trace=TraceFacts.build(study.trace),
        model=model_facts(study.model),
        deployment=deployment_facts(where) if where else None,
        latency=LatencyFacts.build(setting, profile=setting.latency),
        loop=LoopFacts(
            kind="closed" if think else "open",
            recorded=think.recorded if think else None,
            estimated=think.estimated if think else None,
            floored=think.floored if think else None,
            stated=think.stated if think else None,
        ),
        slo_ms=study.slo.ttft_s * 1e3,
        percentile=study.slo.percentile,
        tpot_slo_ms=None if study.slo.tpot_s is None else study.slo.tpot_s * 1e3,
        warmup=setting.definition.warmup,
        capacity_tokens=tokens,
        capacity_bytes=study.model.bytes_for(tokens) if study.model else None,
        words=tuple(words),
        figures=figures,
        fewest_interval=None if study.size is None else (study.size.low, study.size.high),
        pooled=_pooled(study),
        on_engines=None if study.on_engines is None else _fleet(study.on_engines, study),
        lines=tuple(map(_line, study.ranked)),
        fleets=tuple(_fleet(run, study) for line in study.ranked for run in line.runs),
        curves=tuple(
            CapacityCurve(
                router=router,
                capacity_blocks=tuple(blocks.tolist()),
                hit_rate=tuple(curve.rate(blocks).tolist()),
            )
            for router, curve in study.curves.items()
        ),
    )


def _line(line: FleetLine) -> LineFigures:
    return LineFigures(
        router=line.router.name,
        policy=line.policy.name,
        reference=line.router.reference,
        fewest=line.fewest,
        flags=line.router.flags(),
    )


def _fleet(run: FleetRun, study: FleetStudy) -> FleetFigures:
    fleet, outcome = run.fleet, run.outcome
    tpot_s = outcome.target_tpot_s
    sent = outcome.sent_tokens.tolist() if fleet.replicas == study.chosen else []
    return FleetFigures.build(
        outcome,
        router=fleet.router.name,
        router_params=fleet.router.values,
        reference=fleet.router.reference,
        policy=fleet.policy.name,
        policy_params=fleet.policy.values,
        replicas=fleet.replicas,
        meets=run.meets,
        ttft_at_percentile_ms=_finite(outcome.target_ttft_s * 1e3),
        tpot_at_percentile_ms=None if tpot_s is None else tpot_s * 1e3,
        hit_rate=outcome.taken,
        by_replica=outcome.replicas,
        spread=_spread(run),
        sent_tokens=tuple(tuple(row) for row in sent),
    )


def _spread(run: FleetRun) -> SpreadFacts | None:
    ttft_ms = run.spread(lambda each: each.target_ttft_s * 1e3)
    hit_rate = run.spread(lambda each: each.taken)
    if ttft_ms is None or hit_rate is None:
        return None
    return SpreadFacts(seeds=len(run.outcomes), ttft_ms=ttft_ms, hit_rate=hit_rate)


def _pooled(study: FleetStudy) -> PooledFigures | None:
    if study.pooled_hits is None:
        return None
    latencies = None if study.pooled is None else study.pooled.latencies
    return PooledFigures.build(study.pooled_hits, latencies=latencies)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None

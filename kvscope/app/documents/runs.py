"""The documents of `kvscope simulate` and `kvscope runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from kvscope.app.documents.base import (
    Document,
    Facts,
    GatedDocument,
    ModelFacts,
    TraceFacts,
    model_facts,
)
from kvscope.app.documents.deployment import DeploymentFacts, LatencyFacts, deployment_facts
from kvscope.app.gates import Figures
from kvscope.app.simulate import Simulation, ordered
from kvscope.core.hits import HitDefinition
from kvscope.core.runs import Misses, Outcome, Run, RunSetting, TierOutcome
from kvscope.core.trace import Trace
from kvscope.deployment.models import Model
from kvscope.replay.parameter_estimates import ParameterEstimate
from kvscope.replay.tier_spec import kv_transfer_config, offload_launch


class SettingFacts(Facts):
    """What the numbers of a run count and assume.

    `offload_left_out` is null: it was for approximations that are gone.
    """

    definition: HitDefinition
    latency: LatencyFacts
    slo_ms: float | None
    rate_scale: float
    isolate: str | None
    sample_rate: float
    capacity_model: str
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    tiers_asked: str | None
    tier_mode: str | None
    kv_transfer_config: Mapping[str, Any] | None
    offload_launch: str | None
    offload_left_out: str | None


class TierFacts(Facts, TierOutcome):
    """What one tier gave, with its capacity in bytes where a model is named."""

    capacity_bytes: int | None


class CategoryFacts(Facts, Outcome):
    """A run's numbers for the requests of one category."""

    category: str


class StretchFacts(Facts, Outcome):
    """A run's numbers for the requests that arrived from `start_s` on, within `length_s`."""

    start_s: float | None
    length_s: float | None


class RunFigures(Facts, Outcome):
    """One replay: a policy at a capacity, in every unit that is known, and what came of it."""

    policy: str
    leaves: str
    params: Mapping[str, float]
    hindsight: bool
    capacity_model: str
    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    hit_rate_error: float | None
    evictions: int
    misses: Misses | None
    preemptions: int | None
    turned_away: int | None
    tiers: tuple[TierFacts, ...]
    categories: tuple[CategoryFacts, ...]
    over_time: tuple[StretchFacts, ...]
    kvscope: str
    created_at: datetime | None


class SimulateDocument(GatedDocument, SettingFacts):
    """What `kvscope simulate` finds; `found` has the parameters that follow from the trace.

    `alone` is the pool without the tier of a recommendation, null where it has none;
    `alone_as_recommended` the same with its retention interval, null where it states none.
    """

    command: Literal["simulate"] = "simulate"
    schema: Literal[2] = 2  # type: ignore[assignment]  # a version of its own
    trace: TraceFacts
    model: ModelFacts | None
    deployment: DeploymentFacts | None
    found: Mapping[str, ParameterEstimate]
    results: tuple[RunFigures, ...]
    alone: RunFigures | None
    alone_as_recommended: RunFigures | None


class StoredRun(SettingFacts, RunFigures):
    """A run that the store keeps, with what it counts and assumes.

    `run:N`, N its `run_id`, names it for --baseline. `deployment` has what was
    stated of it, by the keys of kvscope.toml; null for a cache study.
    """

    run_id: int | None
    deployment: Mapping[str, str | int | float] | None


class ReportFacts(Facts):
    """A report that the store keeps, without what it shows; `created_at` is in UTC."""

    command: str
    summary: str
    created_at: datetime
    duration_s: float
    kvscope: str


class RunsDocument(Document):
    """The runs that the store keeps of a trace, and the reports of `tune` and `fleet`."""

    command: Literal["runs"] = "runs"
    schema: Literal[2] = 2  # type: ignore[assignment]  # a version of its own
    trace: TraceFacts
    runs: tuple[StoredRun, ...]
    reports: tuple[ReportFacts, ...]


def simulate_document(simulation: Simulation, figures: Figures) -> SimulateDocument:
    """Return the document of `kvscope simulate`."""
    trace, model = simulation.trace, simulation.model
    alone = [run_figures(run, trace, model) for run in simulation.alone]
    return SimulateDocument.build(
        setting_facts(simulation.setting),
        trace=TraceFacts.build(trace),
        model=model_facts(model),
        deployment=deployment_facts(simulation.deployment) if simulation.deployment else None,
        found=simulation.estimates,
        figures=figures,
        results=tuple(run_figures(run, trace, model) for run in simulation.runs),
        alone=alone[0] if alone else None,
        alone_as_recommended=alone[-1] if len(alone) > 1 else None,
    )


def runs_document(
    trace: Trace, runs: Sequence[Run], model: Model | None, reports: Sequence[object] = ()
) -> RunsDocument:
    """Return the document of `kvscope runs`."""
    return RunsDocument(
        trace=TraceFacts.build(trace),
        runs=tuple(
            StoredRun.build(setting_facts(run.setting), run_figures(run, trace, model), run)
            for run in ordered(runs)
        ),
        reports=tuple(map(ReportFacts.build, reports)),
    )


def setting_facts(setting: RunSetting) -> SettingFacts:
    """Return what the numbers under a setting count and assume."""
    return SettingFacts.build(
        setting,
        latency=LatencyFacts.build(setting, profile=setting.latency),
        tiers_asked=setting.tiers or None,
        kv_transfer_config=kv_transfer_config(setting),
        offload_launch=offload_launch(setting),
        offload_left_out=None,
    )


def run_figures(run: Run, trace: Trace, model: Model | None) -> RunFigures:
    """Return one replay in every unit that is known."""

    def size(blocks: int) -> int | None:
        return model.bytes_for(blocks * trace.block_size) if model else None

    return RunFigures.build(
        run.outcome,
        run,
        run.setting,
        capacity_tokens=run.capacity_blocks * trace.block_size,
        capacity_bytes=size(run.capacity_blocks),
        tiers=tuple(
            TierFacts.build(tier, capacity_bytes=size(tier.capacity_blocks)) for tier in run.tiers
        ),
        categories=tuple(
            CategoryFacts.build(part.outcome, part)
            for part in run.parts
            if part.category is not None
        ),
        over_time=tuple(
            StretchFacts.build(part.outcome, part) for part in run.parts if part.category is None
        ),
    )

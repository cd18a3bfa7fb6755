"""The documents of `kvscope simulate` and `kvscope runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from kvscope.app.documents.base import (
    Document,
    ModelFacts,
    TraceFacts,
    model_facts,
    trace_facts,
    values,
)
from kvscope.app.simulate import Simulation, ordered
from kvscope.core.hits import HitDefinition
from kvscope.core.runs import Misses, Outcome, Run, RunSetting, TierOutcome
from kvscope.core.trace import Trace
from kvscope.deployment.models import Model
from kvscope.replay.parameter_estimates import ParameterEstimate


@dataclass(frozen=True, kw_only=True)
class LatencyFacts:
    """TTFT = base + per_token u + per_token_pair u (c + u / 2); u uncached, c cached tokens."""

    profile: str
    base_ms: float
    per_token_ms: float
    per_token_pair_ms: float


@dataclass(frozen=True, kw_only=True)
class SettingFacts:
    """What the numbers of a run count and assume."""

    definition: HitDefinition
    latency: LatencyFacts
    slo_ms: float | None
    rate_scale: float
    isolate: str | None
    sample_rate: float
    coarsen: int
    capacity_model: str
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    tiers_asked: str | None
    tier_mode: str | None


@dataclass(frozen=True, kw_only=True)
class TierFacts(TierOutcome):
    """What one tier gave, with its capacity in bytes where a model is named."""

    capacity_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class CategoryFacts(Outcome):
    """A run's numbers for the requests of one category."""

    category: str


@dataclass(frozen=True, kw_only=True)
class StretchFacts(Outcome):
    """A run's numbers for the requests that arrived from `start_s` on, within `length_s`."""

    start_s: float | None
    length_s: float | None


@dataclass(frozen=True, kw_only=True)
class RunFigures(Outcome):
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


@dataclass(frozen=True, kw_only=True)
class SimulateDocument(Document, SettingFacts):
    """What `kvscope simulate` finds; `found` has the parameters that follow from the trace."""

    command: Literal["simulate"] = "simulate"
    trace: TraceFacts
    model: ModelFacts | None
    found: Mapping[str, ParameterEstimate]
    results: tuple[RunFigures, ...]


@dataclass(frozen=True, kw_only=True)
class StoredRun(SettingFacts, RunFigures):
    """A run that the store keeps, with what it counts and assumes."""


@dataclass(frozen=True, kw_only=True)
class RunsDocument(Document):
    """The runs that the store keeps of a trace."""

    command: Literal["runs"] = "runs"
    trace: TraceFacts
    runs: tuple[StoredRun, ...]


def simulate_document(simulation: Simulation) -> SimulateDocument:
    """Return the document of `kvscope simulate`."""
    trace, model = simulation.trace, simulation.model
    return SimulateDocument(
        **setting_facts(simulation.setting),
        trace=trace_facts(trace),
        model=model_facts(model),
        found=simulation.estimates,
        results=tuple(RunFigures(**run_figures(run, trace, model)) for run in simulation.runs),
    )


def runs_document(trace: Trace, runs: Sequence[Run], model: Model | None) -> RunsDocument:
    """Return the document of `kvscope runs`."""
    return RunsDocument(
        trace=trace_facts(trace),
        runs=tuple(
            StoredRun(**setting_facts(run.setting) | run_figures(run, trace, model))
            for run in ordered(runs)
        ),
    )


def setting_facts(setting: RunSetting) -> dict[str, Any]:
    """Return the fields of `SettingFacts`."""
    return {
        "definition": setting.definition,
        "latency": LatencyFacts(
            profile=setting.latency,
            base_ms=setting.base_s * 1e3,
            per_token_ms=setting.per_token_s * 1e3,
            per_token_pair_ms=setting.per_token_pair_s * 1e3,
        ),
        "slo_ms": None if setting.slo_s is None else setting.slo_s * 1e3,
        "rate_scale": setting.rate_scale,
        "isolate": setting.isolate,
        "sample_rate": setting.sample_rate,
        "coarsen": setting.coarsen,
        "capacity_model": setting.capacity_model,
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "tiers_asked": setting.tiers or None,
        "tier_mode": setting.tier_mode,
    }


def run_figures(run: Run, trace: Trace, model: Model | None) -> dict[str, Any]:
    """Return the fields of `RunFigures`."""
    tokens = run.capacity_blocks * trace.block_size
    return {
        **values(run.outcome),
        "policy": run.policy,
        "leaves": run.leaves,
        "params": run.params,
        "hindsight": run.hindsight,
        "capacity_model": run.setting.capacity_model,
        "capacity_blocks": run.capacity_blocks,
        "capacity_tokens": tokens,
        "capacity_bytes": model.bytes_for(tokens) if model else None,
        "hit_rate_error": run.hit_rate_error,
        "evictions": run.evictions,
        "misses": run.misses,
        "preemptions": run.preemptions,
        "turned_away": run.turned_away,
        "tiers": tuple(
            TierFacts(
                **values(tier),
                capacity_bytes=model.bytes_for(tier.capacity_blocks * trace.block_size)
                if model
                else None,
            )
            for tier in run.tiers
        ),
        "categories": tuple(
            CategoryFacts(**values(part.outcome), category=part.category)
            for part in run.parts
            if part.category is not None
        ),
        "over_time": tuple(
            StretchFacts(**values(part.outcome), start_s=part.start_s, length_s=part.length_s)
            for part in run.parts
            if part.category is None
        ),
        "kvscope": run.kvscope,
        "created_at": run.created_at,
    }

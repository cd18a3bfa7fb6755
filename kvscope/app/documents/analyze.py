"""The document of `kvscope analyze`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

from kvscope.app.analyze import (
    Analysis,
    CurvePoint,
    HitRate,
    Landmark,
    LayoutCapacity,
    RetentionIdeal,
)
from kvscope.app.documents.base import GatedDocument, ModelFacts, TraceFacts, model_facts
from kvscope.app.documents.deployment import DeploymentFacts, deployment_facts
from kvscope.app.gates import analyze_figures
from kvscope.characterize.summary import Characterization
from kvscope.core.hits import HitDefinition
from kvscope.replay.misses import MissReasons


class AnalyzeDocument(GatedDocument, Characterization):
    """What `kvscope analyze` finds. Fields on reuse are null or empty for a trace of lengths.

    `layouts` are other starts of sessions without a common clock, with the capacity for 90 % of the
    ideal hits there. `retention` is what windows of a hybrid model let hit in an ample pool.
    """

    command: Literal["analyze"] = "analyze"
    trace: TraceFacts  # type: ignore[assignment]  # a part of the trace is enough here
    notes: tuple[str, ...]
    model: ModelFacts | None
    hbm_bytes: int | None
    deployment: DeploymentFacts | None
    definition: HitDefinition | None
    ideal_hit_rate: float | None
    hit_rates: tuple[HitRate, ...]
    curve: tuple[CurvePoint, ...]
    landmarks: tuple[Landmark, ...]
    layouts: tuple[LayoutCapacity, ...]
    retention: tuple[RetentionIdeal, ...]
    asked: tuple[CurvePoint, ...]
    misses: tuple[MissReasons, ...]


WITHOUT_HASHES = SimpleNamespace(
    definition=None, ideal=None, hit_rates=(), curve=(), landmarks=(), asked=(), misses=()
)


def analyze_document(analysis: Analysis) -> AnalyzeDocument:
    """Return the document of `kvscope analyze`."""
    caching = analysis.caching or WITHOUT_HASHES
    return AnalyzeDocument.build(
        analysis.characterization,
        analysis,
        caching,
        trace=TraceFacts.build(analysis.trace),
        notes=analysis.trace.notes,
        model=model_facts(analysis.model),
        deployment=deployment_facts(analysis.deployment) if analysis.deployment else None,
        ideal_hit_rate=caching.ideal,
        figures=analyze_figures(analysis),
    )

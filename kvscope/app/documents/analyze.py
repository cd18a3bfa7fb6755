"""The document of `kvscope analyze`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvscope.app.analyze import Analysis, CurvePoint, HitRate, Landmark
from kvscope.app.documents.base import (
    Document,
    ModelFacts,
    TraceFacts,
    model_facts,
    trace_facts,
    values,
)
from kvscope.characterize.summary import Characterization
from kvscope.core.hits import HitDefinition
from kvscope.replay.misses import MissReasons


@dataclass(frozen=True, kw_only=True)
class AnalyzeDocument(Document, Characterization):
    """What `kvscope analyze` finds. Fields on reuse are null or empty for a trace of lengths."""

    command: Literal["analyze"] = "analyze"
    trace: TraceFacts  # type: ignore[assignment]  # a part of the trace is enough here
    notes: tuple[str, ...]
    model: ModelFacts | None
    hbm_bytes: int | None
    definition: HitDefinition | None
    ideal_hit_rate: float | None
    hit_rates: tuple[HitRate, ...]
    curve: tuple[CurvePoint, ...]
    landmarks: tuple[Landmark, ...]
    asked: tuple[CurvePoint, ...]
    misses: tuple[MissReasons, ...]


def analyze_document(analysis: Analysis) -> AnalyzeDocument:
    """Return the document of `kvscope analyze`."""
    caching = analysis.caching
    return AnalyzeDocument(
        **values(analysis.characterization)
        | {
            "trace": trace_facts(analysis.trace),
            "notes": analysis.trace.notes,
            "model": model_facts(analysis.model),
            "hbm_bytes": analysis.hbm_bytes,
            "definition": caching and caching.definition,
            "ideal_hit_rate": caching and caching.ideal,
            "hit_rates": caching.hit_rates if caching else (),
            "curve": caching.curve if caching else (),
            "landmarks": caching.landmarks if caching else (),
            "asked": caching.asked if caching else (),
            "misses": caching.misses if caching else (),
        }
    )

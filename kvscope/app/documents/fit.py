"""The document of `kvscope fit`."""

from __future__ import annotations

from typing import Literal

from kvscope.app.documents.base import Document, Facts, TraceFacts
from kvscope.learning.ends.chances import FEATURES
from kvscope.learning.ends.prediction_quality import PredictionQuality
from kvscope.reuse_models.results import (
    CategoryFit,
    Conversation,
    Fit,
    ModelFit,
    NextPromptFit,
    NextTurnFit,
    StabilityFit,
    WindowFit,
)
from kvscope.tuning.end_gain import EndGain, EndsFit


class WindowsFacts(Facts):
    """Fits over sliding windows."""

    length_s: float
    step_s: float
    at_s: tuple[float, ...]
    fits: tuple[WindowFit, ...]


class TreesFacts(Facts):
    """A boosted model of whether a conversation goes on."""

    start: float
    features: tuple[tuple[int, int, int], ...]
    edges: tuple[tuple[float, float, float], ...]
    values: tuple[tuple[float, float, float, float], ...]


class ReturnsFacts(Facts, PredictionQuality):
    """How well returns are predicted, and what that is worth to T-LRU."""

    features: tuple[str, ...]
    trees: TreesFacts | None  # type: ignore[assignment]  # by name rather than by position
    xi_tokens: float
    judged_after: float
    end_gains: tuple[EndGain, ...]


class FitDocument(Document):
    """What `kvscope fit` finds. Fields on reuse are empty for a trace of lengths."""

    command: Literal["fit"] = "fit"
    trace: TraceFacts
    notes: tuple[str, ...]
    warmup: float
    start_s: float
    end_s: float
    categories: tuple[CategoryFit, ...]
    models: tuple[ModelFit, ...]
    windows: WindowsFacts | None
    stability: tuple[StabilityFit, ...]
    conversation: Conversation | None
    next_turns: tuple[NextTurnFit, ...]
    next_prompt_tokens: tuple[NextPromptFit, ...]
    returns: ReturnsFacts | None


def fit_document(fit: Fit, ends: EndsFit | None) -> FitDocument:
    """Return the document of `kvscope fit`; `ends` is what `--returns` adds."""
    windows = fit.windows
    return FitDocument.build(
        fit,
        trace=TraceFacts.build(fit.trace),
        notes=fit.trace.notes,
        windows=WindowsFacts.build(windows) if windows else None,
        stability=windows.stability if windows else (),
        next_prompt_tokens=fit.next_prompts,
        returns=_returns(ends) if ends else None,
    )


def _returns(ends: EndsFit) -> ReturnsFacts:
    trees = ends.foreseen.trees
    return ReturnsFacts.build(
        ends.foreseen,
        ends,
        trees=TreesFacts.build(trees) if trees else None,
        features=FEATURES,
        judged_after=ends.warmup,
        end_gains=ends.gains,
    )

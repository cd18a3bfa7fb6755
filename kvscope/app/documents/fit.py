"""The document of `kvscope fit`."""

from __future__ import annotations

from typing import Literal

from kvscope.app.documents.base import Document, Facts, TraceFacts
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


class WindowsFacts(Facts):
    """Fits over sliding windows."""

    length_s: float
    step_s: float
    at_s: tuple[float, ...]
    fits: tuple[WindowFit, ...]


class FitDocument(Document):
    """What `kvscope fit` finds. Fields on reuse are empty for a trace of lengths.

    `returns` is always null: it described predictions of a policy that was removed.
    """

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
    returns: None


def fit_document(fit: Fit) -> FitDocument:
    """Return the document of `kvscope fit`."""
    windows = fit.windows
    return FitDocument.build(
        fit,
        trace=TraceFacts.build(fit.trace),
        notes=fit.trace.notes,
        windows=WindowsFacts.build(windows) if windows else None,
        stability=windows.stability if windows else (),
        next_prompt_tokens=fit.next_prompts,
        returns=None,
    )

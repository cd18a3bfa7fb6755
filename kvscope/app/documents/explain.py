"""The document of `kvscope explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kvscope.app.documents.base import GatedDocument, ModelFacts, TraceFacts, model_facts
from kvscope.app.documents.deployment import DeploymentFacts, deployment_facts
from kvscope.app.explain import CauseTotal, ExplainedRequest, Explanation, Finding, Observed
from kvscope.app.gates import explain_figures
from kvscope.core.hits import HitDefinition


class ExplainDocument(GatedDocument):
    """Why input tokens missed; `causes` add up to `missed_tokens`.

    `capacity_blocks` is null for an infinite cache; each of several `workers` has one.
    """

    command: Literal["explain"] = "explain"
    trace: TraceFacts
    model: ModelFacts | None
    deployment: DeploymentFacts | None
    definition: HitDefinition
    policy: str
    params: Mapping[str, float]
    capacity_model: str
    capacity_blocks: int | None
    workers: int
    input_tokens: int
    hit_tokens: int
    missed_tokens: int
    causes: tuple[CauseTotal, ...]
    findings: tuple[Finding, ...]
    observed: Observed | None
    requests: tuple[ExplainedRequest, ...]


def explain_document(explanation: Explanation) -> ExplainDocument:
    """Return the document of `kvscope explain`."""
    where, policy = explanation.deployment, explanation.policy
    return ExplainDocument.build(
        explanation,
        explanation.setting,
        trace=TraceFacts.build(explanation.trace),
        model=model_facts(explanation.model),
        deployment=deployment_facts(where) if where else None,
        policy=policy.name,
        figures=explain_figures(explanation),
        params={name: float(value) for name, value in policy.values.items()},
    )

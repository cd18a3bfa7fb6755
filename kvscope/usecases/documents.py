"""The documents of `--json`: what they show of a use case's result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvscope import __version__
from kvscope.app.documents.base import AnyDocument, Facts, ModelFacts, TraceFacts
from kvscope.app.documents.deployment import DeploymentFacts, deployment_facts
from kvscope.core.trace import Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.models import Model
from kvscope.usecases.base import AnyUseCase

FORMS: Mapping[type, tuple[type[Facts], Callable[[Any], Facts]]] = {
    Trace: (TraceFacts, TraceFacts.build),
    Model: (ModelFacts, ModelFacts.build),
    ResolvedDeployment: (DeploymentFacts, deployment_facts),
}
"""What documents show of things of the domain: its class, and what makes it."""


def document(case: AnyUseCase, result: Any) -> AnyDocument:
    """Return the document of a result: what all begin with, its figures, its documented fields."""
    if case.document is not None:
        return case.document(result)
    head = {
        "kvscope": __version__,
        "schema": case.schema,
        "command": case.name,
        "trace": shown(getattr(result, "trace", None)),
    }
    if case.figures is not None:
        head["figures"] = case.figures(result)
    return head | dict(_documented(result))


def _documented(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a result that its document has, and their values."""
    for name, annotation in marked(type(result)).items():
        value = getattr(result, name)
        if not annotation.startswith("Inline["):
            yield name, shown(value)
        elif value is not None:
            yield from _documented(value)
        else:
            from kvscope.usecases.schemas import empty

            yield from empty(type(result), name).items()


def marked(kind: type) -> dict[str, str]:
    """Return the documented fields of a record with their annotations: all not `Beside`."""
    annotations = {
        name: str(annotation)
        for each in reversed(kind.__mro__)
        for name, annotation in vars(each).get("__annotations__", {}).items()
    }
    return {
        name: annotation
        for name, annotation in annotations.items()
        if not annotation.startswith(("Beside[", "ClassVar["))
    }


def shown(value: Any) -> Any:
    """Return a value as documents show it."""
    if type(value) in FORMS:
        return FORMS[type(value)][1](value)
    return tuple(map(shown, value)) if isinstance(value, tuple) else value

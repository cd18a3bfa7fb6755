"""The documents of `--json`: what they show of a use case's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from kvscope import __version__
from kvscope.app.documents.base import Facts, ModelFacts, TraceFacts
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


def document(case: AnyUseCase, result: Any) -> dict[str, Any]:
    """Return the document of a result: what all begin with, its figures, its documented fields."""
    head = {
        "kvscope": __version__,
        "schema": case.schema,
        "command": case.name,
        "trace": shown(getattr(result, "trace", None)),
    }
    if case.figures is not None:
        head["figures"] = case.figures(result)
    return head | {name: shown(getattr(result, name)) for name in documented(type(result))}


def documented(kind: type[Struct]) -> tuple[str, ...]:
    """Return the fields of a result that its document has: all that are not `Beside`."""
    beside = {
        name
        for each in kind.__mro__
        for name, annotation in vars(each).get("__annotations__", {}).items()
        if str(annotation).startswith("Beside[")
    }
    return tuple(name for name in kind.__struct_fields__ if name not in beside)


def shown(value: Any) -> Any:
    """Return a value as documents show it."""
    if type(value) in FORMS:
        return FORMS[type(value)][1](value)
    return tuple(map(shown, value)) if isinstance(value, tuple) else value

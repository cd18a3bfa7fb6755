"""Documents of `--json` whose keys are the fields of dataclasses of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypeAlias, cast, dataclass_transform

from kvscope import __version__
from kvscope.core.trace import Trace
from kvscope.deployment.models import Model


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Facts:
    """An object of a document; each subclass becomes a frozen dataclass of keyword arguments."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def build(cls, *sources: object, **stated: Any) -> Self:
        """Return a record of what is `stated` and, for other fields, of the sources' attributes.

        The first source that has an attribute of the field's name counts. A field `x_ms` also takes
        `x_s`, in milliseconds. Without any the field keeps its default.
        """
        for field in fields(cls):  # type: ignore[arg-type]  # every subclass is a dataclass
            name = field.name
            seconds = f"{name.removesuffix('_ms')}_s" if name.endswith("_ms") else name
            if name in stated:
                continue
            for source in sources:
                if hasattr(source, name):
                    stated[name] = getattr(source, name)
                    break
                if hasattr(source, seconds):
                    value = getattr(source, seconds)
                    stated[name] = None if value is None else value * 1e3
                    break
        return cls(**stated)


class TraceFacts(Trace, frozen=True):
    """The trace that a document is about."""

    @classmethod
    def build(cls, trace: Trace) -> TraceFacts:
        """Return the trace, which shows itself."""
        return cast("TraceFacts", trace)


class Document(Facts):
    """What every document begins with."""

    kvscope: str = __version__
    schema: Literal[1] = 1
    command: str = ""
    trace: TraceFacts | None = None


class GatedDocument(Document):
    """A document of a command with `--fail-on`; `figures` are what conditions compare."""

    figures: Mapping[str, float | str | None]


ModelFacts: TypeAlias = Model


def model_facts(model: Model | None) -> Model | None:
    """Return a model, which shows itself."""
    return model

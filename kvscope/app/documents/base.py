"""What all documents of `--json` share, and how they are written.

A document is a dataclass whose fields are its keys: units in their names, rates from 0 to 1. Fields
are added, never renamed or removed. Infinities and NaN become null. `kvscope.usecases.schemas`
makes a JSON schema of each. `Facts.build` fills it from the results that it shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypeAlias, dataclass_transform

import msgspec

from kvscope import __version__
from kvscope.core.trace import Lineage
from kvscope.deployment.models import Model

SCHEMA: Literal[1] = 1


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


class TraceFacts(Facts):
    """The trace that a document is about.

    `models`, LoRA `adapters`, cache `salts` and `workers` count the distinct ones that requests
    name, `tenants` the combinations of the first three, which share no blocks. `measured_requests`
    have a TTFT, a queue time, a duration, cached tokens or a delay. All are null for traces that an
    older version stored.
    """

    name: str
    format: str
    block_size: int
    requests: int
    accesses: int
    distinct_blocks: int
    span_s: float
    input_tokens: int
    output_tokens: int
    lineage: Lineage
    bad_lines: int
    models: int | None
    adapters: int | None
    salts: int | None
    tenants: int | None
    workers: int | None
    measured_requests: int | None


class Document(Facts):
    """What every document begins with."""

    kvscope: str = __version__
    schema: Literal[1] = SCHEMA
    command: str = ""
    trace: TraceFacts | None = None


class GatedDocument(Document):
    """A document of a command with `--fail-on`.

    `figures` are what conditions compare, by the names of `--fail-on`: seconds, shares, requests
    per second, counts and the verdict. A figure that cannot be computed is null.
    """

    figures: Mapping[str, float | str | None]


class ModelFacts(Facts):
    """The model whose KV cache sizes are computed for."""

    name: str
    dtype: str
    bytes_per_token: int
    notes: tuple[str, ...]


AnyDocument: TypeAlias = "Document | Mapping[str, Any]"


def to_json(document: AnyDocument) -> str:
    """Return the document as indented JSON, in ASCII."""
    encoded = msgspec.json.encode(document, enc_hook=_plain)
    text = msgspec.json.format(encoded, indent=2).decode()
    # escapes are JSON in any encoding of stdout
    return text if text.isascii() else json.dumps(json.loads(text), indent=2)


def to_dict(document: AnyDocument) -> dict[str, Any]:
    """Return the document as a dictionary: what reading its JSON gives."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document, enc_hook=_plain))
    return plain


def model_facts(model: Model | None) -> ModelFacts | None:
    """Return what documents say of a model."""
    return ModelFacts.build(model) if model else None


def _plain(value: object) -> object:
    """Return numpy's scalars and arrays as Python's own."""
    convert = getattr(value, "tolist", None)
    if convert is None:
        raise TypeError(f"no JSON for {type(value).__name__}")
    return convert()

"""What all documents of `--json` share, and how they are written.

A document is a dataclass whose fields are its keys: units in their names, rates from 0 to 1. Fields
are added, never renamed or removed. Infinities and NaN become null. `kvscope.app.schemas` makes a
JSON schema of each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec

from kvscope import __version__
from kvscope.core.trace import Lineage, Trace
from kvscope.deployment.models import Model

SCHEMA: Literal[1] = 1


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """The trace that a document is about."""

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


@dataclass(frozen=True, kw_only=True)
class Document:
    """What every document begins with."""

    kvscope: str = __version__
    schema: Literal[1] = SCHEMA
    command: str = ""
    trace: TraceFacts | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The model whose KV cache sizes are computed for."""

    name: str
    dtype: str
    bytes_per_token: int
    notes: tuple[str, ...]


def to_json(document: Document) -> str:
    """Return the document as indented JSON, in ASCII."""
    encoded = msgspec.json.encode(document, enc_hook=_plain)
    text = msgspec.json.format(encoded, indent=2).decode()
    # escapes are JSON in any encoding of stdout
    return text if text.isascii() else json.dumps(json.loads(text), indent=2)


def to_dict(document: Document) -> dict[str, Any]:
    """Return the document as a dictionary: what reading its JSON gives."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document, enc_hook=_plain))
    return plain


def trace_facts(trace: Trace) -> TraceFacts:
    """Return what documents say of a trace."""
    return TraceFacts(**named(trace, TraceFacts))


def model_facts(model: Model | None) -> ModelFacts | None:
    """Return what documents say of a model."""
    return ModelFacts(**named(model, ModelFacts)) if model else None


def values(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, as they are."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def named(value: Any, kind: type[Any]) -> dict[str, Any]:
    """Return what `value` has by the names of the fields of `kind`."""
    return {field.name: getattr(value, field.name) for field in fields(kind)}


def _plain(value: object) -> object:
    """Return numpy's scalars and arrays as Python's own."""
    convert = getattr(value, "tolist", None)
    if convert is None:
        raise TypeError(f"no JSON for {type(value).__name__}")
    return convert()

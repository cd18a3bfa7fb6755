"""The documents that list: stored traces, what was ingested, and what kvscope knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvscope.app.catalog import FormatEntry, LatencyEntry, ModelEntry, PolicyEntry
from kvscope.app.documents.base import Document, named, trace_facts
from kvscope.core.trace import Lineage, Trace


@dataclass(frozen=True, kw_only=True)
class StoredTrace:
    """All that a store has of a trace itself."""

    name: str
    source: str
    format: str
    block_size: int
    requests: int
    accesses: int
    distinct_blocks: int
    span_s: float
    input_tokens: int
    output_tokens: int
    lineage: Lineage
    has_users: bool
    lines: int
    bad_lines: int
    out_of_order: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TracesDocument(Document):
    """The traces of a store, the one last worked on first."""

    command: Literal["traces"] = "traces"
    traces: tuple[StoredTrace, ...]


@dataclass(frozen=True, kw_only=True)
class IngestedTrace(StoredTrace):
    """A trace that was read; `created` is false where the store had it already."""

    created: bool


@dataclass(frozen=True, kw_only=True)
class IngestDocument(Document):
    """What `kvscope ingest` read, in the order of the paths; `trace` is the last one."""

    command: Literal["ingest"] = "ingest"
    ingested: tuple[IngestedTrace, ...]


def traces_document(traces: Sequence[Trace]) -> TracesDocument:
    """Return the document of `kvscope traces`."""
    return TracesDocument(
        traces=tuple(StoredTrace(**named(trace, StoredTrace)) for trace in traces)
    )


def ingest_document(ingested: Sequence[tuple[Trace, bool]]) -> IngestDocument:
    """Return the document of `kvscope ingest`: each trace, and whether it is new."""
    return IngestDocument(
        trace=trace_facts(ingested[-1][0]),
        ingested=tuple(
            IngestedTrace(**named(trace, StoredTrace), created=created)
            for trace, created in ingested
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PoliciesDocument(Document):
    """The eviction policies, in the order of the registry."""

    command: Literal["policies"] = "policies"
    policies: tuple[PolicyEntry, ...]


@dataclass(frozen=True, kw_only=True)
class ModelsDocument(Document):
    """The model presets."""

    command: Literal["models"] = "models"
    models: tuple[ModelEntry, ...]


@dataclass(frozen=True, kw_only=True)
class LatenciesDocument(Document):
    """The latency presets, the default first."""

    command: Literal["latencies"] = "latencies"
    latencies: tuple[LatencyEntry, ...]


@dataclass(frozen=True, kw_only=True)
class FormatsDocument(Document):
    """The trace formats."""

    command: Literal["formats"] = "formats"
    formats: tuple[FormatEntry, ...]

"""The documents that list: stored traces, what was ingested, and what kvscope knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvscope.app.documents.base import Document, named, trace_facts
from kvscope.core.trace import Lineage, Trace
from kvscope.deployment.models import HeadKv, LatentKv, preset, preset_names
from kvscope.latency.profile import DEFAULT_PROFILE, MODELS, PRESETS

if TYPE_CHECKING:
    from kvscope.policies.base import Policy


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
class Entry:
    """One named thing."""

    name: str
    summary: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ParameterEntry:
    """A policy's parameter; its unit is in its name. An infinite bound or default is None."""

    name: str
    default: float | None
    low: float | None
    high: float | None
    summary: str


@dataclass(frozen=True, kw_only=True)
class PolicyEntry(Entry):
    """An eviction policy.

    `engines` lists what can run it as it is or with kvscope's plugin; it is empty for policies that
    only a simulation can run, such as the oracles (`hindsight`).
    """

    aliases: tuple[str, ...]
    hindsight: bool
    leaves: str
    engines: tuple[str, ...]
    parameters: tuple[ParameterEntry, ...]


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Entry):
    """A model preset with the bytes of KV cache that one token takes."""

    kv_dtype: str
    bytes_per_token: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LatencyEntry(Entry):
    """A latency preset: TTFT = base + per_token u + per_token_pair u (c + u / 2)."""

    model: str | None
    default: bool
    base_s: float
    per_token_s: float
    per_token_pair_s: float


@dataclass(frozen=True, kw_only=True)
class FormatEntry(Entry):
    """A trace format that kvscope reads or writes."""

    reads: bool
    writes: bool
    has_hashes: bool


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


_ANY_CAPACITY = 16  # tokens; which engine runs a policy does not depend on it


def policies_document() -> PoliciesDocument:
    """Return the document of `kvscope policies`."""
    from kvscope.policies.registry import POLICIES

    entries = tuple(
        PolicyEntry(
            name=policy.name,
            aliases=tuple(policy.aliases),
            summary=policy.summary,
            source=policy.source,
            hindsight=policy.hindsight,
            leaves=policy.leaves,
            engines=tuple(_engines(policy)),
            parameters=tuple(
                ParameterEntry(
                    name=parameter.name,
                    default=_finite(parameter.default),
                    low=_finite(parameter.low),
                    high=_finite(parameter.high),
                    summary=parameter.help,
                )
                for parameter in policy.parameters
            ),
        )
        for policy in POLICIES
    )
    return PoliciesDocument(policies=entries)


def models_document() -> ModelsDocument:
    """Return the document of `kvscope models`."""
    entries = tuple(
        ModelEntry(
            name=model.name,
            summary=_layers(model.shape),
            source=model.source,
            kv_dtype=model.dtype,
            bytes_per_token=model.bytes_per_token,
            notes=model.notes,
        )
        for model in map(preset, preset_names())
    )
    return ModelsDocument(models=entries)


def latencies_document() -> LatenciesDocument:
    """Return the document of `kvscope latencies`."""
    entries = tuple(
        LatencyEntry(
            name=profile.name,
            summary=f"{profile.base_s * 1e3:.3g} ms + {profile.per_token_s * 1e6:.3g} us per "
            "uncached token",
            source=profile.source,
            model=MODELS.get(profile.name),
            default=profile.name == DEFAULT_PROFILE,
            base_s=profile.base_s,
            per_token_s=profile.per_token_s,
            per_token_pair_s=profile.per_token_pair_s,
        )
        for profile in PRESETS.values()
    )
    return LatenciesDocument(latencies=entries)


def formats_document() -> FormatsDocument:
    """Return the document of `kvscope formats`: those that kvscope reads, then the others."""
    from kvscope.ingest.export import EXPORTERS
    from kvscope.ingest.formats.registry import FORMATS

    exporters = {exporter.name: exporter for exporter in EXPORTERS}
    read = [
        FormatEntry(
            name=known.name,
            summary=known.summary,
            source=known.source,
            reads=True,
            writes=known.name in exporters,
            has_hashes=known.has_hashes,
        )
        for known in FORMATS
    ]
    only_written = [
        FormatEntry(
            name=name,
            summary=exporter.summary,
            source=exporter.source,
            reads=False,
            writes=True,
            has_hashes=exporter.needs_hashes,
        )
        for name, exporter in exporters.items()
        if name not in {entry.name for entry in read}
    ]
    return FormatsDocument(formats=(*read, *only_written))


def _engines(policy: type[Policy]) -> list[str]:
    """Return the engines that can run a policy with its default parameters."""
    from kvscope.tuning.flags import flags

    if policy.hindsight:
        return []
    known = flags(policy(), _ANY_CAPACITY)
    vllm = "vllm with kvscope's plugin" if known.vllm_needs_plugin else "vllm"
    return [*([vllm] if known.vllm else []), *(["sglang"] if known.sglang else [])]


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None


def _layers(shape: HeadKv | LatentKv) -> str:
    if isinstance(shape, HeadKv):
        return f"{shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_size}"
    return f"{shape.layers} layers, latent {shape.latent_size} + rope {shape.rope_size}"

"""The documents that list: stored traces, what was ingested, and what kvscope knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from kvscope.app.documents.base import Document, Facts, TraceFacts
from kvscope.core.trace import Trace
from kvscope.deployment.models import HeadKv, LatentKv, UnlikeKv, preset, preset_names
from kvscope.latency.profile import DEFAULT_PROFILE, MODELS, PRESETS

if TYPE_CHECKING:
    from kvscope.ingest.pipeline import Ingested
    from kvscope.policies.base import Parameter, Policy
    from kvscope.store.doctor import Saved, StoreHealth


class StoredTrace(TraceFacts):
    """All that a store has of a trace itself."""

    source: str
    has_users: bool
    lines: int
    out_of_order: int
    notes: tuple[str, ...]


class TracesDocument(Document):
    """The traces of a store, the one last worked on first."""

    command: Literal["traces"] = "traces"
    traces: tuple[StoredTrace, ...]


class IngestedTrace(StoredTrace):
    """A trace that was read; `created` is false where the store had it already."""

    created: bool


class IngestDocument(Document):
    """What `kvscope ingest` read, in the order of the paths; `trace` is the last one."""

    command: Literal["ingest"] = "ingest"
    ingested: tuple[IngestedTrace, ...]


class CheckedTrace(Facts):
    """A trace that `kvscope doctor` checked; one with `faults` cannot be saved.

    `result_faults` are in what was computed over it. `source_exists` is true where its file is
    still there to be ingested again.
    """

    name: str
    source: str
    source_exists: bool
    faults: tuple[str, ...]
    result_faults: tuple[str, ...]


class SavedStore(Facts):
    """What `--save-to` copied, and what it had to leave out."""

    path: str
    traces: tuple[str, ...]
    left_out: tuple[str, ...]


class DoctorDocument(Document):
    """Whether a store is sound; `fault` is why its traces cannot be listed, or empty."""

    command: Literal["doctor"] = "doctor"
    store: str
    sound: bool
    fault: str
    traces: tuple[CheckedTrace, ...]
    saved: SavedStore | None


def doctor_document(health: StoreHealth, saved: Saved | None) -> DoctorDocument:
    """Return the document of `kvscope doctor`."""
    return DoctorDocument(
        store=health.path,
        sound=health.is_sound,
        fault=health.fault,
        traces=tuple(CheckedTrace.build(each, each.trace) for each in health.traces),
        saved=None if saved is None else SavedStore.build(saved),
    )


def traces_document(traces: Sequence[Trace]) -> TracesDocument:
    """Return the document of `kvscope traces`."""
    return TracesDocument(traces=tuple(map(StoredTrace.build, traces)))


def ingest_document(ingested: Sequence[Ingested]) -> IngestDocument:
    """Return the document of `kvscope ingest`."""
    return IngestDocument(
        trace=TraceFacts.build(ingested[-1].trace),
        ingested=tuple(IngestedTrace.build(each.trace, created=each.created) for each in ingested),
    )


class Entry(Facts):
    """One named thing."""

    name: str
    summary: str
    source: str


class ParameterEntry(Facts):
    """A parameter; its unit is in its name. An infinite bound or default is None."""

    name: str
    default: float | None
    low: float | None
    high: float | None
    summary: str


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


class RouterEntry(Entry):
    """A router; the version whose rule it is, is part of the name.

    `sees` is what a choice depends on, `needs` what a trace must have. A router that `draws` does
    so at random. A `reference` knows what no router can. `flags` set it with its defaults.
    """

    aliases: tuple[str, ...]
    sees: str
    needs: str
    draws: bool
    reference: bool
    flags: tuple[str, ...]
    parameters: tuple[ParameterEntry, ...]


class ModelEntry(Entry):
    """A model preset with the bytes of KV cache that one token takes."""

    kv_dtype: str
    bytes_per_token: int
    notes: tuple[str, ...]


class LatencyEntry(Entry):
    """A latency preset: TTFT = base + per_token u + per_token_pair u (c + u / 2)."""

    model: str | None
    default: bool
    base_s: float
    per_token_s: float
    per_token_pair_s: float


class FormatEntry(Entry):
    """A trace format that kvscope reads or writes."""

    reads: bool
    writes: bool
    has_hashes: bool


class PoliciesDocument(Document):
    """The eviction policies, in the order of the registry."""

    command: Literal["policies"] = "policies"
    policies: tuple[PolicyEntry, ...]


class RoutersDocument(Document):
    """The routers, in the order of the registry."""

    command: Literal["routers"] = "routers"
    routers: tuple[RouterEntry, ...]


class ModelsDocument(Document):
    """The model presets."""

    command: Literal["models"] = "models"
    models: tuple[ModelEntry, ...]


class LatenciesDocument(Document):
    """The latency presets, the default first."""

    command: Literal["latencies"] = "latencies"
    latencies: tuple[LatencyEntry, ...]


class FormatsDocument(Document):
    """The trace formats."""

    command: Literal["formats"] = "formats"
    formats: tuple[FormatEntry, ...]


def policies_document() -> PoliciesDocument:
    """Return the document of `kvscope policies`."""
    from kvscope.policies.registry import POLICIES

    entries = tuple(
        PolicyEntry.build(
            policy,
            engines=tuple(_engines(policy)),
            parameters=_parameters(policy.parameters),
        )
        for policy in POLICIES
    )
    return PoliciesDocument(policies=entries)


def routers_document() -> RoutersDocument:
    """Return the document of `kvscope routers`."""
    from kvscope.routers.registry import ROUTERS

    entries = tuple(
        RouterEntry.build(router, flags=router().flags(), parameters=_parameters(router.parameters))
        for router in ROUTERS
    )
    return RoutersDocument(routers=entries)


def models_document() -> ModelsDocument:
    """Return the document of `kvscope models`."""
    entries = tuple(
        ModelEntry.build(model, summary=_layers(model.shape), kv_dtype=model.dtype)
        for model in map(preset, preset_names())
    )
    return ModelsDocument(models=entries)


def latencies_document() -> LatenciesDocument:
    """Return the document of `kvscope latencies`."""
    entries = tuple(
        LatencyEntry.build(
            profile,
            summary=f"{profile.base_s * 1e3:.3g} ms + {profile.per_token_s * 1e6:.3g} us per "
            "uncached token",
            model=MODELS.get(profile.name),
            default=profile.name == DEFAULT_PROFILE,
        )
        for profile in PRESETS.values()
    )
    return LatenciesDocument(latencies=entries)


def formats_document() -> FormatsDocument:
    """Return the document of `kvscope formats`: those that kvscope reads, then the others."""
    from kvscope.ingest.formats.registry import EXPORTERS, FORMATS

    read, written = ({each.name for each in known} for known in (FORMATS, EXPORTERS))
    entries = (
        *(FormatEntry.build(each, reads=True, writes=each.name in written) for each in FORMATS),
        *(
            FormatEntry.build(each, reads=False, writes=True, has_hashes=each.needs_hashes)
            for each in EXPORTERS
            if each.name not in read
        ),
    )
    return FormatsDocument(formats=entries)


def _parameters(parameters: Sequence[Parameter]) -> tuple[ParameterEntry, ...]:
    return tuple(ParameterEntry.build(known, summary=known.help) for known in parameters)


def _engines(policy: type[Policy]) -> list[str]:
    """Return the engines that can run a policy with its default parameters."""
    from kvscope.tuning.flags import flags

    if policy.hindsight:
        return []
    known = flags(policy())
    vllm = "vllm with kvscope's plugin" if known.vllm_needs_plugin else "vllm"
    on_vllm, on_sglang = known.vllm is not None, known.sglang is not None
    return [*([vllm] if on_vllm else []), *(["sglang"] if on_sglang else [])]


def _layers(shape: HeadKv | LatentKv | UnlikeKv) -> str:
    if isinstance(shape, UnlikeKv):
        return f"{_layers(shape.full)}; {_layers(shape.windowed)}"
    if isinstance(shape, HeadKv):
        return f"{shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_size}"
    return f"{shape.layers} layers, latent {shape.latent_size} + rope {shape.rope_size}"

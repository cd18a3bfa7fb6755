"""What kvscope knows by name: policies, models, latency presets and trace formats."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.core.kv_size import HeadKv, LatentKv, preset, preset_names
from kvscope.ingest.export import EXPORTERS
from kvscope.ingest.formats.registry import FORMATS
from kvscope.latency.profile import DEFAULT_PROFILE, MODELS, PRESETS
from kvscope.policies.base import Policy
from kvscope.policies.registry import POLICIES
from kvscope.tuning.flags import flags


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


_ANY_CAPACITY = 16  # tokens; which engine runs a policy does not depend on it


def policies() -> tuple[PolicyEntry, ...]:
    """Return every eviction policy, in the order of the registry."""
    return tuple(
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


def models() -> tuple[ModelEntry, ...]:
    """Return every model preset."""
    return tuple(
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


def latencies() -> tuple[LatencyEntry, ...]:
    """Return every latency preset."""
    return tuple(
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


def formats() -> tuple[FormatEntry, ...]:
    """Return every trace format, those that kvscope reads first."""
    written = {exporter.name: exporter for exporter in EXPORTERS}
    read = [
        FormatEntry(
            name=known.name,
            summary=known.summary,
            source=known.source,
            reads=True,
            writes=known.name in written,
            has_hashes=known.has_hashes,
        )
        for known in FORMATS
    ]
    names = {known.name for known in FORMATS}
    only_written = [
        FormatEntry(
            name=name,
            summary=exporter.summary,
            source=exporter.source,
            reads=False,
            writes=True,
            has_hashes=exporter.needs_hashes,
        )
        for name, exporter in written.items()
        if name not in names
    ]
    return (*read, *only_written)


def _engines(policy: type[Policy]) -> list[str]:
    """Return the engines that can run a policy with its default parameters."""
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

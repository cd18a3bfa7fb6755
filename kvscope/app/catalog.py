"""What kvscope knows by name: policies, models, latency presets and trace formats."""

from __future__ import annotations

from typing import Any, TypeAlias

from kvscope.core.kv_size import HeadKv, LatentKv, preset, preset_names
from kvscope.ingest.export.pipeline import EXPORTERS
from kvscope.ingest.formats.registry import FORMATS
from kvscope.latency import DEFAULT_PROFILE, MODELS, PRESETS
from kvscope.policies.base import Policy
from kvscope.policies.registry import POLICIES
from kvscope.tune.flags import flags

Entry: TypeAlias = dict[str, Any]
"""One named thing: `name`, `summary`, `source` and what is particular to its kind."""

_ANY_CAPACITY = 16  # tokens; which engine runs a policy does not depend on it


def policies() -> list[Entry]:
    """Return every eviction policy, in the order of the registry.

    `engines` lists what can run it as it is or with kvscope's plugin; it is empty for policies that
    only a simulation can run, such as the oracles (`hindsight`). Parameters carry their units in
    their names; an infinite bound or default is None.
    """
    return [
        {
            "name": policy.name,
            "aliases": list(policy.aliases),
            "summary": policy.summary,
            "source": policy.source,
            "hindsight": policy.hindsight,
            "leaves": policy.leaves,
            "engines": _engines(policy),
            "parameters": [
                {
                    "name": parameter.name,
                    "default": _finite(parameter.default),
                    "low": _finite(parameter.low),
                    "high": _finite(parameter.high),
                    "summary": parameter.help,
                }
                for parameter in policy.parameters
            ],
        }
        for policy in POLICIES
    ]


def models() -> list[Entry]:
    """Return every model preset with the bytes of KV cache that one token takes."""
    return [
        {
            "name": name,
            "summary": _layers(preset(name).shape),
            "source": preset(name).source,
            "kv_dtype": preset(name).dtype,
            "bytes_per_token": preset(name).bytes_per_token,
            "notes": list(preset(name).notes),
        }
        for name in preset_names()
    ]


def latencies() -> list[Entry]:
    """Return every latency preset: TTFT = base + per_token u + per_token_pair u (c + u / 2)."""
    return [
        {
            "name": profile.name,
            "summary": f"{profile.base_s * 1e3:.3g} ms + {profile.per_token_s * 1e6:.3g} us per "
            "uncached token",
            "source": profile.source,
            "model": MODELS.get(profile.name),
            "default": profile.name == DEFAULT_PROFILE,
            "base_s": profile.base_s,
            "per_token_s": profile.per_token_s,
            "per_token_pair_s": profile.per_token_pair_s,
        }
        for profile in PRESETS.values()
    ]


def formats() -> list[Entry]:
    """Return every trace format that kvscope reads or writes."""
    written = {exporter.name: exporter for exporter in EXPORTERS}
    read = [
        {
            "name": known.name,
            "summary": known.summary,
            "source": known.source,
            "reads": True,
            "writes": known.name in written,
            "has_hashes": known.has_hashes,
        }
        for known in FORMATS
    ]
    names = {known.name for known in FORMATS}
    return read + [
        {
            "name": name,
            "summary": exporter.summary,
            "source": exporter.source,
            "reads": False,
            "writes": True,
            "has_hashes": exporter.needs_hashes,
        }
        for name, exporter in written.items()
        if name not in names
    ]


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

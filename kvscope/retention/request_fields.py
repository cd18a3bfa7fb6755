"""How requests state a time to live to an engine, by its release.

Source: TensorRT-LLM 1.3.0rc27, features/kvcache and llm-api/reference/KvCacheRetentionConfig;
docs.nvidia.com/dynamo v1.5.1, agents/agent-hints, and v1.0.0 for cache_control (ai-dynamo/dynamo
#6213); sgl-project/sglang 0.5.23, #21884 and #27970; LMCache 0.5.6; vLLM 0.33.0, v1/kv_hints.
"""

from __future__ import annotations

import math

from msgspec import Struct

PINNED_PRIORITY = 80
"""The priority of blocks within their time to live, in TensorRT-LLM's levels."""


class RequestField(Struct, frozen=True):
    """What to send to an engine, or why nothing can be sent; `honours_ttl`: whether it keeps it."""

    engine: str
    field: str
    honours_ttl: bool


def request_fields(ttl_s: float) -> tuple[RequestField, ...]:
    """Return what a request states to each engine for its blocks to live for `ttl_s`."""
    duration = "" if math.isinf(ttl_s) else f", duration_ms=timedelta(seconds={ttl_s:g})"
    return (
        RequestField(
            "TensorRT-LLM 1.3",
            "kv_cache_retention_config=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None,"
            f" {PINNED_PRIORITY}{duration})])",
            honours_ttl=True,
        ),
        RequestField(
            "Dynamo 1.0",
            f'"nvext": {{"cache_control": {{"type": "ephemeral", "ttl": "{_written(ttl_s)}"}}}}'
            " (experimental; gone by 1.5)",
            honours_ttl=True,
        ),
        RequestField(
            "Dynamo 1.5",
            '"nvext": {"agent_hints": {"priority": N}}: a priority for the backend, no TTL',
            honours_ttl=False,
        ),
        RequestField(
            "SGLang 0.5.23",
            '"priority": N with --radix-eviction-policy priority: no TTL (#27970 is open)',
            honours_ttl=False,
        ),
        RequestField("LMCache 0.5.6", "none: its ttl is that of locks", honours_ttl=False),
        RequestField("vLLM 0.33", "none: hints reach policies of the CPU tier", honours_ttl=False),
    )


def _written(ttl_s: float) -> str:
    """Return a TTL as Dynamo takes it: whole minutes or hours, rounded up."""
    if math.isinf(ttl_s) or ttl_s > 3000:
        return "1h"
    return f"{max(math.ceil(ttl_s / 60), 1)}m"

"""Least recently used."""

from __future__ import annotations

from kvscope.policies.base import LanePolicy


class Lru(LanePolicy):
    """Evict the least recently used block; of one request's blocks the deepest.

    Key (r, -d). It leaves no orphans: a request that touches a block touches all before it.
    Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue); SGLang's default.
    """

    name = "lru"
    summary = "least recently used, deepest first: what vLLM and SGLang do"
    source = "vLLM, SGLang"

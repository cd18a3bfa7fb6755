"""Least recently used."""

from __future__ import annotations

from kvscope.policies.base import LanePolicy


class Lru(LanePolicy):
    """Least recently used; of one request's blocks the deepest leaves first.

    Key (r, -d). It never leaves an orphan: whoever touches a block touches all before it.
    Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue); SGLang's default.
    """

    name = "lru"
    summary = "least recently used, deepest first: what vLLM and SGLang do"
    source = "vLLM, SGLang"
